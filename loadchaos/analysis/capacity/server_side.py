"""Counters and gauges of the server during a capacity step."""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.core.ledger.rows import MetricsRow
from loadchaos.core.units import NS_PER_S, significant

_GAUGES = ("requests_running", "requests_waiting", "kv_usage_ratio")
_COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "preemptions_total")

Scrapes = list[tuple[int, Mapping[str, float]]]


class ServerLoad:
    """Scrapes of each engine; figures add up over engines, except KV use."""

    def __init__(self) -> None:
        self._by_engine: dict[tuple[str, str], Scrapes] = {}

    def on_metrics(self, row: MetricsRow) -> None:
        values = {name: float(row["values"][name]) for name in (*_GAUGES, *_COUNTERS) if name in row["values"]}
        if values:
            self._by_engine.setdefault((row["replica"], row["engine"]), []).append((row["at_ns"], values))

    def waits(self, from_ns: int) -> bool:
        """Tell if requests wait at the server; True where it does not say."""
        found = [
            values["requests_waiting"]
            for scrapes in self._by_engine.values()
            for at_ns, values in scrapes
            if at_ns >= from_ns and "requests_waiting" in values
        ]
        return not found or max(found) > 0

    def figures(self, from_ns: int, to_ns: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for scrapes in self._by_engine.values():
            inside = [(at_ns, values) for at_ns, values in scrapes if from_ns <= at_ns <= to_ns]
            for name in _GAUGES:
                numbers = [values[name] for _, values in inside if name in values]
                figures = {"mean": sum(numbers) / len(numbers), "max": max(numbers)} if numbers else {}
                for what, value in figures.items():
                    key = f"{name}_{what}"
                    before = found.get(key, 0.0)
                    found[key] = max(before, value) if name == "kv_usage_ratio" else before + value
            for name in _COUNTERS:
                points = [(at_ns, values[name]) for at_ns, values in inside if name in values]
                if len(points) > 1:
                    rise = max(0.0, points[-1][1] - points[0][1])
                    key = name.removesuffix("_total")
                    seconds = (points[-1][0] - points[0][0]) / NS_PER_S
                    key, value = (key, rise) if key == "preemptions" else (f"{key}_per_s", rise / seconds)
                    found[key] = found.get(key, 0.0) + value
        return {name: significant(value) for name, value in found.items()}
