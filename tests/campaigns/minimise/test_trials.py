import asyncio
from pathlib import Path

import pytest

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise import trials
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.trials import Trials
from loadchaos.campaigns.replay.one_try import TryResult
from loadchaos.campaigns.replay.refusals import doubt
from tests.campaigns.minimise.pools import Held, Pool, plan_of
from tests.campaigns.traces import ONE_REQUEST


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


def shared(tmp_path: Path) -> tuple[Trials, Pool]:
    found, pool = Trials(plan_of("serve"), Campaign(tmp_path, lambda _: None), "vllm"), Pool()
    pool.serve(found)
    return found, pool


def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fresh: bool) -> int:
    found, pool = shared(tmp_path)
    found.fresh = fresh

    async def run_try(_: object, __: object, ___: object, held: Held) -> TryResult:
        held.runs += 1
        return survived(4)

    monkeypatch.setattr(trials, "run_try", run_try)
    for _ in range(3):
        assert asyncio.run(found.attempt(Reduction(ONE_REQUEST, ("serve",), ()))) is False
    return pool.started


def test_tries_share_a_server_unless_each_needs_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(tmp_path, monkeypatch, fresh=False) == 1
    assert tried(tmp_path, monkeypatch, fresh=True) == 3


@pytest.mark.parametrize("fails_fresh", [True, False])
def test_failure_of_a_script_counts_on_a_fresh_server_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_fresh: bool
) -> None:
    """A reset between two tries may be what makes the second one fail."""
    found, pool = shared(tmp_path)
    found.ready_s, found.version = 60.0, "1"

    async def try_script(*_: object) -> TryResult:
        assert pool.held is not None
        fresh = pool.held.runs == 0
        pool.held.runs += 1
        fails = fails_fresh or not fresh
        return TryResult(fails, "x" if fails else None, False, 4, 1.0, "run", fresh=fresh, died=fails)

    monkeypatch.setattr(trials, "try_script", try_script)
    whole = Reduction(ONE_REQUEST, ("serve",), (), as_script=True)
    asyncio.run(pool.healthy_server(plan_of().server)).runs = 1
    assert asyncio.run(found.attempt(whole)) is fails_fresh
    assert pool.started == 2


def test_server_that_starts_quickly_is_fresh_for_each_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, pool = shared(tmp_path)
    found.ready_s, found.version = 0.5, "1"

    async def try_script(*_: object) -> TryResult:
        assert pool.held is not None
        pool.held.runs += 1
        return survived(4)

    monkeypatch.setattr(trials, "try_script", try_script)
    for _ in range(3):
        assert asyncio.run(found.attempt(Reduction(ONE_REQUEST, ("serve",), (), as_script=True))) is False
    assert pool.started == 3
