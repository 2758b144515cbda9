import pytest

from tests.analysis.conftest import History


@pytest.mark.parametrize("outcome", ["stalled", "timeout"])
def test_latency_counts_a_timeout_as_its_wait(outcome: str, history: History) -> None:
    history.begin().answer(history.send(450), took_s=0.5)
    history.answer(history.send(50), outcome, took_s=30)
    verdict = history.work(5).end().verdict(expect=["ttft_p99 <= 1s", "ttft_p50 <= 1s"])
    latency = verdict["latency"]["text"]
    assert latency["lower_bounds"] == 50
    assert latency["ttft_s"]["n"] == latency["e2e_s"]["n"] == 550
    assert latency["e2e_s"]["p99"] == pytest.approx(30, rel=0.05)
    assert latency["ttft_s"]["p99"] == pytest.approx(30, rel=0.05)
    assert latency["ttft_s"]["p50"] == pytest.approx(0.1, rel=0.05)
    p99, p50 = verdict["expectations"]
    assert (p99["verdict"], p50["verdict"]) == ("fail", "pass")
    assert "lower bound: 50 timed out" in p99["actual"]
