"""Decision rule of a capacity step: goodput against a goal, queue growth.

A step ends as `met` or `not_met` only where the whole Wilson interval of its goodput lies on one side of the goal. The
interval is looked at three times at most. With z = 2 at each look, all looks together err with a probability of at most
5 % (Pocock). Requests that fail together count as fewer: the interval is widened by their overdispersion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from loadchaos.analysis.capacity.step_columns import StepStatus
from loadchaos.core.stats import wilson

LOOK_Z = 2.0
"""Half-width of the interval at a look, in standard deviations."""
EARLY_Z = 3.3
"""The same between two looks, where only `not_met` is decided: about 1 in 2,000 for each side."""
LOOKS = 3
GROUPS = 10
_SURE_RISES, _POSSIBLE_RISES = 39, 21
"""Kendall's S of ten groups, 45 at most: chance below 1 in 50,000, and 4 in 100."""
_SURE_SHARE, _POSSIBLE_SHARE = 0.02, 0.005
_SURE_REQUESTS = 8.0
_CHANCE = 2.5
"""Growth that is sure exceeds that of random arrivals by this many standard deviations."""
_STEADY = 0.5


@dataclass(frozen=True)
class ShareInterval:
    """Interval of a share, with the overdispersion that widened it."""

    low: float
    high: float
    overdispersion: float = 1.0


@dataclass(frozen=True)
class QueueGrowth:
    """Growth of the requests in flight at a constant rate. `share` is the part of the arrivals that stays behind.
    `sure`: the queue grows without end. `possible`: that cannot be excluded.
    """

    share: float = 0.0
    sure: bool = False
    possible: bool = False


def least_requests(goal: float) -> int:
    """Compute the fewest requests that can prove a goal, all of them good. One more than the formula gives, as it is
    rounded.
    """
    return math.ceil(LOOK_Z**2 * goal / (1 - goal)) + 1


def overdispersion(groups: Sequence[tuple[int, int]]) -> float:
    """Compute how much more the bad requests of groups vary than by chance.

    It is chi-square by its degrees of freedom, at least 1.

    Args:
        groups: (bad requests, requests) in the order of time.
    """
    used = [(bad, n) for bad, n in groups if n]
    bad, whole = sum(b for b, _ in used), sum(n for _, n in used)
    if len(used) < 2 or bad in (0, whole):
        return 1.0
    p = bad / whole
    return max(1.0, sum((b - n * p) ** 2 / (n * p * (1 - p)) for b, n in used) / (len(used) - 1))


def goodput_interval(groups: Sequence[tuple[int, int]], z: float) -> ShareInterval:
    bad, whole = sum(b for b, _ in groups), sum(n for _, n in groups)
    factor = overdispersion(groups)
    low, high = wilson((whole - bad) / factor, whole / factor, z) if whole else (0.0, 1.0)
    return ShareInterval(low, high, factor)


def decide(interval: ShareInterval, goal: float) -> StepStatus:
    if interval.low >= goal:
        return "met"
    return "not_met" if interval.high < goal else "undecided"


def cannot_recover(bad: int, planned: int, goal: float) -> bool:
    """Tell if a step fails even where all its other requests are good."""
    return planned > 0 and wilson(max(0, planned - bad), planned, LOOK_Z)[1] < goal


def queue_growth(in_flight: Sequence[float], arrivals: float) -> QueueGrowth:
    """Judge if the requests in flight grow, by means of ten equal times.

    A queue without end grows by as much in the second half of the time as in the first. Answers that are longer than the
    warm-up also make the number rise, but ever slower.

    Args:
        in_flight: mean number in flight in each group.
        arrivals: requests that arrived from the middle of the first group to that of the last.
    """
    if len(in_flight) < GROUPS or arrivals <= 0:
        return QueueGrowth()
    rises = sum((b > a) - (b < a) for a, b in combinations(in_flight, 2))
    grown = in_flight[-1] - in_flight[0]
    share = grown / arrivals
    half = len(in_flight) // 2
    early = in_flight[half] - in_flight[0]
    late = in_flight[-1] - in_flight[half]
    enough = max(_SURE_REQUESTS, _CHANCE * math.sqrt(arrivals))
    sure = rises >= _SURE_RISES and share >= _SURE_SHARE and grown >= enough and late >= _STEADY * early
    return QueueGrowth(share, sure, sure or (rises >= _POSSIBLE_RISES and share >= _POSSIBLE_SHARE))
