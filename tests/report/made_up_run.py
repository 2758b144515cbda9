"""A made-up finished run with a death, and its verdict."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from loadchaos.analysis.verdict.model import FailureResult, Verdict
from loadchaos.core.histogram import LogHistogram
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.typed_json import from_json, to_json
from tests.rows import S, metrics_row

T0 = 5_000 * S
HOSTILE = "</script><script>alert(1)</script>\x1b[31m<img src=http://evil.example/x onerror=alert(2)>"


def request_rows(i: int, at_ns: int, traffic: str, outcome: str, rng: random.Random) -> list[dict[str, Any]]:
    """Begin row and end row of one request."""
    first = at_ns + rng.randint(20, 400) * 1_000_000
    gaps = LogHistogram()
    for _ in range(20):
        gaps.add(rng.randint(5, 60) * 1_000_000)
    last = first + int(gaps.total)
    ok = outcome == "ok"
    base = {"id": f"0-{i}", "step": i, "phase": 0, "traffic": traffic, "expect": ["ok"], "edge": None}
    begin = {
        "row": "begin", **base, "round": 0, "at_ns": at_ns, "due_ns": at_ns - 1_000_000, "conn": 1, "reused": True,
        "len": 900, "hash": "00", "tokens": 500, "images": 2 if traffic == "images" else 0,
        "image_tokens": 0, "max_tokens": 64, "behaviour": "plain", "seed": i,
    }  # fmt: skip
    end = {
        "row": "end", **base, "at_ns": last, "due_ns": at_ns - 1_000_000, "sent_ns": at_ns, "outcome": outcome,
        "status": 200 if ok else None, "first_byte_ns": first, "first_token_ns": first if ok else None,
        "first_answer_ns": first if ok else None, "last_byte_ns": last, "chunks": 21, "itl_hist": gaps.counts,
        "largest_gap_ns": 60_000_000, "finish_reason": "stop" if ok else None, "prompt_tokens": 500,
        "completion_tokens": 21 if ok else None, "cached_tokens": 0, "request_id": f"chatcmpl-{i}",
        "error": None if ok else HOSTILE, "error_code": None, "detail": {}, "evidence": [], "bytes_in": 3000,
        "bytes_out": 900, "planned_tokens": 500, "length_mismatch": False, "images": begin["images"],
        "image_tokens": 0,
    }  # fmt: skip
    return [begin, end]


def events(seconds: int, death_s: int) -> list[dict[str, Any]]:
    """Rows of events.jsonl: begin, states, attacks, end."""
    rows: list[dict[str, Any]] = [
        {"row": "run", "at_ns": T0 - 2 * S, "what": "begin", "profile": "mtp_mm", "argv": ["loadchaos"], "seed": 7,
         "target": {"kind": "embedded", "url": "http://127.0.0.1:8000"}, "version": "0.1.0",
         "terms": {"profile": "mtp_mm", "slo": {"ttft": 0.3}}},
        {"row": "preflight", "at_ns": T0 - S, "name": "healthy", "ok": True, "text": "/health answers 200"},
        {"row": "state", "at_ns": T0 - S, "replica": "a", "engine": None, "from": "starting", "to": "healthy",
         "signs": ["/health 200"], "since_ns": None, "noticed_after_s": None},
        {"row": "run", "at_ns": T0, "what": "load_begin"},
    ]  # fmt: skip
    for n, t in enumerate(range(2, death_s, 4)):
        attack = {"row": "attack", "attack": "reset_mm_cache", "n": n, "replica": "a", "text": "", "effects": []}
        rows.append({**attack, "at_ns": T0 + t * S, "what": "begin", "ok": None, "status": None, "took_ns": None})
        rows.append({**attack, "at_ns": T0 + t * S + S // 5, "what": "end", "ok": True, "status": 200, "took_ns": 5})
    rows += [
        {
            "row": "state",
            "at_ns": T0 + death_s * S,
            "replica": "a",
            "engine": None,
            "from": "healthy",
            "to": "dead",
            "signs": ["the engine core's process is gone", HOSTILE],
            "since_ns": None,
            "noticed_after_s": 0.4,
        },
        {"row": "run", "at_ns": T0 + seconds * S, "what": "load_end"},
        {"row": "run", "at_ns": T0 + (seconds + 1) * S, "what": "end"},
    ]
    return rows


def metrics(seconds: int, death_s: int) -> list[dict[str, Any]]:
    """One metrics row per second until the server is dead."""
    rng = random.Random(3)
    rows = []
    for t in range(min(seconds, death_s)):
        values = {
            "requests_running": 40 + rng.randint(0, 20),
            "requests_waiting": rng.randint(0, 9),
            "kv_usage_ratio": min(1, t / seconds + rng.random() / 10),
        }
        row = metrics_row(T0 / S + t, values, replica="a", generation_tokens_total=900 * t, preemptions_total=0)
        rows.append({**row, "took_ns": 1})
    return rows


def requests(seconds: int, death_s: int, per_s: int, worker: int = 0, workers: int = 1) -> list[dict[str, Any]]:
    """Rows of one worker: answers, then resets, then misses.

    Two requests are left without an end.
    """
    rng = random.Random(worker)
    rows: list[dict[str, Any]] = [{"row": "load", "at_ns": T0, "what": "begin"}]
    for i in range(worker, seconds * per_s, workers):
        at = T0 + i * S // per_s
        traffic = "images" if i % 3 else "text"
        if at > T0 + (death_s + 3) * S:
            rows.append(
                {"row": "missed", "at_ns": at, "traffic": traffic, "phase": 0, "why": "server_down", "count": 3}
            )
            continue
        dead = at > T0 + (death_s - 1) * S
        pair = request_rows(i, at, traffic, "reset" if dead else "ok", rng)
        rows += pair[:1] if at > T0 + (death_s + 2.9) * S else pair
    for q in range(seconds * 4):
        alive = q < death_s * 4
        rows.append(
            {
                "row": "heartbeat",
                "at_ns": T0 + q * S // 4,
                "in_flight": 10 if alive else 0,
                "tokens": 200 if alive else 0,
                "bytes": 4000,
                "oldest_silence_ns": S // 3,
                "lag_ns": 2_000_000,
                "users": 30,
                "begun": 0,
                "ended": 0,
                "cpu_share": 0.2,
            }
        )
    rows.sort(key=lambda r: r["at_ns"])
    return [*rows, {"row": "load", "at_ns": T0 + seconds * S, "what": "end", "why": "done"}]


def all_rows(
    seconds: int = 40, death_s: int = 30, per_s: int = 20, workers: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Rows of a whole run by file name."""
    files = {"events.jsonl": events(seconds, death_s), "metrics.jsonl": metrics(seconds, death_s)}
    for w in range(workers):
        files[f"requests-{w}.jsonl"] = requests(seconds, death_s, per_s, w, workers)
    return files


def write_run(path: Path, **shape: int) -> RunFolder:
    """Write a run folder with those rows and a server.log."""
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    # The clock of the headers is the run's: on a machine that started less than T0 ago its samples would lie in the
    # future, and VictoriaMetrics leaves those out of what it exports.
    with mock.patch("time.monotonic_ns", return_value=T0 + 60 * S):
        for name, rows in all_rows(**shape).items():
            writer = Writer(path / name, "test")
            for row in rows:
                writer.write(row)
            writer.close()
    index = Writer(folder.server_index, "test")
    offset = 0
    with folder.server_log.open("wb") as log:
        for n in range(120):
            text = DEATH_LINE if n == 100 else f"INFO {n} all is well {HOSTILE if n == 99 else ''}"
            line = text.encode() + b"\n"
            at = T0 + shape.get("death_s", 30) * S - (100 - n) * S // 10
            index.write({"row": "lines", "at_ns": at, "offset": offset, "bytes": len(line), "source": "server.log"})
            log.write(line)
            offset += len(line)
    index.close()
    return folder


def counted_by_hand(folder: RunFolder) -> Counter[tuple[str, str]]:
    """Requests of a run by traffic and outcome, counted without a fold."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in Reader(folder).new(final=True):
        if row["row"] == "begin":
            counts[row["traffic"], "unfinished"] += 1
        elif row["row"] == "end":
            counts[row["traffic"], row["outcome"]] += 1
            counts[row["traffic"], "unfinished"] -= 1
        elif row["row"] == "missed":
            counts[row["traffic"], "missed"] += row["count"]
    return +counts


DEATH_LINE = "(EngineCore pid=7) AssertionError: Encoder cache miss for 9f86d081884c7d65."


def make_verdict(**changes: Any) -> Verdict:
    """Verdict of that run, with other values of some keys of verdict.json."""
    return Verdict.from_json({**_VERDICT, **changes})


BY_ENDPOINT: dict[str, Any] = {
    "chat": {
        "traffic": ["a", "b"],
        "outcomes": {"ok": 90, "timeout": 10},
        "latency": {
            "ttft_s": {"p50": 0.1, "p99": 0.2, "n": 300},
            "itl_s": {"p50": 0.01, "p99": 0.02, "n": 300},
            "e2e_s": {"p50": 1.0, "p99": 2.0, "n": 300},
        },
    },
    "embeddings": {
        "traffic": ["c"],
        "outcomes": {"ok": 50},
        "latency": {"e2e_s": {"p50": 0.05, "p99": 0.06, "n": 300}},
    },
}
"""Of verdict.json: a chat endpoint with two kinds of traffic, and one that makes no tokens."""


def with_failure(verdict: Verdict, n: int, **changes: Any) -> Verdict:
    """The verdict with other values of keys of its failure `n`."""
    failures = [*verdict.failures]
    failures[n] = from_json(FailureResult, {**to_json(failures[n]), **changes})
    return replace(verdict, failures=tuple(failures))


_VERDICT: dict[str, Any] = {
    "schema": 1,
    "profile": "mtp_mm",
    "verdict": "fail",
    "exit_code": 1,
    "started": "2026-11-21T14:00:00+00:00",
    "ended": "2026-11-21T14:01:00+00:00",
    "target": {"kind": "embedded", "dialect": "vllm", "version": "0.18.0", "url": "http://127.0.0.1:8000"},
    "outcomes": {"ok": 580, "reset": 78, "missed": 402, "unfinished": 2},
    "by_traffic": {
        "images": {"ok": 386, "reset": 52, "missed": 268},
        "text": {"ok": 194, "reset": 26, "missed": 134},
    },
    "failures": [
        {
            "id": "connection_reset",
            "severity": "request",
            "title": "Connections were cut",
            "count": 78,
            "first_seen": "2026-11-21T14:00:31+00:00",
            "first_seen_s": 31.0,
            "attribution": "server",
            "known": [],
            "remedy": "",
            "evidence": {"source": "requests-0.jsonl", "line": 900, "text": HOSTILE},
            "incident": None,
        },
        {
            "id": "encoder_cache_miss",
            "severity": "engine_death",
            "title": "The drafter asked for an encoder output that was already freed",
            "count": 1,
            "first_seen": "2026-11-21T14:00:30.400+00:00",
            "first_seen_s": 30.4,
            "attribution": "server",
            "known": ["vllm-project/vllm#38551"],
            "incidents": ["incidents/001-encoder_cache_miss"],
            "in_flight_at_death": 76,
            "lost_requests": 76,
            "remedy": "vLLM 0.27.1 or later; --no-async-scheduling helps against one of the three mechanisms only",
            "evidence": {"source": "server.log", "line": 101, "text": DEATH_LINE},
            "incident": "incidents/001-encoder_cache_miss",
        },
    ],
    "states": [
        {
            "replica": "a",
            "state": "healthy",
            "at": "2026-11-21T14:00:00+00:00",
            "signs": ["/health 200"],
            "noticed_after_s": None,
        },
        {
            "replica": "a",
            "state": "dead",
            "at": "2026-11-21T14:00:30.400+00:00",
            "signs": ["the engine core's process is gone"],
            "noticed_after_s": 0.4,
        },
    ],
    "latency": {
        t: {
            "ttft_s": {"p50": 0.21, "p90": 0.36, "p99": 0.4, "n": 386},
            "itl_s": {"p50": 0.03, "p90": 0.055, "p99": 0.06, "n": 7720},
            "e2e_s": {"p50": 0.9, "p90": 1.1, "p99": 1.3, "n": 386},
        }
        for t in ("images", "text")
    },
    "expectations": [
        {"name": "engine_deaths == 0", "expected": "0", "actual": "1", "verdict": "fail"},
        {"name": "hangs == 0", "expected": "0", "actual": "0", "verdict": "pass"},
    ],
    "checks": [{"name": "load delivered", "expected": ">= 95 %", "actual": "62 %", "verdict": "unknown"}],
    "worth": "1 engine death in 386 exposures",
    "generator": {"limited": False, "lag_p99_s": 0.004},
}
