"""The search over releases, with releases that are rules."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadchaos.campaigns.bisect.version_search import VersionFindings, VersionSearch
from loadchaos.campaigns.bisect.version_session import summary
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import Decider, Decision
from tests.campaigns.states import decider_of
from tests.campaigns.traces import ONE_REQUEST

VERSIONS = [f"0.{n}" for n in range(20)]


class Releases:
    """Releases with a failure of probability p; some cannot be installed, some do not start."""

    def __init__(
        self, bad: Sequence[int], p: float = 1.0, seed: int = 0, broken: Sequence[int] = (), dead: Sequence[int] = ()
    ) -> None:
        self.bad, self.p, self.rng = {f"0.{n}" for n in bad}, p, random.Random(seed)
        self.broken, self.dead = {f"0.{n}" for n in broken}, {f"0.{n}" for n in dead}
        self.tried: list[str] = []
        self.decider: Decider

    def candidate(self, version: str) -> Reduction:
        return Reduction(ONE_REQUEST, (f"/venvs/{version}/serve",), ())

    async def prepare(self, version: str) -> str:
        return "it cannot be installed: no wheel" if version in self.broken else ""

    async def attempt(self, found: Reduction) -> bool | None:
        version = found.command[0].split("/")[2]
        self.tried.append(version)
        if version in self.dead:
            self.decider.why = "the server does not start: ImportError"
            return None
        return version in self.bad and self.rng.random() < 1 - (1 - self.p) ** found.rounds

    def search(self, known: str | None = None, file: Path | None = None) -> VersionFindings:
        self.decider = decider_of(self.attempt, file)
        return asyncio.run(VersionSearch(VERSIONS, self.decider, self.candidate, self.prepare, known).run())


def test_version_search_finds_the_first_bad_release() -> None:
    releases = Releases(range(7, 20))
    found = releases.search()
    assert found.first_bad is not None
    assert (found.first_bad.good, found.first_bad.bad, found.first_bad.untested) == ("0.6", "0.7", ())
    assert found.first_bad.confidence == pytest.approx(0.98, abs=0.02)
    assert found.first_good is None
    assert len(set(releases.tried)) <= 8
    assert summary(found, VERSIONS).splitlines() == [
        f"FIRST BAD 0.7 (last good 0.6; confidence {found.first_bad.confidence * 100:.1f} %)",
        "FIRST GOOD none: 0.19 still fails, and no newer release of the range was seen without",
    ]


def test_version_search_finds_the_release_with_the_fix() -> None:
    found = Releases(range(12)).search()
    assert found.first_bad is None
    assert found.first_good is not None
    assert (found.first_good.bad, found.first_good.good) == ("0.11", "0.12")


def test_version_search_finds_both_ends_from_the_recorded_release() -> None:
    found = Releases(range(5, 9)).search(known="0.6")
    assert found.first_bad is not None
    assert found.first_good is not None
    assert (found.first_bad.good, found.first_bad.bad) == ("0.4", "0.5")
    assert (found.first_good.bad, found.first_good.good) == ("0.8", "0.9")
    assert found.anchor == "0.6"


def test_version_search_skips_and_lists_releases_that_cannot_be_tried() -> None:
    found = Releases(range(8, 20), broken=[6, 7], dead=[10]).search()
    assert found.first_bad is not None
    assert (found.first_bad.good, found.first_bad.bad, found.first_bad.untested) == ("0.5", "0.8", ("0.6", "0.7"))
    text = summary(found, VERSIONS)
    assert "not tested between 0.5 and 0.8: 0.6, 0.7" in text
    assert "skipped 0.6: it cannot be installed: no wheel" in text
    assert "skipped 0.10: the server does not start: ImportError" in text


def test_version_search_goes_inwards_where_the_end_cannot_be_tried() -> None:
    found = Releases(range(8, 20), broken=[0, 1], dead=[19, 18]).search()
    assert found.anchor == "0.17"
    assert found.first_bad is not None
    assert (found.first_bad.good, found.first_bad.bad) == ("0.7", "0.8")


def test_version_search_without_a_bad_release() -> None:
    found = Releases([]).search()
    assert found.anchor == ""
    assert [(r.version, r.state) for r in found.releases] == [("0.0", "good"), ("0.19", "good")]
    assert "NOT REPRODUCED" in summary(found, VERSIONS)


@pytest.mark.parametrize("p", [1.0, 0.5, 0.2])
def test_version_search_holds_in_18_of_20_seeds(p: float) -> None:
    right, promised = 0, 0.0
    for seed in range(20):
        first = 1 + seed % 18
        found = Releases(range(first, 20), p, seed).search(known="0.19")
        assert found.first_bad is not None
        right += found.first_bad.bad == f"0.{first}"
        promised += found.first_bad.confidence
    assert right >= 18
    assert 18 <= promised <= 20


def test_version_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "bisect.json"
    once = Releases(range(7, 20), 0.5, seed=3)
    found = once.search(file=file)
    again = Releases(range(7, 20), 0.5, seed=4)
    assert again.search(file=file) == found
    assert again.tried == []


def test_version_search_without_time_says_what_it_has() -> None:
    releases = Releases(range(7, 20))
    decider = releases.decider = decider_of(releases.attempt)

    def spend(_: Decision) -> None:
        if len(decider.steps) == 3:
            decider._deadline_s = 0.0

    decider._report = spend
    found = asyncio.run(VersionSearch(VERSIONS, decider, releases.candidate, releases.prepare).run())
    assert found.out_of_time
    assert [r.version for r in found.releases] == ["0.0", "0.10", "0.19"]
    assert "--resume" in summary(found, VERSIONS)
