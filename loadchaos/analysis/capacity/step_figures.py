"""Throughput and latencies of the measured time of a capacity step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from loadchaos.analysis.capacity.queue_model import variance_to_mean
from loadchaos.core.histogram import LogHistogram
from loadchaos.core.latency import e2e_ns, tpot_ns, ttft_ns
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.units import NS_PER_S, seconds_of, significant


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One request that had to succeed; `over` are the limits it exceeded."""

    due_ns: int
    end_ns: int
    ok: bool
    over: tuple[str, ...]
    e2e_ns: int
    ttft_ns: int | None
    tpot_ns: float | None
    gaps: Mapping[Any, int]
    input_tokens: int | None
    output_tokens: int | None

    @classmethod
    def of(cls, row: EndRow, over: tuple[str, ...]) -> Self:
        end: Any = row
        return cls(
            row["due_ns"], row["at_ns"], row["outcome"] == "ok", over, e2e_ns(end) or 0, ttft_ns(end), tpot_ns(end),
            row.get("itl_hist") or {}, row.get("prompt_tokens"), row.get("completion_tokens"),
        )  # fmt: skip


def figures(
    requests: Sequence[StepRequest], measured: Sequence[StepRequest], from_ns: int, now_ns: int
) -> dict[str, Any]:
    """Figures of capacity.json. Throughput counts the answers that ended between `from_ns` and `now_ns`; latencies are
    those of the measured requests.
    """
    seconds = (now_ns - from_ns) / NS_PER_S
    ended = [r for r in requests if r.ok and from_ns <= r.end_ns < now_ns]
    answered = [r for r in measured if r.ok]
    completed = Counter((request.end_ns - from_ns) // NS_PER_S for request in ended)
    found: dict[str, Any] = {
        "requests_per_s": significant(len(ended) / seconds), "completed": len(ended), "completing_s": round(seconds, 3),
        "completion_variation": variance_to_mean([completed[second] for second in range(int(seconds))]),
    }  # fmt: skip
    for name in ("input_tokens", "output_tokens"):
        counts = [getattr(r, name) for r in ended]
        known = bool(counts) and None not in counts
        found[f"{name}_per_s"] = significant(sum(counts) / seconds) if known else None
    gaps = LogHistogram()
    for request in answered:
        gaps.merge(request.gaps)
    for name in ("ttft", "tpot", "e2e"):
        histogram = LogHistogram()
        for request in answered:
            if (value := getattr(request, f"{name}_ns")) is not None:
                histogram.add(value)
        found |= _quantiles(name, histogram)
    return found | _quantiles("itl", gaps)


def _quantiles(name: str, histogram: LogHistogram) -> dict[str, float | None]:
    return {f"{name}_{label}_s": seconds_of(histogram.statistic(label), 4) for label in ("p50", "p99")}
