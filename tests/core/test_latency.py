from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.series import Series
from loadchaos.core.histogram import LogHistogram, bucket, bucket_middle
from loadchaos.core.latency import INTERRUPTED, LatencyHistograms, LatencySample, e2e_ns, sample_of, tpot_ns, ttft_ns
from loadchaos.core.model import OUTCOMES
from tests.rows import MS, S

TPOT_NS = 7 * bucket_middle(bucket(20 * MS)) / 14


def end(outcome: str = "ok", **other: Any) -> dict[str, Any]:
    """Make an end row: due at 10 s, first token at 10.1 s, end at 12 s."""
    row = {
        "row": "end", "id": "r", "traffic": "text", "outcome": outcome, "at_ns": 12 * S, "due_ns": 10 * S,
        "sent_ns": 10 * S + MS, "first_token_ns": 10 * S + 100 * MS, "first_answer_ns": None,
        "last_byte_ns": 11 * S, "itl_hist": {bucket(20 * MS): 7}, "completion_tokens": 15, "detail": {},
    }  # fmt: skip
    return {**row, **other}


GAPS, NO_GAPS = LogHistogram({bucket(20 * MS): 7}), LogHistogram()

ROWS = st.lists(
    st.builds(
        end,
        outcome=st.sampled_from(OUTCOMES),
        first_token_ns=st.none() | st.integers(10 * S, 12 * S),
        first_answer_ns=st.none() | st.integers(10 * S, 12 * S),
        last_byte_ns=st.none() | st.integers(10 * S, 12 * S),
        detail=st.sampled_from([{}, {"slowed": True}]),
    ),
    max_size=20,
)


def test_latency_of_an_answer_counts_from_due() -> None:
    assert sample_of(end()) == LatencySample(100 * MS, None, S, GAPS, tpot_ns=TPOT_NS)
    assert sample_of(end(first_answer_ns=10 * S + 5)) == LatencySample(100 * MS, 5, S, GAPS, tpot_ns=TPOT_NS)


def test_latency_without_due_counts_from_sent() -> None:
    row = end(due_ns=None)
    assert (ttft_ns(row), e2e_ns(row)) == (99 * MS, S - MS)


@pytest.mark.parametrize("outcome", ["timeout", "stalled"])
def test_latency_of_a_timeout_is_a_lower_bound(outcome: str) -> None:
    no_token = end(outcome, first_token_ns=None, itl_hist={})
    assert sample_of(no_token) == LatencySample(2 * S, None, 2 * S, NO_GAPS, lower_bound=True)
    assert sample_of(end(outcome)) == LatencySample(100 * MS, None, 2 * S, GAPS, lower_bound=True)


@pytest.mark.parametrize("outcome", sorted(INTERRUPTED - {"timeout", "stalled"}))
def test_latency_of_an_interrupted_answer_is_its_gaps(outcome: str) -> None:
    assert sample_of(end(outcome)) == LatencySample(None, None, None, GAPS)
    assert sample_of(end(outcome, itl_hist={})) is None


@pytest.mark.parametrize("outcome", sorted(set(OUTCOMES) - INTERRUPTED - {"ok"}))
def test_latency_of_any_other_outcome_is_not_counted(outcome: str) -> None:
    assert sample_of(end(outcome)) is None


def test_latency_of_a_client_slow_on_purpose_is_not_counted() -> None:
    assert sample_of(end(detail={"slowed": True})) is None
    assert sample_of(end("timeout", detail={"slowed": True})) is None


def test_latency_histograms_merge_exactly() -> None:
    parts = [LatencyHistograms(), LatencyHistograms()]
    whole = LatencyHistograms()
    for n, row in enumerate([end(), end("timeout"), end(last_byte_ns=13 * S)]):
        parts[n % 2].on_end(row)
        whole.on_end(row)
    parts[0].merge(parts[1])
    assert parts[0].figures() == whole.figures()
    assert whole.figures().lower_bounds == 1


@given(rows=ROWS)
def test_latency_is_equal_in_verdict_and_reports(rows: list[dict[str, Any]]) -> None:
    totals, series, live = AnswerFigures(), Series(), LiveFigures()
    for row in rows:
        totals.fold(row)
        series.fold(row)
        live.fold(row)
    over_time = LatencyHistograms()
    for one in (stretch for _, stretch in series.points() if stretch is not None):
        over_time.merge(one.latency)
    nothing = LatencyHistograms()
    expected = totals.latency.get("text", nothing).figures()
    assert over_time.figures() == expected
    assert live.figures.answers.latency.get("text", nothing).figures() == expected


def test_latency_counts_from_due_and_neither_from_sent_nor_from_the_first_byte() -> None:
    """A request that was due at 10 s, left at 13 s, and had its headers at 14 s and its first token at 16 s."""
    row = end(sent_ns=13 * S, first_byte_ns=14 * S, first_token_ns=16 * S, first_answer_ns=17 * S, last_byte_ns=20 * S)
    assert sample_of(row) == LatencySample(6 * S, 7 * S, 10 * S, GAPS, tpot_ns=TPOT_NS)
    assert (ttft_ns(row), e2e_ns(row)) == (6 * S, 10 * S)
    late = end("timeout", sent_ns=13 * S, first_byte_ns=None, first_token_ns=None, at_ns=30 * S, itl_hist={})
    assert sample_of(late) == LatencySample(20 * S, None, 20 * S, NO_GAPS, lower_bound=True)


def test_latency_histogram_merge_adds_to_equal_buckets() -> None:
    first, second = LogHistogram({5: 3, 7: 1}), LogHistogram({5: 4, 9: 2})
    first.merge(second)
    first.merge(cast("Any", {"5": 1}))  # as JSON has it
    assert (first.counts, first.n) == ({5: 8, 7: 1, 9: 2}, 11)
    assert first.total == pytest.approx(LogHistogram({5: 8, 7: 1, 9: 2}).total)
    assert second.counts == {5: 4, 9: 2}


def test_tpot_counts_tokens_as_the_server_counts_them() -> None:
    assert tpot_ns(end()) == pytest.approx(10 * MS, rel=0.01)  # two tokens in a chunk, as with speculation
    assert tpot_ns(end(completion_tokens=None, chunks=8)) == pytest.approx(20 * MS, rel=0.01)
    assert tpot_ns(end(completion_tokens=1)) is None
    assert tpot_ns(end(itl_hist={})) is None


def test_statistics_of_a_histogram_have_names() -> None:
    histogram = LogHistogram()
    for value in range(1, 101):
        histogram.add(value * MS)
    found = {name: histogram.statistic(name) for name in ("mean", "p50", "p95", "max")}
    assert found == pytest.approx({"mean": 50.5 * MS, "p50": 50 * MS, "p95": 95 * MS, "max": 100 * MS}, rel=0.01)
    assert LogHistogram().statistic("max") is None


@given(st.floats(0, 1e18) | st.integers(0, 1 << 62))
def test_histogram_counts_a_value_in_its_bucket(value: float) -> None:
    counted = LogHistogram()
    counted.add(value)
    assert counted.counts == {bucket(value): 1}
