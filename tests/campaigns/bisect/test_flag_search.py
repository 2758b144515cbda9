"""The search for needed flags and remedies, with servers that are rules."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from loadchaos.campaigns.bisect.flag_search import FlagFindings, FlagSearch
from loadchaos.campaigns.bisect.flag_session import summary
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import Decider, Decision
from tests.campaigns.states import decider_of
from tests.campaigns.traces import ONE_REQUEST

Flags = tuple[tuple[str, ...], ...]
ALL: Flags = (
    ("--port", "1"), ("--load-format", "dummy"), ("--a",), ("--b", "2"), ("--spec", '{"method":"x","n":3,"min":1}'),
    ("--c",), ("--d",), ("--e", "5"), ("--f",),
)  # fmt: skip


def whole(flags: Flags = ALL) -> Reduction:
    return Reduction(ONE_REQUEST, ("serve",), flags)


class Server:
    """A server that starts and fails by rules on its flags, with probability p."""

    def __init__(self, fails: Callable[[Flags], bool], p: float = 1.0, seed: int = 0) -> None:
        self.fails, self.p, self.rng, self.tries = fails, p, random.Random(seed), 0
        self.decider: Decider

    async def attempt(self, found: Reduction) -> bool | None:
        if ("--load-format", "dummy") not in found.flags:
            self.decider.why = "the server does not start: no weights"
            return None
        self.tries += 1
        return self.fails(found.flags) and self.rng.random() < 1 - (1 - self.p) ** found.rounds


def searched(
    server: Server, changes: Sequence[tuple[str, ...]] = (), file: Path | None = None, flags: Flags = ALL
) -> FlagFindings | None:
    server.decider = decider_of(server.attempt, file)
    return asyncio.run(FlagSearch(whole(flags), server.decider, changes).run())


def of_spec(flags: Flags) -> str:
    return next((f[1] for f in flags if f[0] == "--spec"), "")


def needs_spec_and_b(flags: Flags) -> bool:
    return (
        '"method"' in of_spec(flags)
        and '"n"' in of_spec(flags)
        and ("--b", "2") in flags
        and ("--no-async",) not in flags
    )


def test_flag_search_finds_the_smallest_set_with_the_keys_of_json_values() -> None:
    found = searched(Server(needs_spec_and_b), [("--no-async",), ("--eager",), ("--a",)])
    assert found is not None
    assert found.smallest.flags == (
        ("--port", "1"), ("--load-format", "dummy"), ("--b", "2"), ("--spec", '{"method":"x","n":3}'),
    )  # fmt: skip
    parts = {part.describe(): part.decision for part in found.needed}
    assert set(parts) == {
        "--load-format dummy", "--b 2", """--spec '{"method":"x","n":3,"min":1}'""", "key method of --spec",
        "key n of --spec",
    }  # fmt: skip
    assert parts["--load-format dummy"].untriable
    assert "no weights" in parts["--load-format dummy"].why
    assert not parts["--b 2"].fails
    assert parts["--b 2"].tries == 2
    assert (found.successes, found.tries) == (2, 2)


def test_flag_search_proves_each_single_remedy_of_the_whole() -> None:
    found = searched(Server(needs_spec_and_b), [("--no-async",), ("--eager",), ("--a",)])
    assert found is not None
    remedies = {remedy.change: remedy for remedy in found.remedies}
    assert {change for change, remedy in remedies.items() if remedy.proved} == {
        "without --b 2", """without --spec '{"method":"x","n":3,"min":1}'""", "without key method of --spec",
        "without key n of --spec", "with --no-async",
    }  # fmt: skip
    assert not remedies["with --eager"].proved
    assert remedies["with --eager"].decision.successes == 1
    assert "with --a" not in remedies  # the command has it already
    assert remedies["with --no-async"].decision.tries == 8  # all changes together survive by chance in at most 5 %
    assert remedies["with --no-async"].confidence > 0.99
    text = summary(found)
    assert "NEEDED 3 of 8 flags" in text
    assert "CURED with --no-async: 0 of 8 (p = 0.00, 95 % CI 0.00 to 0.32); 2 of 2 before; confidence 99 %" in text
    assert "not a remedy with --eager: still fails, 1 of 1" in text
    assert "--load-format dummy: without it the server does not start" in text


def test_flag_search_without_a_needed_flag() -> None:
    flags = (*(f for f in ALL if f[0] != "--load-format"), ("--host", "h"))
    server = Server(lambda _: True)
    server.attempt = _always  # type: ignore[assignment, method-assign]
    found = searched(server, [("--eager",)], flags=flags)
    assert found is not None
    assert found.smallest.flags == (("--port", "1"), ("--host", "h"))
    assert found.needed == []
    assert [r.proved for r in found.remedies] == [False]
    assert "no single change of the flags was proved to be a remedy" in summary(found)


async def _always(_: Reduction) -> bool:
    return True


def test_flag_that_stands_for_another_one_is_left_out_once() -> None:
    found = searched(Server(lambda flags: ("--c",) in flags or ("--d",) in flags))
    assert found is not None
    assert len({("--c",), ("--d",)} & set(found.smallest.flags)) == 1
    assert not any(r.proved for r in found.remedies)  # the other one still fails


def test_remedy_that_was_not_tried_is_not_proved() -> None:
    server = Server(needs_spec_and_b)
    whole_attempt = server.attempt

    async def attempt(found: Reduction) -> bool | None:
        if ("--no-async",) in found.flags:
            server.decider.why = "the server answers only 0 of 1 requests: 1 rejected"
            return None
        return await whole_attempt(found)

    server.attempt = attempt  # type: ignore[method-assign]
    found = searched(server, [("--no-async",)])
    assert found is not None
    remedy = found.remedies[-1]
    assert not remedy.proved
    assert "not proved with --no-async: the server answers only 0 of 1 requests" in summary(found)


@pytest.mark.parametrize("p", [0.6, 0.3])
def test_flag_search_of_a_rare_failure_holds_in_18_of_20_seeds(p: float) -> None:
    right = wrong_remedies = 0
    for seed in range(20):
        server = Server(needs_spec_and_b, p, seed)
        found = searched(server, [("--no-async",), ("--eager",)])
        assert found is not None
        right += {f[0] for f in found.smallest.flags} == {"--port", "--load-format", "--b", "--spec"}
        wrong_remedies += any(r.proved and r.change == "with --eager" for r in found.remedies)
    assert right >= 18
    assert wrong_remedies <= 2


def test_flag_search_gives_up_on_a_failure_that_does_not_come() -> None:
    assert searched(Server(lambda _: False)) is None


def test_flag_search_without_time_keeps_what_it_has() -> None:
    server = Server(needs_spec_and_b)
    decider = decider_of(server.attempt)
    server.decider = decider

    def spend(decision: Decision) -> None:
        if decision.fails and len(decider.steps) > 1:
            decider._deadline_s = 0.0

    decider._report = spend
    found = asyncio.run(FlagSearch(whole(), decider, [("--eager",)]).run())
    assert found is not None
    assert found.out_of_time
    assert len(found.smallest.flags) < len(ALL)
    assert found.remedies == []
    assert "--resume" in summary(found)


def test_smallest_set_that_does_not_hold_is_given_up() -> None:
    class Lucky(Server):
        """Fails once without --b by chance."""

        once = True

        async def attempt(self, found: Reduction) -> bool | None:
            chance = self.once and ("--b", "2") not in found.flags and ("--a",) not in found.flags
            self.once = self.once and not chance
            return chance or await super().attempt(found)

    found = searched(Lucky(needs_spec_and_b))
    assert found is not None
    assert ("--b", "2") in found.smallest.flags
    assert (found.successes, found.tries) == (2, 2)


def test_flag_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    file, server = tmp_path / "bisect.json", Server(needs_spec_and_b)
    once = searched(server, [("--no-async",)], file)
    again = Server(needs_spec_and_b)
    found = searched(again, [("--no-async",)], file)
    assert again.tries == 0
    assert found == once
