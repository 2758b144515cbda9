import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise import repro, session, trials, validate
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import BudgetSpentError, Decision
from loadchaos.campaigns.minimise.minimiser import Minimised
from loadchaos.campaigns.minimise.session import MinimiseSession
from loadchaos.campaigns.minimise.validate import ScriptRuns
from loadchaos.campaigns.replay.one_try import TryResult
from loadchaos.core.errors import TargetError
from loadchaos.profile.request_trace import TraceSend
from tests.campaigns.minimise.pools import Pool, plan_of
from tests.campaigns.traces import ONE_REQUEST

REPRODUCED = TryResult(True, "x", False, 1, 0.1, "folder", True, died=True)


def minimiser(tmp_path: Path, pool: Pool, *argv: str) -> tuple[MinimiseSession, Reduction, list[str]]:
    plan = plan_of(*(argv or ("serve", "--a", "--b")))
    lines: list[str] = []
    found = MinimiseSession(Campaign(tmp_path, lines.append), ONE_REQUEST, plan, 60.0)
    pool.serve(found._trials)
    return found, found._whole, lines


def results(monkeypatch: pytest.MonkeyPatch, *given: TryResult | Exception) -> None:
    left = list(given)

    async def run_try(*_: object) -> TryResult:
        now = left.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    monkeypatch.setattr(trials, "run_try", run_try)


def test_try_whose_server_cannot_be_tested_is_made_again_on_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool()
    found, whole, _ = minimiser(tmp_path, pool)
    results(monkeypatch, TargetError("its first request failed: ReadError"), REPRODUCED)
    assert asyncio.run(found._attempt(whole)) is True
    assert pool.started == 2


def test_flags_with_which_every_first_request_fails_cannot_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, whole, lines = minimiser(tmp_path, Pool())
    results(monkeypatch, *[TargetError("the server died before the load")] * 3)
    fewer = Reduction(whole.trace, whole.command, whole.flags[:1])
    assert asyncio.run(found._attempt(fewer)) is None
    assert lines == ["a candidate cannot be tried: the server died before the load"]


def test_flags_without_which_a_server_does_not_start_are_kept(tmp_path: Path) -> None:
    pool = Pool(lambda choice: choice.launch is not None and "--b" not in choice.launch.argv)
    found, whole, lines = minimiser(tmp_path, pool)
    fewer = Reduction(whole.trace, whole.command, whole.flags[:1])
    assert asyncio.run(found._attempt(fewer)) is None
    assert "does not start" in lines[0]
    pool.refuse = lambda _: True
    with pytest.raises(TargetError):  # flags that have worked: something else is wrong
        asyncio.run(found._attempt(whole))


def test_minimiser_says_what_is_left_also_for_decisions_of_an_earlier_run(tmp_path: Path) -> None:
    found, whole, lines = minimiser(tmp_path, Pool())
    found._decider.steps = [Decision(True, 2, 2), Decision(False, 0, 1)]
    found._decider.tries = 3
    found._report(Decision(True, 1, 1, "features (one image)", requests=4, flags=2))
    found._report(Decision(False, 0, 1, "features (not streamed)", requests=4, flags=2))
    assert lines[1].startswith(
        "features (not streamed): 4 requests, 2 flags: does not fail (0 of 1); smallest: 4 requests, 2 flags; "
        "failure rate so far 100 %, "
    )
    assert whole.change == ""


def test_minimiser_tells_no_probability_before_anything_has_failed(tmp_path: Path) -> None:
    found, _, lines = minimiser(tmp_path, Pool())
    found._decider.steps = [Decision(False, 0, 1), Decision(False, 0, 8, "the whole", requests=46, flags=2)]
    found._report(found._decider.steps[-1])
    assert lines[0].startswith("the whole: 46 requests, 2 flags: does not fail (0 of 8); smallest: ")
    assert "failure rate" not in lines[0]


def test_candidates_differ_by_what_they_send_and_not_by_the_name_of_a_change(tmp_path: Path) -> None:
    _, whole, _ = minimiser(tmp_path, Pool())
    assert replace(whole, change="one image").key() == whole.key()


def replace_search(
    monkeypatch: pytest.MonkeyPatch, found: Minimised, runs: Callable[[], ScriptRuns]
) -> list[Reduction]:
    """Replace the search and the runs of its scripts; returns the candidates whose scripts are written."""
    written: list[Reduction] = []

    async def minimised(*_: object, **__: object) -> Minimised:
        return found

    async def run_script(*_: object) -> ScriptRuns:
        return runs()

    def write_script(reproducer: Any, folder: Path) -> Path:
        written.append(reproducer.candidate)
        return folder / "repro.py"

    monkeypatch.setattr(session, "minimise", minimised)
    monkeypatch.setattr(session, "run_script", run_script)
    monkeypatch.setattr(repro, "write_script", write_script)
    monkeypatch.setattr(repro, "finish", lambda *_: None)
    return written


def test_result_is_the_candidate_whose_script_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest candidate failed in replay, its script did not: no word of the result is about it."""
    found, whole, lines = minimiser(tmp_path, Pool())
    sends = tuple(TraceSend(id=f"r{i}") for i in range(9))
    sized = [replace(whole, trace=replace(whole.trace, sends=sends[:n]), rounds=5) for n in (9, 4, 5, 3, 1)]

    def runs() -> ScriptRuns:
        return ScriptRuns(3, 3 if ran[-1].requests == 4 else 0)

    ran = replace_search(monkeypatch, Minimised(sized[-1], 1.0, kept=sized), runs)
    result = asyncio.run(found.run())
    assert [c.requests for c in ran] == [1, 3, 4]
    assert "MINIMISED 1 to 4 requests (sent up to 5 times)" in result.text
    assert "repro.py with 1 request reproduces in less than 15 % of the runs: a larger candidate follows" in lines
    del sized[1:]  # none is larger
    assert asyncio.run(found.run()).text == "UNKNOWN: no reproducer held on fresh servers"
    assert lines[-1] == "repro.py with 9 requests reproduces in less than 15 % of the runs"


def validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, results: list[ScriptRuns], levels: Any = ()
) -> tuple[str, list[str], list[Reduction]]:
    """(text of the result, lines, written candidates) of a search that kept so many candidates of one size."""
    found, whole, lines = minimiser(tmp_path, Pool())
    candidates = [replace(whole, trace=replace(whole.trace, header=whole.trace.header)) for _ in range(kept)]
    searched = Minimised(candidates[-1], 1.0, kept=candidates, levels=list(levels), out_of_time=True)
    written = replace_search(monkeypatch, searched, lambda: results.pop(0))
    return asyncio.run(found.run()).text, lines, written


def test_minimiser_that_removed_nothing_says_so_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [Decision(False, 0, 1, requests=0, flags=2), Decision(True, 1, 1, requests=1, flags=2)]
    levels = [("single requests", 1, 2, steps)]
    text, lines, _ = validated(tmp_path, monkeypatch, 1, [ScriptRuns(10, 10)], levels)
    assert text.startswith(
        "NOT MINIMISED: none of 1 request and 2 flags could be left out: 1 smaller candidate did not fail, the budget was "
        "spent before all were tried; repro.py reproduces 10 of 10 (p = 1.00, 95 % CI 0.72 to 1.00); "
    )
    assert any(line.startswith("repro.py is run on fresh servers, 3 times or more: about ") for line in lines)


def test_script_that_reproduces_in_less_than_half_of_its_runs_is_no_result_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [ScriptRuns(3, 10), ScriptRuns(4, 10), ScriptRuns(2, 10), ScriptRuns(1, 10)]
    text, _, written = validated(tmp_path, monkeypatch, 2, results)
    assert "repro.py reproduces 4 of 10 (p = 0.40, " in text
    assert [c.rounds for c in written] == [1, 7, 1, 11, 7], "the most reliable one is written last"


@pytest.mark.parametrize(
    ("ready_s", "fails", "searched", "until_s", "found"),
    [
        (0.5, [True] * 8, (2, 2), math.inf, (10, 10)),
        (0.5, [True, False, *[True] * 8], (0, 0), math.inf, (9, 10)),
        (20.0, [True] * 3, (0, 0), math.inf, (3, 3)),
        (20.0, [True, False, *[True] * 6], (0, 0), math.inf, (7, 8)),
        (0.5, [True] * 3, (0, 0), 0.0, (3, 3)),
    ],
)
def test_probability_of_a_script_is_that_of_all_its_runs(
    ready_s: float, fails: list[bool], searched: tuple[int, int], until_s: float, found: tuple[int, int],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async def on_fresh_server(*_: object) -> tuple[validate.ScriptRun, float]:
        return validate.ScriptRun("line" if fails.pop(0) else None, "", 1), ready_s

    monkeypatch.setattr(validate, "on_fresh_server", on_fresh_server)
    run = validate.run_script(tmp_path, plan_of("serve"), tmp_path, lambda _: None, searched, until_s)
    runs = asyncio.run(run)
    assert (runs.reproduced, runs.runs) == found
    assert not fails


def test_search_leaves_time_of_the_budget_for_the_runs_of_its_script(tmp_path: Path) -> None:
    found, whole, _ = minimiser(tmp_path, Pool())
    found._trials.ready_s, found._trials._newest_s = 5.0, 1.0
    assert found._decider.reserve_s() == pytest.approx(0.3 * 60), "not more than a part of it"
    found._trials.ready_s = 0.5
    assert found._decider.reserve_s() == pytest.approx(15)
    found._decider._deadline_s = time.monotonic() + 10
    with pytest.raises(BudgetSpentError):
        asyncio.run(found._decider.decide(whole))


def test_minimiser_without_time_says_so(tmp_path: Path) -> None:
    found, _, _ = minimiser(tmp_path, Pool())
    found._decider._deadline_s = 0.0
    result = asyncio.run(found.run())
    assert (result.exit_code, result.text[:37]) == (3, "UNKNOWN: the budget was spent before ")


@pytest.mark.parametrize(("n", "places"), [(1, [0]), (2, [1, 0]), (5, [4, 3, 1, 0]), (9, [8, 7, 5, 1, 0])])
def test_scripts_of_larger_candidates_follow_with_growing_distance(n: int, places: list[int], tmp_path: Path) -> None:
    _, whole, _ = minimiser(tmp_path, Pool())
    kept = [replace(whole, rounds=i + 1) for i in range(n)]
    assert [c.rounds - 1 for c in session.to_validate(kept)] == places


def test_state_of_a_minimisation_has_no_secret_of_the_launch_command(tmp_path: Path) -> None:
    found, whole, _ = minimiser(tmp_path, Pool(), "serve", "--hf-token", "corp-hunter2pass99")
    found._decider.step = "flags"

    async def fails(_: Reduction) -> bool:
        return True

    found._decider._deadline_s, found._decider._attempt = math.inf, fails
    decision = asyncio.run(found._decider.decide(replace(whole, change="without --hf-token corp-hunter2pass99")))
    assert "hunter2" not in decision.step
    assert "--hf-token" in decision.step
