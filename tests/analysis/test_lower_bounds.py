import pytest

from loadchaos.core.histogram import bucket
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


@pytest.mark.parametrize("outcome", ["stalled", "timeout"])
def test_latency_of_a_stalled_stream_has_its_real_ttft_and_a_bound(outcome: str, history: History) -> None:
    ids = history.begin().answer(history.send(10), took_s=0.5).send(10)
    sent_ns = history.now - 30 * 1_000_000_000
    history.answer(ids, outcome, took_s=30, first_token_ns=sent_ns + 2_000_000_000)
    latency = history.end().verdict()["latency"]["text"]
    assert latency["ttft_s"]["p99"] == pytest.approx(2, rel=0.05)
    assert latency["e2e_s"]["p99"] == pytest.approx(30, rel=0.05)
    assert latency["lower_bounds"] == 10


@pytest.mark.parametrize("outcome", ["reset", "http_error", "aborted", "rejected"])
def test_latency_leaves_out_failed_requests(outcome: str, history: History) -> None:
    history.begin().answer(history.send(10), took_s=0.5)
    history.answer(history.send(10), outcome, took_s=30)
    latency = history.end().verdict()["latency"]["text"]
    assert (latency["e2e_s"]["n"], latency["lower_bounds"]) == (10, 0)


@pytest.mark.parametrize("outcome", ["stalled", "timeout", "reset", "truncated", "stream_error", "aborted"])
def test_latency_holds_the_gaps_of_an_interrupted_answer(outcome: str, history: History) -> None:
    """Six answers that froze for 25 s among 44 of ten gaps of 10 ms each."""
    quick, frozen = bucket(10_000_000), bucket(25_000_000_000)
    history.begin().answer(history.send(44), took_s=0.5, itl_hist={quick: 10})
    history.answer(history.send(6), outcome, took_s=30, itl_hist={quick: 9, frozen: 1})
    latency = history.end().verdict()["latency"]["text"]
    assert latency["itl_s"]["n"] == 500
    assert latency["itl_s"]["p99"] == pytest.approx(25, rel=0.02)
    assert latency["itl_s"]["p50"] == pytest.approx(0.01, rel=0.02)
