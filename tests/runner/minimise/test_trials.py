"""Tries without the failure that prove nothing."""

import pytest

from loadchaos.runner.minimise.trials import doubt
from loadchaos.runner.replay.one_try import TryResult


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
