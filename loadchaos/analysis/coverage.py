"""Coverage of a server by a workload: features that its ledger shows.

A feature is a text such as `grew:preemptions_total:4`. Counters and gauges give one feature for each power of two (or tenth)
up to their extreme, so that only a new extreme is a new feature. Pairs are events between the same two scrapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations

from loadchaos.analysis.log_templates import masked
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow, HeartbeatRow, MetricsRow, StateRow
from loadchaos.core.model import Row

_MOST_LINES = 400
_TENTHS = (0.95, 0.99)
_DERIVED = {
    "drafts_rejected": ("spec_draft_tokens_total", "spec_accepted_tokens_total"),
    "prefix_cache_misses": ("prefix_cache_queries_total", "prefix_cache_hits_total"),
    "mm_cache_misses": ("mm_cache_queries_total", "mm_cache_hits_total"),
}
"""Counters that are the difference of two."""
_EVENTS = (
    "preemptions_total", "drafts_rejected", "spec_accepted_tokens_total", "prefix_cache_hits_total", "mm_cache_hits_total",
    "mm_cache_misses", "corrupted_requests_total", "admission_rejections_total", "requests_failed_total",
)  # fmt: skip
"""Counters whose growth between two scrapes is an event that forms pairs."""
_HIGH_KV, _LARGE = 0.8, 16


def steps_up_to(name: str, value: float) -> Iterator[str]:
    """Features of a number: one for each power of two up to it."""
    for power in range(int(math.log2(value)) + 1 if value >= 1 else 0):
        yield f"{name}:{power}"


def tenths_up_to(name: str, ratio: float) -> Iterator[str]:
    """Features of a ratio: one for each tenth up to it, then 95 % and 99 %."""
    for edge in (*(n / 10 for n in range(1, 10)), *_TENTHS):
        if ratio >= edge:
            yield f"{name}:{edge:g}"


class WorkloadCoverage(RowFold):
    """Folds the rows of one workload; `features` and `lines` are its result. Log lines from before the load are in
    `idle_lines`: the start of a server and its identification are no feedback.
    """

    def __init__(self) -> None:
        self.features: set[str] = set()
        self.lines: dict[str, None] = {}
        self.idle_lines: dict[str, None] = {}
        self._begun_ns: int | None = None
        self._ended = False
        self._newest: dict[tuple[str, str], dict[str, float]] = {}
        self._grown: dict[tuple[str, str, str], float] = {}
        self._aborted = self._last_aborted = 0
        self._images_in_prefill = False
        self._attacked = False

    def on_run(self, row: Row) -> None:
        if row.get("what") == "load_begin":
            self._begun_ns = int(row["at_ns"])
        self._ended = self._ended or row.get("what") == "end"

    def on_log(self, row: Row) -> None:
        if "kernel" in str(row.get("source")):
            return
        at_ns = row.get("at_ns")
        idle = self._begun_ns is None or (at_ns is not None and at_ns < self._begun_ns)
        into = self.idle_lines if idle else self.lines
        if len(into) < _MOST_LINES:
            into.update(dict.fromkeys(masked(str(row.get("text") or ""))))

    def on_state(self, row: StateRow) -> None:
        if self._begun_ns is not None and row["from"] != row["to"]:
            self.features.add(f"state:{row['from']}>{row['to']}")

    def on_attack(self, row: Row) -> None:
        if row.get("what") == "end":
            self._attacked = self._attacked or bool(row.get("ok"))
            self.features.add(f"attack:{row.get('attack')}:{row.get('status')}")

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self._aborted = int(row.get("aborted") or 0)
        self._images_in_prefill = self._images_in_prefill or int(row.get("images_in_prefill") or 0) > 0

    def on_end(self, row: EndRow) -> None:
        self.features.add(f"outcome:{row.get('outcome')}:{row.get('status')}")
        if row.get("finish_reason"):
            self.features.add(f"finish:{row['finish_reason']}")
        self.features.update(steps_up_to("cached_tokens", float(row.get("cached_tokens") or 0)))

    def on_metrics(self, row: MetricsRow) -> None:
        key = (str(row.get("replica")), str(row.get("engine")))
        values = _with_derived(row.get("values") or {})
        before, self._newest[key] = self._newest.get(key), values
        if before is None or self._begun_ns is None:
            return
        events = self._gauge_features(values)
        for name, value in values.items():
            growth = value - before.get(name, value)
            if growth <= 0 or not (name.endswith("_total") or name in _DERIVED):
                continue
            total = self._grown[*key, name] = self._grown.get((*key, name), 0.0) + growth
            self.features.update(steps_up_to(f"grew:{name}", total))
            if name in _EVENTS:
                events.append(name if growth < _LARGE else f"{name}+")
        events += ["aborts"] if self._aborted > self._last_aborted else []
        events += ["images_in_prefill"] if self._images_in_prefill else []
        events += ["attack"] if self._attacked else []
        self._last_aborted, self._images_in_prefill, self._attacked = self._aborted, False, False
        self.features.update(f"pair:{a}&{b}" for a, b in combinations(sorted(set(events)), 2))

    def _gauge_features(self, values: Mapping[str, float]) -> list[str]:
        events = []
        for name in ("requests_running", "requests_waiting"):
            self.features.update(steps_up_to(name, values.get(name, 0.0)))
        usage = values.get("kv_usage_ratio", 0.0)
        self.features.update(tenths_up_to("kv_usage_ratio", usage))
        if values.get("requests_waiting", 0.0) > 0:
            events.append("queued")
        if usage > _HIGH_KV:
            events.append("kv_high")
        return events


def _with_derived(values: Mapping[str, float]) -> dict[str, float]:
    found = {name: float(value) for name, value in values.items()}
    for name, (whole, part) in _DERIVED.items():
        if whole in found and part in found:
            found[name] = found[whole] - found[part]
    return found
