import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.model import OUTCOMES
from loadchaos.report.metrics import metric_table
from loadchaos.report.metrics.exporter import LiveCollector, _PageBody, families
from loadchaos.server.dialects import DIALECTS

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def totals(page: list[Metric]) -> dict[tuple[str, ...], float]:
    return {(s.name, *(v for k, v in sorted(s.labels.items()) if k != "run")): s.value for f in page for s in f.samples}


def fold_of(folder: RunFolder, *, restarted: bool = False) -> LiveFigures:
    fold = LiveFigures()
    reader = Reader(folder)
    for n, row in enumerate(reader.new(final=True)):
        if restarted and n == 500:  # the follower died here: its successor reads everything anew
            return fold_of(folder)
        fold.fold(row)
    fold.finish()
    return fold


def by_hand(folder: RunFolder) -> dict[str, Counter[str]]:
    """Totals of the ledger by traffic, counted without the fold."""
    sums: dict[str, Counter[str]] = {}
    for row in Reader(folder).new(final=True):
        one = sums.setdefault(str(row.get("traffic")), Counter())
        if row["row"] == "begin":
            one.update(due=1, sent=1, images=row["images"], tokens=row["tokens"] or 0)
        elif row["row"] == "end":
            one.update(received=row["completion_tokens"] or 0, counted=row["prompt_tokens"] or 0)
            one.update(answered=row["images"] if row["outcome"] == "ok" else 0)
        elif row["row"] == "missed":
            one.update(due=row["count"])
    return sums


def test_metrics_page_is_current() -> None:
    assert DOCS.read_text() == metric_table.markdown(), "docs/metrics.md is stale: make docs"


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("restarted", [False, True])
def test_arrivals_tokens_and_images_equal_the_ledger(
    make_run: Callable[..., RunFolder], tmp_path: Path, workers: int, restarted: bool
) -> None:
    folder = make_run(tmp_path / "run", workers=workers)
    page = totals(families(fold_of(folder, restarted=restarted), "r"))
    for traffic, sums in by_hand(folder).items():
        if traffic == "None":
            continue
        for name, key in (
            ("arrivals_due", "due"),
            ("arrivals_sent", "sent"),
            ("images_sent", "images"),
            ("prompt_tokens_sent", "tokens"),
            ("completion_tokens", "received"),
            ("prompt_tokens_counted", "counted"),
            ("images_answered", "answered"),
        ):
            assert page[f"loadchaos_{name}_total", traffic] == sums[key], name
    assert page["loadchaos_workers",] == workers
    assert page["loadchaos_arrivals_missed_total", "server_down"] == sum(
        v for k, v in page.items() if k[0] == "loadchaos_requests_total" and "missed" in k
    )


def test_exporter_can_export_every_metric_of_the_table(run_folder: RunFolder) -> None:
    page = {f.name for f in families(full_fold(traffics=1, replicas=1), "r")}
    assert {s.name for s in metric_table.METRICS} <= page
    assert {n for n in page if not n.startswith("loadchaos_server_")} <= {s.name for s in metric_table.METRICS}


def test_server_metric_names_are_those_of_the_dialects() -> None:
    assert set(metric_table.SERVER) == {m.ours for d in DIALECTS.values() for m in d.metrics}


@pytest.mark.parametrize(("traffics", "replicas"), [(1, 1), (12, 2), (40, 20)])
def test_page_stays_within_its_series_limits(traffics: int, replicas: int) -> None:
    page = families(full_fold(traffics, replicas), "r")
    of_traffic: Counter[str] = Counter(s.labels.get("traffic", "") for f in page for s in f.samples)
    beside = of_traffic.pop("")
    assert max(of_traffic.values()) <= metric_table.SERIES_A_TRAFFIC
    assert len(of_traffic) <= metric_table.TRAFFICS + 1
    assert beside <= metric_table.SERIES_BESIDE
    assert len(totals(page)) == sum(len(f.samples) for f in page), "a series came twice"


def test_series_summed_as_other_keep_their_totals() -> None:
    page = totals(families(full_fold(traffics=3, replicas=20), "r"))
    states = {k: v for k, v in page.items() if k[0] == "loadchaos_server_state" and "healthy" in k}
    assert sum(states.values()) == 20
    assert sum(v for k, v in page.items() if k[0] == "loadchaos_attacks_total") == 30
    assert sum(v for k, v in page.items() if k[0] == "loadchaos_failures_total") == 60
    running = [v for k, v in page.items() if k[0] == "loadchaos_server_requests_running"]
    assert sum(running) == 20


def test_labels_are_short_ids() -> None:
    for family in families(full_fold(2, 2), "r"):
        for sample in family.samples:
            assert all(len(v) <= 80 and "\n" not in v for v in sample.labels.values()), sample


def test_exporter_waits_for_one_more_scrape_if_scraped() -> None:
    collector = LiveCollector(LiveFigures())
    assert not collector.wait_for_scrape(5)
    collector.sent(time.monotonic())
    assert not collector.wait_for_scrape(5), "one look is no scraper"
    collector.sent(time.monotonic())
    scraper = threading.Timer(0.05, lambda: collector.sent(time.monotonic()))
    scraper.start()
    assert collector.wait_for_scrape(30)
    scraper.join()


def test_page_requested_before_the_end_is_not_the_last() -> None:
    collector = LiveCollector(LiveFigures())
    began_s = time.monotonic()
    collector.sent(began_s)
    collector.sent(began_s)
    scraper = threading.Timer(0.05, lambda: collector.sent(began_s))
    scraper.start()
    assert not collector.wait_for_scrape(0.5)
    scraper.join()


def test_scrape_counts_only_if_read_completely() -> None:
    counted: list[str] = []
    cut_off = iter(_PageBody([b"a", b"b"], lambda: counted.append("sent")))
    assert next(cut_off) == b"a"
    del cut_off
    assert counted == []
    assert b"".join(_PageBody([b"a", b"b"], lambda: counted.append("sent"))) == b"ab"
    assert counted == ["sent"]


def session_rows(n: int, end: str | None, traffic: str = "t0", **end_fields: Any) -> list[dict[str, Any]]:
    """Rows of a session of two seconds with four turns; without `end` it is open."""
    base = {"row": "conversation", "id": f"{traffic}-s{n}", "traffic": traffic, "phase": 0, "due_ns": 1}
    ended = {
        "what": "end",
        "end": end,
        "at_ns": 2 * 10**9 + 1,
        "turns": 3,
        "tool_calls": 2,
        "bad_calls": 1,
        **end_fields,
    }
    return [{**base, "what": "begin", "at_ns": 1}, *([{**base, **ended}] if end else [])]


def test_session_counters_have_every_end_and_the_times_of_the_verdict() -> None:
    fold = LiveFigures()
    rows = [
        *session_rows(0, "finished"),
        *session_rows(1, "lost", why="timeout", turns_lost=1),
        *session_rows(2, "lost", why="http_error", turns_lost=1),
        *session_rows(3, "cut", turns_cut=1),
        *session_rows(4, None),
        session_rows(5, "finished")[1],  # its begin is not in the ledger
    ]
    for row in rows:
        fold.fold(row)
    page = totals(families(fold, "r"))
    ended = {end: page["loadchaos_sessions_ended_total", end, "t0"] for end in ("finished", "lost", "cut", "left")}
    assert ended == {"finished": 1, "lost": 2, "cut": 1, "left": 0}
    assert page["loadchaos_sessions_begun_total", "t0"] == 5
    turns = {k[1]: v for k, v in page.items() if k[0] == "loadchaos_session_turns_total"}
    assert turns == {"answered": 12, "lost": 2, "cut": 1, "left": 0}
    calls = {k[1]: v for k, v in page.items() if k[0] == "loadchaos_session_tool_calls_total"}
    assert calls == {"ok": 8, "bad": 4}
    assert page["loadchaos_session_e2e_seconds_count", "t0"] == 2  # the finished one, and the timeout as a lower bound
    assert page["loadchaos_session_e2e_seconds_sum", "t0"] == pytest.approx(4)


def test_traffic_without_sessions_has_no_series_of_them(run_folder: RunFolder) -> None:
    assert not [f.name for f in families(fold_of(run_folder), "r") if "session" in f.name]


def full_fold(traffics: int, replicas: int) -> LiveFigures:
    """Run with every kind of event, and more of them than labels."""
    fold = LiveFigures()
    fold.fold(
        {
            "row": "run",
            "what": "begin",
            "profile": "p",
            "version": "1",
            "target": {"kind": "external"},
            "at_ns": 1,
            "terms": {
                "limits": {"first_byte": 1.0, "between_bytes": 1.0, "total": 1.0},
                "slo": {"ttft": 1.0},
                "endpoints": {f"t{t}": "chat" for t in range(traffics)},
            },
        }
    )
    for t in range(traffics):
        fold.fold({"row": "begin", "id": f"{t}", "traffic": f"t{t}", "at_ns": 2, "due_ns": 1, "tokens": 1, "images": 1})
        for outcome in OUTCOMES:
            fold.fold(
                {
                    "row": "end",
                    "id": f"{t}",
                    "traffic": f"t{t}",
                    "outcome": outcome,
                    "at_ns": 9,
                    "due_ns": 1,
                    "finish_reason": f"reason-{outcome}",
                    "labels": {"service_tier": f"tier-{outcome}"},
                    "first_token_ns": 5,
                    "last_byte_ns": 9,
                    "itl_hist": {"3": 1},
                    "request_id": "r",
                }
            )
        for n, end in enumerate(("finished", "lost", "cut", "left", None)):
            for row in session_rows(n, end, traffic=f"t{t}"):
                fold.fold(row)
    for why in ("no_slot", "server_down", "stopped", "worker_lost", "new"):
        fold.fold({"row": "missed", "traffic": "t0", "why": why, "count": 1})
    names = list(metric_table.SERVER)
    for r in range(replicas):
        fold.fold({"row": "state", "replica": f"r{r}", "to": "healthy", "at_ns": 9})
        fold.fold({"row": "metrics", "replica": f"r{r}", "values": dict.fromkeys(names, 1), "at_ns": 9})
        for n, role in enumerate(("api_server", "engine_core", "worker", "other")):
            fold.fold(
                {"row": "process", "replica": f"r{r}", "pid": n + 1, "role": role, "rss_bytes": 5, "what": "seen"}
            )
    for n in range(30):
        fold.fold({"row": "attack", "attack": f"a{n}", "n": n, "what": "begin", "at_ns": 9})
        fold.fold({"row": "attack", "attack": f"a{n}", "n": n, "what": ("end", "skipped")[n % 2], "ok": n % 3 == 0})
    for n in range(60):
        severity = ("request", "degraded", "hang", "engine_death", "startup", "node")[n % 6]
        whose = ("server", "self-inflicted", "injected", "expected")[n % 4]
        fold.fold({"row": "failure", "id": f"f{n}", "severity": severity, "attribution": whose, "count": 1})
        fold.fold({"row": "incident", "n": n, "what": "close", "id": "x", "folder": f"incidents/{n}-x"})
        fold.fold({"row": "gap", "source": f"s{n}", "seconds": 1})
    fold.fold({"row": "heartbeat", "at_ns": 9, "file": "requests-0.jsonl", "users": 1, "lag_ns": 1})
    values = dict.fromkeys(
        (
            "gpu_memory_used_bytes",
            "gpu_memory_free_bytes",
            "gpu_utilisation_ratio",
            "gpu_temperature_c",
            "gpu_power_w",
            "gpu_xids_total",
            "host_memory_available_bytes",
            "host_oom_kills_total",
        ),
        1.0,
    )
    for n in range(8 * replicas):
        fold.fold(
            {"row": "device", "at_ns": 1, "source": "dcgm", "host": f"h{n // 8}", "device": f"gpu{n}", "values": values}
        )
    return fold
