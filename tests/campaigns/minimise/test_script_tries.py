import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from loadchaos.campaigns.minimise import reductions
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import SMALL, Decider
from loadchaos.campaigns.minimise.leave_out import leave_out
from loadchaos.campaigns.minimise.minimiser import LUCKY
from loadchaos.campaigns.minimise.script import CHECKS, ScriptFacts, _script, write
from loadchaos.campaigns.minimise.validate import can_try, run_once, try_script
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import TraceSend
from tests.campaigns.minimise.test_minimiser import minimised
from tests.campaigns.states import decider_of
from tests.campaigns.traces import trace_of

REQUESTS = (("requests", reductions.single_requests),)
OOM = ExpectedFailure("cuda_oom_runtime", severity="engine_death")
OOM_LINE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def candidate(requests: int, folder: Path | None = None, texts: Sequence[str] = ()) -> Reduction:
    """Requests without bodies, or with the texts given, all sent at once."""
    names = [
        store_body(folder / "bodies", orjson.dumps({"messages": [{"role": "user", "content": t}]})) if folder else None
        for t in texts or [""] * requests
    ]
    sends = tuple(TraceSend(id=f"r{i}", body=names[i], outcome="ok") for i in range(requests))
    trace = trace_of(folder or Path(), sends)
    return Reduction(trace, ("serve",), ())


def decider(*results: bool) -> Decider:
    left = list(results)

    async def attempt(_: Reduction) -> bool | None:
        return left.pop(0)

    found = decider_of(attempt)
    found.lucky, found.wrong = LUCKY, 0.33
    return found


@pytest.mark.parametrize(
    ("requests", "results", "fails"),
    [
        (SMALL, [True, True], True),
        (SMALL, [True, False, False, False], False),
        (SMALL + 1, [True], True),  # a step on the way: what follows from it is tried more often
    ],
)
def test_small_candidate_is_not_kept_by_one_lucky_failure(requests: int, results: list[bool], fails: bool) -> None:
    assert asyncio.run(decider(*results).decide(candidate(requests))).fails is fails


def test_candidate_that_fails_only_in_a_replay_is_not_kept() -> None:
    """A replay fails with one request, its script needs three."""

    async def attempt(found: Reduction) -> bool | None:
        needed = {"r3", "r17", "r39"} if found.as_script else {"r39"}
        return needed <= {s.id for s in found.trace.sends}

    found = minimised(attempt, candidate(40), REQUESTS, scripts=True)
    assert found.candidate.as_script
    assert [s.id for s in found.candidate.trace.sends] == ["r3", "r17", "r39"]


def test_failure_that_no_script_shows_is_minimised_by_replays() -> None:
    async def attempt(found: Reduction) -> bool | None:
        return not found.as_script and "r39" in {s.id for s in found.trace.sends}

    found = minimised(attempt, candidate(40), REQUESTS, scripts=True)
    assert not found.candidate.as_script
    assert found.candidate.requests == 1


def test_script_and_replay_of_the_same_requests_have_decisions_of_their_own() -> None:
    assert candidate(2).key() != replace(candidate(2), as_script=True).key()


@pytest.mark.parametrize(("severity", "can"), [("engine_death", True), ("request", True), ("hang", False)])
def test_script_cannot_see_a_hang(severity: str, can: bool) -> None:
    assert can_try(ExpectedFailure("x", severity=severity)) is can


@pytest.mark.parametrize(
    ("name", "can"),
    [("schema_violated", True), ("schema_control_character", True), ("cache_changes_answer", False)],
)
def test_script_sees_only_wrong_answers_that_break_their_schema(name: str, can: bool) -> None:
    assert can_try(ExpectedFailure(name, severity="request")) is can


FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "a",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 9}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    ("embedded", "wrong"), [(["--defect", "schema_ignored"], True), ([], False)], indirect=["embedded"]
)
@pytest.mark.parametrize("stream", [True, False])
def test_script_finds_answers_that_break_their_schema(embedded: str, wrong: bool, stream: bool, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "time time"}], "response_format": FORM, "max_tokens": 200, "n": 2}
    name = store_body(tmp_path / "bodies", orjson.dumps({**body, "stream": stream}))
    sends = tuple(TraceSend(id=f"r{i}", body=name, stream=stream, outcome="wrong_output") for i in range(6))
    whole = trace_of(tmp_path, sends)
    facts = ScriptFacts("x", embedded, deadly=False, check=CHECKS["schema_violated"])
    file = write(Reduction(whole, ("serve",), ()), facts, tmp_path)
    assert len(file.read_text().splitlines()) <= 40
    server = held(tmp_path, "", dead=False)
    server.url = embedded
    found = asyncio.run(run_once(file, server, ExpectedFailure("schema_violated", severity="request")))
    assert found.code == int(wrong), found.output
    assert (found.line or "").startswith("WRONG ANSWER") is wrong, found.output


def held(folder: Path, log: str, *, dead: bool = True) -> Any:
    (folder / "server.log").write_text(log)
    exit_ = SimpleNamespace(done=lambda: dead)

    async def wait_recorded() -> None:
        return

    launched = SimpleNamespace(exit=exit_, wait_recorded=wait_recorded)
    return SimpleNamespace(
        log=folder / "server.log", url="http://127.0.0.1:1", launched=launched, runs=1, alive=not dead
    )


def script(folder: Path, text: str) -> Path:
    file = folder / "repro.py"
    file.write_text(text)
    return file


def test_failure_of_an_earlier_try_on_the_same_server_does_not_count(tmp_path: Path) -> None:
    server = held(tmp_path, OOM_LINE)
    nothing = script(tmp_path, "import sys; sys.exit(1)")
    assert asyncio.run(run_once(nothing, server, OOM)).line is None
    again = script(tmp_path, f"import sys; open({str(server.log)!r}, 'a').write({OOM_LINE!r}); sys.exit(1)")
    assert asyncio.run(run_once(again, server, OOM)).line
    survived = script(tmp_path, f"open({str(server.log)!r}, 'a').write({OOM_LINE!r})")
    assert asyncio.run(run_once(survived, server, OOM)).line is None


def test_script_that_does_not_end_is_stopped_and_its_server_is_not_used_again(tmp_path: Path) -> None:
    endless = script(tmp_path, "import time; time.sleep(60)")
    assert asyncio.run(run_once(endless, held(tmp_path, ""), OOM, 0.3)).code is None


def test_try_by_script_says_that_the_server_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"import sys; open({str(tmp_path / 'server.log')!r}, 'a').write({OOM_LINE!r}); sys.exit(1)"
    monkeypatch.setattr("loadchaos.campaigns.minimise.validate.write", lambda *_: script(tmp_path, text))
    found = asyncio.run(try_script(candidate(1), ScriptFacts("x", "u"), OOM, tmp_path, held(tmp_path, ""), 60.0))
    assert (found.reproduced, found.died, found.fresh) == (True, True, False)


def test_script_looks_for_a_dead_server_until_it_is_dead() -> None:
    text = _script([{"words": 3, "body": {}}], 1, ScriptFacts("x", "http://127.0.0.1:1"), inline=True)
    assert "if BAD and not all(time.sleep(0.5) or alive() for _ in range(6)):" in text


def test_script_has_one_client_for_all_threads() -> None:
    """A client takes some 20 ms to make: a burst of 131 would come over three seconds."""
    text = _script([{"words": 3, "body": {}}] * 131, 1, ScriptFacts("x", "http://127.0.0.1:1"), inline=True)
    assert text.count("httpx.Client(") == 1
    assert "httpx.stream(" not in text
    assert text.count("print(") == text.count('\\n", end="")') == 2, "lines of threads are written whole"


def test_equal_requests_are_counted_and_not_tried_one_by_one(tmp_path: Path) -> None:
    whole, tries = candidate(64, tmp_path, ["a"] * 64), 0

    async def fails(found: Reduction) -> bool:
        nonlocal tries
        tries += 1
        return found.requests >= 41

    assert asyncio.run(reductions.single_requests(whole, fails)).requests == 41
    assert tries < 16


def test_many_requests_are_replaced_by_fewer_longer_ones(tmp_path: Path) -> None:
    whole = candidate(131, tmp_path, ["time " * 16] * 131)

    async def fails(found: Reduction) -> bool:
        words = sum(orjson.loads(found.trace.body_file(s).read_bytes())["messages"][0]["content"].count("time") for s in
                    found.trace.sends)  # fmt: skip
        return found.requests >= 64 and words >= 2000

    found = asyncio.run(reductions.fewer_longer(whole, fails))
    assert found.requests == 66
    assert asyncio.run(reductions.single_requests(found, fails)).requests == 64


def test_blocks_are_left_out_until_too_many_tests_were_in_vain() -> None:
    tests = 0

    async def fails(*_: Sequence[int]) -> bool:
        nonlocal tests
        tests += 1
        return False

    assert asyncio.run(leave_out(range(100), fails, 50, 16)) == list(range(100))
    assert tests == 16
