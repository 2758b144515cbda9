"""Latencies that mean nothing: chunks that waited for each other on the path, text in a field that nobody reads."""

import pytest

from loadchaos.core.histogram import bucket
from loadchaos.core.latency import LatencyHistograms
from tests.rows import MS, Row, S


def answer(gaps_ms: dict[float, int], chunks: int, *, took_ms: float = 1280, tokens: int = 64, **detail: object) -> Row:
    hist = {str(bucket(ms * MS)): n for ms, n in gaps_ms.items()}
    times = {"due_ns": 1 * S, "sent_ns": 1 * S, "first_token_ns": S + 50 * MS, "last_byte_ns": S + round(took_ms * MS)}
    return {
        "row": "end", "outcome": "ok", "at_ns": 3 * S, **times, "first_answer_ns": S + 60 * MS, "itl_hist": hist,
        "chunks": chunks, "completion_tokens": tokens, "detail": detail,
    }  # fmt: skip


def void(*rows: Row) -> dict[str, str]:
    latency = LatencyHistograms()
    for row in rows:
        latency.on_end(row)
    return dict(latency.figures().void)


@pytest.mark.parametrize(
    ("gaps_ms", "words"),
    [
        ({320: 3}, "chunks arrive in bursts of 16"),
        ({320: 3, 0.02: 9}, "chunks arrive in bursts of 16"),
        ({80: 15}, "chunks arrive in bursts of 4"),
        ({}, "64 chunks arrive at once, at the end of the answer"),
        ({0.05: 8}, "64 chunks arrive at once, at the end of the answer"),
    ],
    ids=["bursts", "bursts in several packets", "short bursts", "whole", "whole in several packets"],
)
def test_chunks_that_arrive_together_void_the_times_between_them(gaps_ms: dict[float, int], words: str) -> None:
    found = void(*[answer(gaps_ms, 64)] * 5)
    assert set(found) == {"itl_s", "tpot_s"}
    assert found["itl_s"].startswith(words)


@pytest.mark.parametrize(
    ("gaps_ms", "chunks"),
    [
        ({20: 63}, 64),
        ({80: 7}, 8),
        ({40: 31}, 32),
        ({0.4: 62, 5000: 1}, 64),
        ({20: 40}, 64),
        ({1.5: 16}, 64),
        ({}, 1),
        ({}, 4),
    ],
    ids=[
        "one token a chunk",
        "eight tokens a chunk",
        "accepted drafts",
        "a fast server that stalls",
        "coalesced",
        "a very fast server",
        "one chunk",
        "few chunks",
    ],
)
def test_chunks_that_arrive_one_by_one_count(gaps_ms: dict[float, int], chunks: int) -> None:
    assert void(*[answer(gaps_ms, chunks)] * 5) == {}


def test_an_answer_that_takes_no_time_may_arrive_at_once() -> None:
    assert void(*[answer({}, 64, took_ms=20)] * 5) == {}


def test_text_that_nobody_reads_makes_the_first_token_unknown() -> None:
    latency = LatencyHistograms()
    for row in [answer({10: 31}, 32, unread_text="inner_voice")] * 5:
        latency.on_end(row)
    figures = latency.figures()
    assert set(figures.void) == {"ttft_s", "itl_s", "tpot_s"}
    assert "`inner_voice`" in figures.void["ttft_s"]
    assert (figures.ttft_s.n, figures.itl_s.n, figures.e2e_s.n) == (0, 0, 5)
    assert figures.ttfo_s is not None
    assert figures.ttfo_s.n == 5
