from typing import Any

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.model import Terms
from loadchaos.report.performance import warm_up_text
from tests.rows import Row, S, answered, judged

SLOW, FAST = 5 * S, S // 5


def request(n: int, due_ns: int, took_ns: int, *, phase: int = 0, outcome: str = "ok") -> list[Row]:
    return answered(due_ns, n, took_ns=took_ns, phase=phase, outcome=outcome, prompt_tokens=10, completion_tokens=10)


def verdict(rows: list[Any], expect: tuple[str, ...] = ("ttft_p50 <= 1s", "goodput >= 100%"), **warm_up: Any) -> Any:
    return judged(Terms("p", expect=expect, slo={"ttft": 1.0}, warm_up=warm_up), rows)


def cold_and_warm(*, phase: int = 0) -> list[Any]:
    """Ten slow requests, then thirty fast ones ten seconds later."""
    rows = [row for n in range(10) for row in request(n, 100 * S + n * S // 10, SLOW)]
    return rows + [row for n in range(30) for row in request(50 + n, 110 * S + n * S // 10, FAST, phase=phase)]


def test_warm_up_phase_is_left_out_of_all_figures() -> None:
    found = verdict(cold_and_warm(phase=1), phases=[0])
    assert [e["verdict"] for e in found["expectations"]] == ["pass", "pass"]
    assert found["latency_all"]["e2e_s"]["n"] == 30
    assert found["latency_all"]["e2e_s"]["max"] == pytest.approx(0.2, rel=0.01)
    assert (found["throughput"]["requests"], found["throughput"]["output_tokens"]) == (30, 300)
    assert found["throughput"]["seconds"] == pytest.approx(3.1)
    assert (found["goodput"]["due"], found["goodput"]["good"]) == (30, 30)
    assert found["outcomes"] == {"ok": 40}
    assert found["warm_up"] == {"phases": [0], "requests": 10}
    assert warm_up_text(Verdict.from_json(found)) == "10 requests left out of these figures; failures in it count"


def test_warm_up_of_the_first_seconds_counts_from_the_first_request() -> None:
    found = verdict(cold_and_warm(), seconds=5.0)
    assert found["latency_all"]["e2e_s"]["n"] == 30
    assert [e["verdict"] for e in found["expectations"]] == ["pass", "pass"]


def test_requests_count_without_a_warm_up() -> None:
    found = verdict(cold_and_warm())
    assert found["latency_all"]["e2e_s"]["n"] == 40
    assert found["expectations"][1]["verdict"] == "fail"
    assert "warm_up" not in found
    assert warm_up_text(Verdict.from_json(found)) == ""


def test_failure_in_the_warm_up_counts() -> None:
    rows = [*request(0, 100 * S, FAST, outcome="http_error"), *cold_and_warm(phase=1)]
    found = verdict(rows, expect=("error_rate == 0%", "ok_share >= 100%"), phases=[0])
    assert found["outcomes"]["http_error"] == 1
    assert [e["verdict"] for e in found["expectations"]] == ["fail", "fail"]


def test_missed_requests_of_the_warm_up_are_left_out_of_goodput() -> None:
    missed = {"row": "missed", "at_ns": 100 * S, "traffic": "text", "phase": 0, "why": "no_slot", "count": 9}
    found = verdict([missed, *cold_and_warm(phase=1)], phases=[0])
    assert found["goodput"]["due"] == 30
    assert found["outcomes"]["missed"] == 9
