from typing import Any

import pytest

from loadchaos.profile.abort_rule import parse
from loadchaos.run.error_rate_watch import ErrorRateWatch
from tests.rows import S


def end(at_s: float, outcome: str = "http_error", **given: Any) -> dict[str, Any]:
    return {"row": "end", "at_ns": int((100 + at_s) * S), "outcome": outcome, "expect": ["ok"], **given}


def watch(rows: list[dict[str, Any]], rule: str = "error_rate > 50% for 10s") -> str | None:
    it = ErrorRateWatch(parse(rule))
    for row in rows:
        it.fold(row)
    return it.reason()


def test_error_rate_watch_ends_a_load_of_errors() -> None:
    rows = [end(n / 10) for n in range(120)]
    assert watch(rows) == "error_rate > 50% for 10s (100 of 100 requests failed in the last 10 s)"


def test_error_rate_watch_needs_the_whole_time_of_its_rule() -> None:
    assert watch([end(n / 10) for n in range(95)]) is None
    assert watch([end(n) for n in range(10)]) is None


def test_error_rate_watch_needs_ten_requests() -> None:
    assert watch([end(2 * n) for n in range(20)]) is None


def test_error_rate_watch_forgets_errors_of_before() -> None:
    rows = [end(n / 10) for n in range(90)] + [end(9 + n / 10, "ok") for n in range(120)]
    it = ErrorRateWatch(parse("error_rate > 50% for 10s"))
    for row in rows:
        it.fold(row)
        assert it.reason() is None or row["at_ns"] < 115 * S
    assert it.reason() is None


@pytest.mark.parametrize(("rule", "ends"), [("error_rate > 50% for 5s", False), ("error_rate >= 50% for 5s", True)])
def test_error_rate_watch_at_its_limit(rule: str, ends: bool) -> None:
    rows = [end(n / 10, "ok" if n % 2 else "http_error") for n in range(100)]
    assert (watch(rows, rule) is not None) is ends


def test_error_rate_watch_counts_expected_outcomes_and_aborts_as_no_errors() -> None:
    rows = [end(n / 10, "rejected", expect=["ok", "rejected"]) for n in range(150)]
    assert watch(rows) is None
    assert watch([end(n / 10, "aborted") for n in range(150)]) is None


def test_error_rate_watch_moves_on_with_heartbeats() -> None:
    rows: list[dict[str, Any]] = [end(n / 10) for n in range(120)]
    assert watch([*rows, {"row": "heartbeat", "at_ns": 125 * S}]) is None
