"""Count mechanisms that the load exercised, and exposures."""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.analysis.incidents.attribution import result_of
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import AttackRow, EndRow, MetricsRow, StateRow
from loadchaos.core.limits import SCRAPE_EVERY_S
from loadchaos.core.model import EXPOSURES, ExposureGoal, Facts
from loadchaos.core.units import NS_PER_S, figure

_STILL_DRAFTING_NS = int(5 * SCRAPE_EVERY_S * NS_PER_S)
_JUST_DRAFTED_NS = int(2 * SCRAPE_EVERY_S * NS_PER_S)
_LEAST_POSITION = 1024
_GAUGES = {"queueing": "requests_waiting"}
_FEWEST_READINGS = 2
"""A gauge proves a mechanism from this number of readings above 0 on: one alone may be the moment of an arrival."""
_COUNTERS = {
    "speculative_decoding": ("spec_drafts_total", "no drafts: spec_drafts_total did not grow"),
    "prefix_caching": ("prefix_cache_queries_total", "prefix_cache_queries_total did not grow"),
    "preemption": ("preemptions_total", "preemptions_total did not grow"),
    "prefix_cache_hits": ("prefix_cache_hits_total", "no hits: prefix_cache_hits_total did not grow"),
    "mm_cache": ("mm_cache_queries_total", "mm_cache_queries_total did not grow"),
}


class Mechanisms(RowFold):
    """Counters of the mechanisms and exposures of a run. `exposures` counts by the names that `exposure:` may use."""

    def __init__(self) -> None:
        self.exposures: dict[str, int] = dict.fromkeys(EXPOSURES, 0)
        self.grown: dict[str, float] = {}
        self.above_zero: dict[str, list[float]] = {}
        self.scrapes = 0
        self.image_requests_ok = 0
        self._replicas: set[str] = set()
        self._newest: dict[tuple[str, str], dict[str, float]] = {}
        self._images_since = 0
        self._drafted_ns: int | None = None

    def on_end(self, row: EndRow) -> None:
        """Fold an end row. Exposures are requests that got a token, and requests that we aborted."""
        self.exposures["aborted_requests"] += row.get("outcome") == "aborted"
        if not row.get("first_token_ns") and row.get("outcome") != "ok":
            return
        self.exposures["requests"] += 1
        if int(row.get("images") or 0) > 0:
            self.exposures["image_requests"] += 1
            self.image_requests_ok += row.get("outcome") == "ok"
            # Drafts are known from scrapes: count now after a scrape with drafts, else with the next.
            if self._drafted_ns is not None and row["at_ns"] - self._drafted_ns <= _JUST_DRAFTED_NS:
                self.exposures["image_requests_while_drafting"] += 1
            else:
                self._images_since += 1
        # a wrong call counts too: the mechanism worked, and its answer was judged
        called = row.get("finish_reason") == "tool_calls" and row.get("outcome") in ("ok", "wrong_output")
        self.exposures["finished_tool_calls"] += called
        begin, end = int(row.get("prompt_tokens") or 0), int(row.get("completion_tokens") or 0)
        if begin and (begin + end).bit_length() > max(begin, _LEAST_POSITION - 1).bit_length():
            self.exposures["position_crossings"] += 1
        if row.get("edge") is not None:
            self.exposures["near_limit_requests"] += 1

    def over_limit(self) -> None:
        self.exposures["near_limit_requests"] += 1

    def on_state(self, row: StateRow) -> None:
        if row.get("to") == "healthy":
            self._replicas.add(str(row.get("replica")))

    def on_attack(self, row: AttackRow) -> None:
        self.exposures["attacks"] += result_of(row) == "ok"

    def on_metrics(self, row: MetricsRow) -> None:
        self.scrapes += 1
        for gauge in _GAUGES.values():
            if (value := (row.get("values") or {}).get(gauge)) is not None:
                self.above_zero.setdefault(gauge, []).extend([value] if value > 0 else ())
        key = (str(row.get("replica")), str(row.get("engine")))
        before, now = self._newest.get(key, {}), row.get("values") or {}
        for counter, _ in _COUNTERS.values():
            if counter in before and counter in now and now[counter] > before[counter]:
                self.grown[counter] = self.grown.get(counter, 0.0) + now[counter] - before[counter]
                if counter == "spec_drafts_total":
                    self._drafted_ns = row["at_ns"]
                    self.exposures["image_requests_while_drafting"] += self._images_since
                    self._images_since = 0
        if self._drafted_ns is None or row["at_ns"] - self._drafted_ns > _STILL_DRAFTING_NS:
            self._images_since = 0
        self._newest[key] = {**before, **now}

    def required(self, names: Sequence[str], facts: Facts | None, attacks_worked: int) -> list[CheckResult]:
        return [self._require(str(name), facts, attacks_worked) for name in names]

    def _require(self, name: str, facts: Facts | None, attacks_worked: int) -> CheckResult:
        ok, actual = True, ""
        if name == "images":
            ok, actual = self.image_requests_ok > 0, f"{self.image_requests_ok} requests with images answered"
        elif name == "development_endpoints":
            answered = facts is not None and bool(facts.development_endpoints)
            ok, actual = attacks_worked > 0, f"{attacks_worked} attacks through them succeeded"
            if not ok and answered:
                actual = "they answer, but no attack through them succeeded"
        elif name == "replicas":
            ok, actual = len(self._replicas) > 1, f"{len(self._replicas)} watched, of 2 or more (target.replicas)"
        elif name == "metrics":
            ok, actual = self.scrapes > 0, f"{self.scrapes} scrapes"
        elif name in _GAUGES:
            gauge = _GAUGES[name]
            seen = self.above_zero.get(gauge)
            ok = seen is not None and len(seen) >= _FEWEST_READINGS
            actual = f"{gauge} was above 0 in {len(seen or ())} readings, at most {max(seen or (0,)):g}"
            actual = "not measured" if seen is None else actual
        elif name in _COUNTERS:
            counter, absent = _COUNTERS[name]
            grown = self.grown.get(counter, 0.0)
            ok, actual = grown > 0, f"{counter} grew by {figure(grown)}" if grown > 0 else absent
        elif name == "lora_adapters":
            names = facts.lora_adapters if facts is not None else ()
            ok, actual = bool(names), f"{', '.join(names)}" if names else "/v1/models lists none"
        else:
            value = getattr(facts, name, None) if facts is not None else None
            ok, actual = bool(value), f"the server reports {value}" if value is not None else "not measured"
        return CheckResult(f"requires {name}", "active", actual, "pass" if ok else "unknown")

    def exposed(self, wanted: ExposureGoal | None) -> CheckResult | None:
        if wanted is None:
            return None
        name, least = wanted.count, wanted.at_least
        n = self.exposures.get(name, 0)
        return CheckResult("exposure", f"{name} >= {least}", str(n), "pass" if n >= least and n > 0 else "unknown")
