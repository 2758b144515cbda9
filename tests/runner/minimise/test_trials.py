"""Tries without the failure that prove nothing, and servers of tries."""

import asyncio
from pathlib import Path

import pytest

from loadchaos.profile.request_trace import RequestTrace, TraceHeader, TraceSend
from loadchaos.runner.minimise import trials
from loadchaos.runner.minimise.candidate import Reduction
from loadchaos.runner.minimise.trials import Trials
from loadchaos.runner.options import Options
from loadchaos.runner.replay.expected import ExpectedFailure
from loadchaos.runner.replay.one_try import TryPlan, TryResult
from loadchaos.runner.replay.refusals import doubt
from loadchaos.runner.replay.servers import ServerChoice
from loadchaos.server.process.launcher import CommandLine


def survived(answered: int, sent: int = 4, *, other: bool = False, failure: str | None = None) -> TryResult:
    outcomes = f"{answered} ok, {sent - answered} rejected"
    return TryResult(False, failure, other, sent, 1.0, "run", fresh=True, answered=answered, outcomes=outcomes)


@pytest.mark.parametrize(
    ("result", "kills", "why"),
    [
        (survived(4), True, ""),
        (survived(2), True, ""),
        (survived(1), True, "the server answers only 1 of 4 requests: 1 ok, 3 rejected"),
        (survived(0), False, ""),  # a refusal may be the cure of a wrong status
        (survived(3, other=True, failure="oom"), True, "the server dies of oom instead"),
        (survived(3, other=True, failure="oom"), False, "the server dies of oom instead"),
        (TryResult(True, "x", False, 4, 1.0, "run", fresh=True), True, ""),
    ],
)
def test_try_that_proves_nothing_is_doubted(result: TryResult, kills: bool, why: str) -> None:
    assert doubt(result, kills=kills) == why


def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fresh: bool) -> int:
    """Number of servers that three tries needed."""
    started = 0

    class Held:
        def __init__(self) -> None:
            self.runs, self.alive = 0, True

        async def reset_caches(self, _: str) -> list[str]:
            return []

    class Pool:
        held: Held | None = None
        started = 0

        async def healthy_server(self, _: object) -> Held:
            nonlocal started
            if self.held is None:
                self.held, started = Held(), started + 1
            return self.held

        async def stop(self) -> None:
            self.held = None

    async def run_try(_: object, __: object, ___: object, held: Held) -> TryResult:
        held.runs += 1
        return survived(4)

    monkeypatch.setattr(trials, "run_try", run_try)
    plan = TryPlan(ServerChoice(CommandLine(("serve",), {}, "http://127.0.0.1:1")), ExpectedFailure("x"), Options(), {})
    found = Trials(plan, tmp_path, "vllm", lambda _: None)
    found._pool, found.fresh = Pool(), fresh  # type: ignore[assignment]
    trace = RequestTrace(TraceHeader(event="trace", version=1), (TraceSend(id="r0"),))
    for _ in range(3):
        assert asyncio.run(found.attempt(Reduction(trace, ("serve",), ()))) is False
    return started


def test_tries_share_a_server_unless_each_needs_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(tmp_path, monkeypatch, fresh=False) == 1
    assert tried(tmp_path, monkeypatch, fresh=True) == 3
