"""Long-run waiting time of a queue near its saturation, from short steps.

A queue that is loaded to 97 % of what the server completes needs minutes to show its long waits, so a step of some
seconds would take it for healthy. Heavy-traffic theory (Kingman) gives the share of requests that wait longer than t in the
long run: rho * exp(-2 * (mu - lambda) * t / (Ia + Ic)). Here mu is the rate that overloaded steps completed; Ia and Ic are
the variance to mean ratios of arrivals and completions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Self

from loadchaos.analysis.capacity.step_columns import CapacityStep

_GROWS = 0.02
_WAITING = ("ttft", "e2e")
"""Limits that waiting in a queue uses up."""


@dataclass(frozen=True)
class QueueModel:
    """A saturated server.

    Attributes:
        completed_per_s: Requests per second that it completes.
        variation: Sum of the variance to mean ratios of arrivals and completions.
        slack_s: Longest wait within the limits; infinite where no limit includes waiting.
    """

    completed_per_s: float
    variation: float
    slack_s: float

    @classmethod
    def of(cls, steps: Sequence[CapacityStep], limits_s: Mapping[str, float], arrivals: float) -> Self | None:
        """Make the model from the steps whose queue grew; None without one. Where no growth is sure, those count that
        failed while requests waited. `arrivals` is the variance to mean ratio of the arrivals: 1 for Poisson, 0 for
        constant gaps.
        """
        measured = [s for s in steps if s.completed and s.completing_s]
        full = [s for s in measured if s.queue_grows] or [s for s in measured if _had_a_queue(s)]
        if not full:
            return None
        seconds = sum(s.completing_s for s in full)
        ratios = [(s.completing_s, s.completion_variation) for s in full if s.completion_variation]
        ratio = sum(w * r for w, r in ratios) / sum(w for w, _ in ratios) if ratios else 0.0
        lowest = min(steps, key=lambda s: s.load)
        slacks = [
            max(0.0, limits_s[name] - (lowest.figure(f"{name}_p50_s") or 0.0)) for name in _WAITING if name in limits_s
        ]
        completed = sum(s.completed for s in full) / seconds
        return cls(completed, arrivals + ratio, min(slacks, default=math.inf))

    def share_in_time(self, load: float) -> float:
        if load >= self.completed_per_s:
            return 0.0
        if self.slack_s == math.inf or self.variation <= 0:
            return 1.0
        left = self.completed_per_s - load
        return 1.0 - load / self.completed_per_s * math.exp(-2 * left * self.slack_s / self.variation)


def _had_a_queue(step: CapacityStep) -> bool:
    """Tell if a step failed while requests waited at the server."""
    waiting = step.server.get("requests_waiting_mean")
    if step.status != "not_met":
        return False
    return waiting >= 1 if waiting is not None else (step.queue_growth or 0.0) >= _GROWS


def variance_to_mean(counts: Sequence[int]) -> float | None:
    """Compute the variance to mean ratio of counts; None of fewer than four."""
    if len(counts) < 4 or not sum(counts):
        return None
    return variance(counts) / fmean(counts)
