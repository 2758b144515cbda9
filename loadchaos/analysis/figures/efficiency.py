"""Prefix-cache hits, accepted drafts and energy of a load.

Each figure is None where the server does not tell it. Energy comes from the watched power of the GPUs.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from loadchaos.analysis.figures.requests import Part
from loadchaos.analysis.verdict.model import AcceptanceQuantiles, EfficiencyFigures
from loadchaos.core.ledger.rows import BeginRow, DeviceRow, EndRow, MetricsRow
from loadchaos.core.units import NS_PER_S, significant

_LEAST_COVERED = 0.8
"""Share of the load that readings of power must cover."""
_HITS, _QUERIES = "prefix_cache_hits_total", "prefix_cache_queries_total"
_ACCEPTED, _DRAFTED = "spec_accepted_tokens_total", "spec_draft_tokens_total"
UNTOLD = {
    "prefix_hit_rate": "neither the answers (cached_tokens) nor the server's counters tell it",
    "acceptance": "neither the answers nor the server's counters tell drafted tokens, or none were drafted",
}
"""Reason why a figure is unknown, by its name in `expect`."""


class Efficiency:
    """Folds answers, counters and power into the figures of a load."""

    def __init__(self) -> None:
        self._prompt: Counter[str] = Counter()
        self._cached: Counter[str] = Counter()
        self._told = False  # an answer had cached_tokens; then none means 0, as vLLM leaves a 0 out
        self._telling: set[str] = set()  # traffic with cached_tokens or generated text; embeddings tell nothing
        self._drafted: Counter[str] = Counter()  # by traffic, as the answers tell it
        self._accepted: Counter[str] = Counter()
        self._generating: set[str] = set()  # traffic with generated text
        self._drafting: set[str] = set()  # traffic whose answers tell drafted tokens, 0 included
        self._shares: Counter[int] = Counter()  # answers by accepted tokens in per cent of the drafted ones
        self._newest: dict[tuple[str, str], dict[str, float]] = {}
        self._grown: Counter[str] = Counter()
        self._first_ns: int | None = None
        self._last_ns = 0
        self._power: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._energy: dict[str, float] = {}  # joules by source
        self._covered: Counter[tuple[str, str, str]] = Counter()
        self._at_end: tuple[dict[str, float], dict[tuple[str, str, str], int]] = {}, {}

    def on_begin(self, row: BeginRow) -> None:
        if self._first_ns is None:
            self._first_ns = int(row["at_ns"])

    def on_end(self, row: EndRow) -> None:
        if row["at_ns"] > self._last_ns:
            self._last_ns = int(row["at_ns"])
        if self._power:
            self._at_end = dict(self._energy), dict(self._covered)
        if row.get("outcome") != "ok" or row.get("prompt_tokens") is None:
            return
        traffic, cached = str(row.get("traffic", "")), row.get("cached_tokens")
        self._told = self._told or cached is not None
        if cached is not None or row.get("completion_tokens"):
            self._telling.add(traffic)
        self._prompt[traffic] += int(row["prompt_tokens"] or 0)
        self._cached[traffic] += int(cached or 0)
        if row.get("completion_tokens"):
            self._generating.add(traffic)
        if row.get("drafted_tokens") is not None:
            self._drafting.add(traffic)
        if drafted := int(row.get("drafted_tokens") or 0):
            accepted = int(row.get("accepted_tokens") or 0)
            self._drafted[traffic] += drafted
            self._accepted[traffic] += accepted
            self._shares[round(100 * accepted / drafted)] += 1

    def on_metrics(self, row: MetricsRow) -> None:
        key = (str(row.get("replica")), str(row.get("engine")))
        before, now = self._newest.get(key, {}), row.get("values") or {}
        for name in (_HITS, _QUERIES, _ACCEPTED, _DRAFTED):
            if self._first_ns is not None and name in before and now.get(name, 0.0) > before[name]:
                self._grown[name] += round(now[name] - before[name])
        self._newest[key] = {**before, **now}

    def on_device(self, row: DeviceRow) -> None:
        watts = (row.get("values") or {}).get("gpu_power_w")
        if watts is None:
            return
        key, at_ns = (str(row.get("source")), str(row.get("host")), str(row.get("device"))), int(row["at_ns"])
        before = self._power.get(key)
        self._power[key] = at_ns, float(watts)
        if before is None or self._first_ns is None or at_ns <= self._first_ns:
            return
        since_ns = max(before[0], self._first_ns)
        joules = (before[1] + watts) / 2 * (at_ns - since_ns) / NS_PER_S
        self._energy[key[0]] = self._energy.get(key[0], 0.0) + joules
        self._covered[key] += at_ns - since_ns

    def parts(self) -> dict[str, dict[str, Part]]:
        """Counts by figure and traffic ("": all), without unknown ones."""
        found: dict[str, dict[str, Part]] = {}
        if self._told:
            by_traffic = {t: Part(self._cached[t], n) for t, n in self._prompt.items() if t in self._telling}
            whole = Part(self._cached.total(), sum(part.whole for part in by_traffic.values()))
            found["prefix_hit_rate"] = {**by_traffic, "": whole}
        elif self._grown[_QUERIES]:
            found["prefix_hit_rate"] = {"": Part(self._grown[_HITS], self._grown[_QUERIES])}
        if self._drafted:
            by_traffic = {t: Part(self._accepted[t], n) for t, n in self._drafted.items()}
            whole = Part(self._accepted.total(), self._drafted.total())
            found["acceptance"] = {**by_traffic, "": whole}
        if self._drafts_are_counted:
            whole = Part(self._grown[_ACCEPTED], self._grown[_DRAFTED])
            found["acceptance"] = {**found.get("acceptance", {}), "": whole}
        return found

    @property
    def _drafts_are_counted(self) -> bool:
        """True if counters of the server tell the drafts of the whole load. The answers tell them better, but only
        where those of all traffic do: vLLM's `responses` tell none.
        """
        return bool(self._grown[_DRAFTED]) and (not self._drafted or bool(self._generating - self._drafting))

    @property
    def prefix_source(self) -> Literal["usage", "counters"] | None:
        """`usage` of the answers or `counters` of the server; None: neither."""
        return None if "prefix_hit_rate" not in self.parts() else "usage" if self._told else "counters"

    def figures(self, output_tokens: int | None, warm: str | None) -> EfficiencyFigures:
        """The figures of verdict.json.

        Args:
            output_tokens: those of the load.
            warm: why latencies are those of a warm cache, None if they are not.
        """
        parts = self.parts()
        hits, drafts = (parts.get(name, {}).get("", Part(0, 0)) for name in ("prefix_hit_rate", "acceptance"))
        joules, power_w = self._energy_and_power()
        return EfficiencyFigures(
            prefix_hit_rate=significant(hits.share),
            prefix_hit_tokens=hits.n if hits.whole else None,
            prefix_source=self.prefix_source if hits.whole else None,
            acceptance=significant(drafts.share),
            accepted_tokens=drafts.n if drafts.whole else None,
            drafted_tokens=drafts.whole or None,
            acceptance_source=None if not drafts.whole else "counters" if self._drafts_are_counted else "answers",
            acceptance_by_request=self._by_request(),
            energy_j=significant(joules),
            mean_power_w=significant(power_w),
            joules_per_output_token=significant(joules / output_tokens) if joules and output_tokens else None,
            output_tokens_per_s_per_w=significant(output_tokens / joules) if joules and output_tokens else None,
            warm_cache=warm,
        )

    def _by_request(self) -> AcceptanceQuantiles | None:
        n, seen = self._shares.total(), 0
        found: dict[str, float] = {}
        for share in sorted(self._shares):
            seen += self._shares[share]
            for q in (10, 50, 90):
                if seen * 100 >= q * n:
                    found.setdefault(f"p{q}", share / 100)
        return AcceptanceQuantiles(p10=found["p10"], p50=found["p50"], p90=found["p90"], n=n) if n else None

    def _energy_and_power(self) -> tuple[float, float] | tuple[None, None]:
        """Joules of the load and mean watts; None where power was not watched for long enough."""
        energy, covered = self._at_end
        source = next((s for s in ("dcgm", "nvml") if energy.get(s)), None)
        length_ns = self._last_ns - (self._first_ns or 0)
        devices = [ns for key, ns in covered.items() if key[0] == source]
        if source is None or length_ns <= 0 or min(devices) < _LEAST_COVERED * length_ns:
            return None, None
        power_w = energy[source] / (max(devices) / NS_PER_S)
        return power_w * length_ns / NS_PER_S, power_w
