"""Throughput and latencies of the measured time of a capacity step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self, cast

from loadchaos.analysis.capacity.queue_model import variance_to_mean
from loadchaos.analysis.capacity.step_columns import LATENCIES, CapacityStep
from loadchaos.core.latency import LatencyHistograms, LatencySample, sample_of
from loadchaos.core.latency_percentiles import enough_to_show
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.units import NS_PER_S, seconds_of, significant

_TOO_SLOW = ("shed", "stalled", "timeout")
"""Outcomes of requests that an overloaded server did not serve. Others say nothing about its throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """One request that had to succeed; `over` are the limits it exceeded. `waited`: the server was too slow for it."""

    due_ns: int
    end_ns: int
    ok: bool
    waited: bool
    over: tuple[str, ...]
    sample: LatencySample | None
    input_tokens: int | None
    output_tokens: int | None

    @classmethod
    def of(cls, row: EndRow, over: tuple[str, ...]) -> Self:
        return cls(
            due_ns=row["due_ns"],
            end_ns=row["at_ns"],
            ok=row["outcome"] == "ok",
            waited=row["outcome"] in _TOO_SLOW,
            over=over,
            sample=sample_of(row),
            input_tokens=row.get("prompt_tokens"),
            output_tokens=row.get("completion_tokens"),
        )


def with_figures(
    step: CapacityStep, requests: Sequence[StepRequest], measured: Sequence[StepRequest], from_ns: int, now_ns: int,
    open_due_ns: Iterable[int],
) -> CapacityStep:  # fmt: skip
    """Add throughput and latencies. Throughput counts the answers that ended between `from_ns` and `now_ns`; latencies
    are those of the measured requests, counted as in a verdict. `open_due_ns`: when requests were due that have not
    ended.
    """
    seconds = (now_ns - from_ns) / NS_PER_S
    due_ns = chain((r.due_ns for r in requests if r.ok or r.waited), open_due_ns)
    ended = [r for r in requests if r.ok and from_ns <= r.end_ns < now_ns]
    completed = Counter((request.end_ns - from_ns) // NS_PER_S for request in ended)
    return replace(
        step,
        requests_per_s=significant(len(ended) / seconds),
        completed=len(ended),
        offered=sum(from_ns <= ns < now_ns for ns in due_ns),
        completing_s=round(seconds, 3),
        completion_variation=variance_to_mean([completed[second] for second in range(int(seconds))]),
        input_tokens_per_s=_per_second([r.input_tokens for r in ended], seconds),
        output_tokens_per_s=_per_second([r.output_tokens for r in ended], seconds),
        **cast("Any", _latencies(measured)),
    )


def _per_second(counts: Sequence[int | None], seconds: float) -> float | None:
    known = [count for count in counts if count is not None]
    return significant(sum(known) / seconds) if counts and len(known) == len(counts) else None


def _latencies(measured: Sequence[StepRequest]) -> Mapping[str, float | None]:
    histograms = LatencyHistograms()
    for request in measured:
        if request.sample is not None:
            histograms.add(request.sample)
    return {
        name: seconds_of(found.statistic(label), 4) if enough_to_show(label, found.n) else None
        for name, kind, label in LATENCIES
        for found in [histograms[kind]]
    }
