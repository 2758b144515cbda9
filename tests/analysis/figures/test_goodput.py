from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from loadchaos.analysis.figures.goodput import GoodputCount
from loadchaos.analysis.figures.requests import Part
from loadchaos.analysis.figures.throughput import Throughput, per_s
from loadchaos.core.goodput import figures_of
from loadchaos.core.histogram import bucket
from loadchaos.core.model import Terms
from tests.rows import MS, Row, S, judged


def limits_missed(row: Any, limits_s: dict[str, float]) -> list[str]:
    return [name for name, seconds in figures_of(row, limits_s).items() if seconds > limits_s[name]]


def end(outcome: str = "ok", **other: Any) -> Any:
    """Due at 10 s, first token after 0.5 s, nine gaps of 20 ms, last byte after 0.7 s."""
    return {
        "row": "end", "id": "r", "traffic": "text", "phase": 0, "outcome": outcome, "at_ns": 10 * S + 700 * MS,
        "due_ns": 10 * S, "sent_ns": 10 * S, "first_token_ns": 10 * S + 500 * MS, "last_byte_ns": 10 * S + 700 * MS,
        "itl_hist": {bucket(20 * MS): 9}, "prompt_tokens": 100, "completion_tokens": 10, "detail": {}, "expect": ["ok"],
        **other,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("limits_s", "missed"),
    [
        ({"ttft": 0.6, "e2e": 0.8, "itl_p99": 0.03, "tpot": 0.03}, []),
        ({"ttft": 0.4}, ["ttft"]),
        ({"e2e": 0.6}, ["e2e"]),
        ({"itl_p99": 0.01}, ["itl_p99"]),
        ({"itl_max": 0.01, "itl_mean": 0.03}, ["itl_max"]),
        ({"tpot": 0.01, "ttft": 0.1}, ["tpot", "ttft"]),
    ],
)
def test_limits_missed_are_named(limits_s: dict[str, float], missed: list[str]) -> None:
    assert limits_missed(end(), limits_s) == missed


def test_limits_of_an_answer_without_a_stream_are_those_of_its_end() -> None:
    whole = end(first_token_ns=None, itl_hist={})
    assert limits_missed(whole, {"ttft": 0.6, "itl_p99": 0.001, "tpot": 0.001}) == ["ttft"]
    embedding = end(first_token_ns=None, itl_hist={}, completion_tokens=None)
    assert limits_missed(embedding, {"ttft": 0.6}) == []


def test_limits_count_from_the_time_a_request_was_due() -> None:
    late = end(due_ns=5 * S)
    assert limits_missed(late, {"ttft": 5.0}) == ["ttft"]


def test_goodput_counts_requests_that_had_to_succeed() -> None:
    count = GoodputCount()
    limits_s = {"ttft": 0.6}
    for row in (end(), end(), end("http_error"), end("timeout"), end(first_token_ns=10 * S + 650 * MS)):
        count.on_end(row, limits_s)
    for row in (end("aborted"), end("unfinished"), end("rejected", expect=["rejected"]), end(detail={"slowed": True})):
        count.on_end(row, limits_s)
    assert count.parts() == {"text": Part(2, 5), "": Part(2, 5)}
    assert count.figures(limits_s, 10.0).over == {"failed": 2, "ttft": 1}
    assert count.figures(limits_s, 10.0).good_per_s == 0.2


def test_goodput_counts_requests_without_a_slot_as_not_good() -> None:
    count = GoodputCount()
    count.on_end(end(), {"ttft": 1.0})
    for why in ("no_slot", "stopped"):
        missed: Any = {"row": "missed", "at_ns": S, "traffic": "text", "phase": 0, "why": why, "count": 3}
        count.on_missed(missed)
    assert count.parts()[""] == Part(1, 4)


def test_goodput_of_good_requests_alone_is_their_throughput() -> None:
    goodput = GoodputCount()
    for _ in range(60):
        goodput.on_end(end(), {"e2e": 9.0})
    shown = goodput.figures({"e2e": 9.0}, 2.80309)
    assert shown.good_per_s == per_s(60, 2.80309) == 21.405


def test_throughput_counts_successful_requests_from_first_to_last() -> None:
    speed = Throughput()
    for n in range(5):
        begin: Any = {"row": "begin", "at_ns": n * S}
        speed.on_begin(begin)
    for row in (end(at_ns=8 * S), end(at_ns=9 * S), end("http_error", at_ns=10 * S)):
        speed.on_end(row)
    found = speed.figures()
    assert (found.seconds, found.requests, found.requests_per_s) == (10.0, 2, 0.2)
    assert (found.input_tokens_per_s, found.output_tokens_per_s) == (20.0, 2.0)
    speed.on_end(end(prompt_tokens=None))
    assert speed.figures().output_tokens is None  # a sum that leaves answers out would be too low


def verdict_of(ends: Iterable[Row], expect: Sequence[str], slo: dict[str, float]) -> Row:
    """Verdict on requests that began together and end so."""
    rows = []
    for n, row in enumerate(ends):
        request = {"id": f"r{n}", "traffic": "text", "phase": 0, "step": n}
        rows += [{"row": "begin", "at_ns": 10 * S, **request}, {**row, **request}]
    return judged(Terms("p", expect=expect, slo=slo), rows)


def test_verdict_fails_by_goodput_though_every_answer_is_ok() -> None:
    ends = [end(first_token_ns=10 * S + (500 if n % 4 else 650) * MS) for n in range(20)]
    found = verdict_of(ends, ["goodput >= 90%", "text.goodput >= 50%"], {"ttft": 0.6})
    assert [e["verdict"] for e in found["expectations"]] == ["fail", "pass"]
    assert found["expectations"][0]["actual"].startswith("75.00%, 15 of 20 requests")
    assert found["goodput"]["over"] == {"ttft": 5}


WITHOUT_TIMES = end(first_token_ns=None, itl_hist={}, completion_tokens=None)


@pytest.mark.parametrize(
    ("row", "slo", "why"),
    [
        (end(), {}, ""),
        (end(folded=True, gaps_ns=180 * MS), {"itl_p99": 0.05}, "without their gaps"),
        (WITHOUT_TIMES, {"ttft": 0.1}, "no answer had"),
        (WITHOUT_TIMES, {"tpot": 0.1}, "no answer had"),
        (WITHOUT_TIMES, {"itl_max": 0.1, "e2e": 5.0}, "no answer had"),
    ],
    ids=["no limits", "gaps of single answers are lost", "no TTFT", "no TPOT", "no gaps"],
)
def test_goodput_is_unknown_where_a_limit_or_its_figure_is_missing(row: Row, slo: dict[str, float], why: str) -> None:
    [found] = verdict_of([row], ["goodput >= 90%"], slo)["expectations"]
    assert found["verdict"] == "unknown"
    assert why in found["actual"]


def late_verdict(late: dict[str, Any]) -> list[Row]:
    """Expectations of 40 requests; `late` changes the times of 10 of them, the others have a TTFT of 0.5 s."""
    found: list[Row] = verdict_of((end(**(late if n < 10 else {})) for n in range(40)), EXPECT, {"ttft": 0.6})[
        "expectations"
    ]
    return found


EXPECT = ["goodput >= 90%", "text.goodput >= 90%", "ttft_p90 <= 600ms", "e2e_p90 <= 800ms", "tpot_p50 <= 100ms"]


def test_limits_that_only_our_own_client_broke_are_unknown() -> None:
    found = late_verdict({"due_ns": 7 * S})  # sent 3 s late
    assert [e["verdict"] for e in found] == ["unknown"] * 4 + ["pass"]
    assert found[0]["actual"] == (
        "75.00%, 30 of 40 requests that had to succeed, but our own client sent late: 100.00% without its delay"
    )
    assert found[2]["actual"].endswith(", but our own client sent late: 501 ms without its delay")


@pytest.mark.parametrize(
    "late",
    [
        {"due_ns": 7 * S, "first_token_ns": 10 * S + 900 * MS, "last_byte_ns": 11 * S},  # the answer is slow, too
        {"due_ns": 7 * S, "detail": {"connect_ns": 3 * S}},  # the server accepted the connection late
        {"first_token_ns": 10 * S + 900 * MS, "last_byte_ns": 11 * S},
    ],
)
def test_limits_that_the_server_broke_fail_though_our_own_client_sent_late(late: dict[str, Any]) -> None:
    assert [e["verdict"] for e in late_verdict(late)] == ["fail"] * 4 + ["pass"]
