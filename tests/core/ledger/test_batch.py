import json
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.analysis.figures.requests import RequestStats
from loadchaos.core.ledger import batch
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import BeginRow, EndRow
from loadchaos.core.ledger.writer import Writer
from loadchaos.load import disk_space
from tests.rows import MS


class Disk(NamedTuple):
    """As shutil.disk_usage tells it."""

    total: int
    used: int
    free: int


def request(n: int, **other: Any) -> batch.Pair:
    """A begin and an end row as a worker makes them."""
    rng = random.Random(n)
    due = 10**12 + n * 20 * MS
    sent = due + rng.randrange(3) * MS
    first = sent + rng.randrange(20, 90) * MS
    last = first + rng.randrange(100, 900) * MS
    begin: BeginRow = {
        "row": "begin", "id": f"lc-abc-{n}", "step": n, "phase": 0, "round": 0, "traffic": ("text", "chat")[n % 2],
        "at_ns": sent, "due_ns": due, "conn": 1, "reused": True, "len": 200, "hash": "ab", "tokens": 16,
        "images": 0, "image_tokens": 0, "max_tokens": 8, "behaviour": "plain", "expect": ["ok"], "edge": None, "seed": n,
        "fitted": "", "image_names": [],
    }  # fmt: skip
    end = {
        "row": "end", "id": f"lc-abc-{n}", "step": n, "phase": 0, "traffic": begin["traffic"], "at_ns": last + MS,
        "due_ns": due, "sent_ns": sent, "outcome": "ok", "status": 200, "first_byte_ns": first, "first_token_ns": first,
        "first_answer_ns": None, "last_byte_ns": last, "chunks": 8, "itl_hist": {700 + n % 3: 7}, "largest_gap_ns": n,
        "finish_reason": "length", **({"labels": {"service_tier": "flex"}} if n // 50 % 2 else {}),
        "prompt_tokens": 16, "completion_tokens": 8, "cached_tokens": None,
        "request_id": "chatcmpl-1", "error": None, "error_code": None, "detail": {}, "evidence": [], "bytes_in": 900 + n,
        "bytes_out": 300, "expect": ["ok"], "planned_tokens": 16, "length_mismatch": False, "images": 0, "image_tokens": 0,
        "edge": None, "exact_tokens": None, **other,
    }  # fmt: skip
    return begin, cast("EndRow", end)


def tally(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found, answers = RequestStats(), AnswerFigures()
    for row in sorted(rows, key=lambda r: int(r["at_ns"])):
        if row["row"] == "begin":
            found.on_begin(cast("BeginRow", row))
        else:
            found.on_end(cast("EndRow", row))
            answers.on_end(cast("EndRow", row))
    return {
        "outcomes": found.outcomes,
        "begun": {t: x.begun for t, x in found.traffic.items()},
        "latency": {t: x.figures() for t, x in answers.latency.items()},
        "in_flight": found.in_flight,
        "ok": found.ok_parts(),
        "ended": found.phases[0].ended,
    }


def test_well_rows_give_equal_numbers_in_a_tenth_of_the_space(tmp_path: Path) -> None:
    pairs = [request(n) for n in range(200)]
    assert all(batch.can_fold(*pair) for pair in pairs)
    writer = Writer(tmp_path / "r.jsonl", "t")
    for row in batch.fold_requests(pairs):
        writer.write(row)
    writer.close()
    read = [dict(r) for r in Tail(tmp_path / "r.jsonl").rows() if r["row"] != "header"]
    whole = [dict(row) for pair in pairs for row in pair]
    assert tally(read) == tally(whole)
    assert (tmp_path / "r.jsonl").stat().st_size < sum(len(json.dumps(r)) for r in whole) / 10


def test_well_rows_keep_drafted_tokens_of_the_requests_that_have_them() -> None:
    pairs = [
        request(0, drafted_tokens=9, accepted_tokens=4),
        request(2),
        request(4, drafted_tokens=0, accepted_tokens=0),
    ]
    (well,) = batch.fold_requests(pairs)
    ends = {r["step"]: r for r in batch.unfold_row(well) if r["row"] == "end"}
    assert [ends[n].get("drafted_tokens") for n in (0, 2, 4)] == [9, None, 0]
    assert [ends[n].get("accepted_tokens") for n in (0, 2, 4)] == [4, None, 0]
    (plain,) = batch.fold_requests([request(0), request(2)])
    assert "drafted_tokens" not in plain


def test_tail_resumes_within_a_well_row(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.jsonl", "t")
    for row in batch.fold_requests([request(n) for n in range(0, 10, 2)]):
        writer.write(row)
    tail = Tail(tmp_path / "r.jsonl")
    rows = tail.rows()
    first = [next(rows)["row"] for _ in range(4)]
    rows.close()  # type: ignore[attr-defined]
    assert len(first) + len(list(tail.rows())) == 1 + 10


def test_tail_counts_malformed_well_row_as_bad(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"row": "well", "n": 3}\n{"row": "well"}\n{"row": "phase"}\n')
    tail = Tail(tmp_path / "r.jsonl")
    assert [r["row"] for r in tail.rows()] == ["phase"]
    assert tail.bad == 2


@pytest.mark.parametrize(
    "odd",
    [{"outcome": "stalled"}, {"evidence": ["x"]}, {"error": "x"}, {"detail": {"stale_retry": 1}}, {"edge": 0},
     {"length_mismatch": True}, {"expect": ["rejected"]}, {"exact_tokens": 9}, {"most_tokens": 9}],
)  # fmt: skip
def test_can_fold_rejects_requests_with_remarks(odd: dict[str, Any]) -> None:
    assert not batch.can_fold(*request(1, **odd))


def test_disk_monitor_warns_below_a_twentieth_and_ends_well_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([60, 49, 60, 76, 76])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1000, 0, next(free)))
    watch = disk_space.DiskMonitor(tmp_path)
    seen = [watch.poll(now) for now in (10.0, 11.0, 12.0, 14.0, 16.0, 18.0)]
    assert [s and s["what"] for s in seen] == [None, None, "low", None, "enough", None]


def test_disk_monitor_of_a_large_disk_warns_below_a_gigabyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([2**30 + 1, 2**30 - 1])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(2**44, 0, next(free)))
    watch = disk_space.DiskMonitor(tmp_path)
    assert watch.poll(10.0) is None
    found = watch.poll(20.0)
    assert found is not None
    assert "1,024 MB of disk are free" in found["text"]
