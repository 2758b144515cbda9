"""Capacity session: files, resumption, early ends; its runs are steps in virtual time."""

import asyncio
import csv
import json
import re
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.capacity import CASES, VirtualStep, profile_of
from loadchaos.analysis.capacity.result import CapacityResult, SearchedPhase, SearchOptions
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.capacity import session as module
from loadchaos.campaigns.capacity.search import SearchSettings
from loadchaos.campaigns.capacity.session import CapacitySession, CapacitySettings, SearchOutput
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.profile.profile import Profile
from loadchaos.report.html import capacity_page
from loadchaos.report.terminal.capacity import render
from loadchaos.run.finalize import Result
from loadchaos.run.options import Options
from loadchaos.run.ports import free_port
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.schemas import validate

CASE = next(c for c in CASES if c.name == "prefill")
CAPACITY = 20.3
"""Of the case, by bench/capacity.py."""
DEATH = {"id": "engine_dead", "title": "The engine died", "severity": "engine_death", "attribution": "server",
         "incident": "001-engine_dead"}  # fmt: skip


def stepped(profile: Profile, options: Options, **verdict: Any) -> Result:
    """Feed the load of a step in virtual time to its watch; returns the result with this verdict."""
    folder = RunFolder(options.out / "run")
    folder.path.mkdir(parents=True, exist_ok=True)
    assert options.watch is not None
    for row in VirtualStep(CASE, profile, options.seed).rows():
        options.watch.fold(row)
        if options.watch.reason() is not None:
            break
    return Result(0, Verdict.from_json({"failures": [], **verdict}), folder)


def replace_runs(patch: pytest.MonkeyPatch) -> dict[int, Callable[[], Result]]:
    """Replace each run by its load in virtual time; the mapping gives other results by number of the step."""
    others: dict[int, Callable[[], Result]] = {}

    async def run(profile: Profile, options: Options, *_: object) -> Result:
        folder = RunFolder(options.out / "run")
        folder.path.mkdir(parents=True)
        folder.facts.write_text(json.dumps({"dialect": "vllm", "version": "0.32.0", "model": "sim"}))
        if (other := others.get(int(options.out.name))) is not None:
            return other()
        return stepped(profile, options)

    patch.setattr(module, "run_quietly", run)
    return others


@pytest.fixture
def virtual_runs(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], Result]]:
    return replace_runs(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any], list[str]]:
    """A search without mishaps: folder, result and printed lines."""
    folder, lines = tmp_path_factory.mktemp("whole"), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        replace_runs(patch)
        return folder, ran(session(folder, lines)), lines


def ran(search: CapacitySession) -> dict[str, Any]:
    found: dict[str, Any] = to_json(asyncio.run(search.run()))
    return found


def session(folder: Path, lines: list[str], **more: Any) -> CapacitySession:
    slo = profile_of(CASE).slo
    assert slo is not None
    limits_s = slo.limits_s()
    search = SearchSettings("rate", 13.0, 1000.0, goal=0.95, limits_s=limits_s)
    given = {
        "search": search, "budget_s": 3600.0, "target": "http://127.0.0.1:1", "at_least": None,
        "wanted": SearchOptions(), "phase": SearchedPhase(), **more,
    }  # fmt: skip
    return CapacitySession(
        Campaign(folder, lines.append),
        profile_of(CASE),
        CapacitySettings(**given),
        Options(),
        SearchOutput(lines.append),
    )


def test_session_starts_the_server_once_for_all_steps_and_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    argv = command(SimulatorSpec("vllm", "0.32", (), {"quiet": True}), port)
    profile = profile_of(CASE).with_launch({"command": argv, "url": f"http://127.0.0.1:{port}"})
    seen: list[tuple[int | None, bool]] = []

    async def run(profile: Profile, options: Options, *_: object) -> Result:
        assert options.held is not None
        seen.append((options.held.launched.pid, options.held.alive))
        return stepped(profile, options)

    monkeypatch.setattr(module, "run_quietly", run)
    lines: list[str] = []
    settings = session(tmp_path, lines)._settings
    campaign = Campaign(tmp_path, lines.append)
    found = CapacitySession(campaign, profile, settings, Options(), SearchOutput(lines.append))
    data = ran(found)
    assert data["answer"]["known"]
    assert len(seen) == len(data["steps"])
    assert len({pid for pid, _ in seen}) == 1
    assert all(alive for _, alive in seen)
    assert "healthy at http" in lines[1]
    assert (tmp_path / "server/001/server.log").is_file()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_session_finds_the_capacity_and_writes_its_files(whole: tuple[Path, dict[str, Any], list[str]]) -> None:
    folder, data, lines = whole
    assert (data["verdict"], data["exit_code"]) == ("pass", 0)
    assert data["answer"]["low"] == pytest.approx(CAPACITY, rel=0.06)
    assert data["limit"]["resource"] == "prefill"
    assert data["saturation"]["reached"]
    written = json.loads((folder / "capacity.json").read_text())
    assert written == json.loads(json.dumps(data))
    validate(written, "capacity")
    table = list(csv.DictReader((folder / "capacity.csv").read_text().splitlines()))
    assert [float(row["load"]) for row in table] == sorted(step["load"] for step in data["steps"])
    page = (folder / "report.html").read_text()
    assert f'<a href="{data["steps"][0]["run"]}/report.html">' in page
    assert not re.search(r"<script|src=|http-equiv=.refresh|url\(", page)
    text = render(from_json(CapacityResult, data), folder)
    low, high = data["answer"]["interval"]
    assert low < CAPACITY < high
    shown = f"PASS  capacity {data['answer']['low']:.4g} requests/s ({low:.3g} to {high:.3g}): this load meets the goal"
    assert text.startswith(shown)
    assert "prefill (reading prompts)" in text
    assert any(re.match(r"\[step 1\] 13 requests/s: looks met, goodput 100.0 %", line) for line in lines)


def test_session_takes_no_answer_from_a_server_that_had_cached_the_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    async def run(profile: Profile, options: Options, *_: object) -> Result:
        seeds.append(options.seed)
        cached = "the server had the prompts in its prefix cache" if len(seeds) > 1 else None
        return stepped(profile, options, efficiency={"warm_cache": cached})

    monkeypatch.setattr(module, "run_quietly", run)
    data = ran(session(tmp_path, []))
    assert (data["verdict"], data["exit_code"], data["ended_by"]) == (
        "unknown", 3, "step 3: the server had the prompts in its prefix cache",
    )  # fmt: skip
    assert seeds == [1, 2, 3], "each step has prompts of its own"
    assert [step["status"] for step in data["steps"]][1:] == ["not_met", "undecided"]


def test_session_goes_on_after_its_last_finished_step(
    tmp_path: Path, virtual_runs: dict[int, Any], whole: tuple[Path, dict[str, Any], list[str]]
) -> None:
    """The third step is killed; what is on disk continues to the same answer."""

    def killed() -> Result:
        raise KeyboardInterrupt

    virtual_runs[3] = killed
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(session(tmp_path, []).run())
    stored = json.loads((tmp_path / "capacity.json").read_text())
    assert (len(stored["steps"]), stored["ended"], stored["verdict"]) == (2, False, None)
    assert "not finished" in capacity_page.render(from_json(CapacityResult, stored))
    virtual_runs.clear()
    again = session(tmp_path, [])
    again.restore(from_json(CapacityResult, stored))
    data = ran(again)
    same = ("load", "status", "goodput", "requests")
    assert [[s[k] for k in same] for s in data["steps"]] == [[s[k] for k in same] for s in whole[1]["steps"]]
    assert data["seconds"] >= stored["seconds"]


def test_session_ends_with_the_incident_of_a_dead_server(tmp_path: Path, virtual_runs: dict[int, Any]) -> None:
    virtual_runs[2] = lambda: Result(1, Verdict.from_json({"failures": [DEATH]}), RunFolder(tmp_path / "steps/02/run"))
    data = ran(session(tmp_path, []))
    assert (data["verdict"], data["exit_code"], len(data["steps"])) == ("fail", 1, 2)
    assert data["ended_by"] == "engine_dead: The engine died (steps/02/run/incidents/001-engine_dead)"
    assert data["failures"][0]["id"] == "engine_dead"
    assert data["answer"]["known"] is False
    assert "the search ended early: engine_dead" in render(from_json(CapacityResult, data), tmp_path)


def test_session_of_a_server_that_goes_away_keeps_its_exit_code(tmp_path: Path, virtual_runs: dict[int, Any]) -> None:
    virtual_runs[3] = lambda: Result(4, None, RunFolder(tmp_path / "steps/03/run"), "the server is not healthy")
    data = ran(session(tmp_path, []))
    assert (data["verdict"], data["exit_code"]) == ("error", 4)
    assert data["ended_by"] == "step 3: the server is not healthy"


def test_session_ended_by_a_signal_can_go_on(tmp_path: Path, virtual_runs: dict[int, Any]) -> None:
    found = session(tmp_path, [])

    def interrupted() -> Result:
        found._interrupts.receive(signal.SIGINT)
        return Result(130, Verdict.from_json({"failures": []}), RunFolder(tmp_path / "steps/02/run"))

    virtual_runs[2] = interrupted
    data = ran(found)
    assert (data["exit_code"], data["verdict"], data["ended"], len(data["steps"])) == (130, None, False, 1)
    assert "loadchaos capacity --resume" in render(from_json(CapacityResult, data), tmp_path)


@pytest.mark.usefixtures("virtual_runs")
def test_session_without_time_is_unknown(tmp_path: Path) -> None:
    lines: list[str] = []
    data = ran(session(tmp_path, lines, budget_s=30.0))
    assert (data["verdict"], data["exit_code"], data["steps"]) == ("unknown", 3, [])
    assert "capacity unknown: no step ended" in render(from_json(CapacityResult, data), tmp_path)
    assert len(lines) == 1
    end = " of the budget are left, too short for a step; the next one would have been 13 requests/s (--budget gives more)"
    assert lines[0].endswith(end)


@pytest.mark.usefixtures("virtual_runs")
@pytest.mark.parametrize("budget_s", [75.0, 90.0, 100.0])
def test_session_with_little_time_proves_a_first_load(
    budget_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short steps alone would use the whole budget and prove nothing."""

    def spent_s(self: CapacitySession) -> float:
        return sum(14.0 if step.scout else 25.0 for step in self._search.steps)

    monkeypatch.setattr(CapacitySession, "spent_s", property(spent_s))
    slow = SearchSettings("rate", 1.0, 1000.0, goal=0.95, limits_s={"ttft": 1.0})
    data = ran(session(tmp_path, [], budget_s=budget_s, search=slow))
    assert (data["verdict"], data["answer"]["known"]) == ("pass", True)
    assert 4.0 <= data["answer"]["low"] < CAPACITY
    assert sum(not step["scout"] for step in data["steps"]) <= 2
    assert data["seconds"] <= budget_s


@pytest.mark.usefixtures("virtual_runs")
@pytest.mark.parametrize(("at_least", "code"), [(15.0, 0), (20.5, 3), (60.0, 1)])
def test_session_judges_the_capacity_that_is_asked_for(tmp_path: Path, at_least: float, code: int) -> None:
    found = session(tmp_path, [], at_least=at_least)
    steps = [(20.4, "met"), (20.6, "not_met")]
    found.restore(
        from_json(
            CapacityResult,
            {
                "seconds": 100.0,
                "started": "2026-01-01T00:00:00+00:00",
                "steps": [{"load": load, "status": status, "leans": status == "met"} for load, status in steps],
            },
        )
    )
    assert ran(found)["exit_code"] == code


@pytest.mark.usefixtures("virtual_runs")
def test_session_refuses_a_limit_that_no_answer_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = SearchSettings("rate", 13.0, 1000.0, goal=0.95, limits_s={"itl_p99": 1.0})
    one_token = session(tmp_path, [], search=gaps)
    watch_end = VirtualStep._end

    def without_gaps(self: VirtualStep, name: str, found: Any) -> dict[str, Any]:
        return {**watch_end(self, name, found), "itl_hist": {}}

    monkeypatch.setattr(VirtualStep, "_end", without_gaps)
    with pytest.raises(OptionError, match="--slo itl_p99: no answer of the server"):
        asyncio.run(one_token.run())
