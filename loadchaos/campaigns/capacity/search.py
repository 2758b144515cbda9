"""Choose the load of the next capacity step: growth, then bisection. Growth and wide brackets use short steps, which
show a direction and can only prove that a load does not meet the goal. Near the answer each step is long enough to prove
that its load meets the goal, or does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadchaos.analysis.capacity.queue_model import QueueModel
from loadchaos.analysis.capacity.result import CapacityAnswer, Unit
from loadchaos.analysis.capacity.step_columns import CapacityStep, ShortDecision
from loadchaos.core.units import figure

_FASTEST_GROWTH, _GROWTH = 4.0, 2.0
_LOADED = 1.3
"""A median answer that takes this many times as long as in the first step shows load: growth slows down."""
_WIDE = 1.3
"""A bracket above this ratio is bisected by short steps."""
_BELOW_SATURATION = 0.96
_SAFE = 0.9
"""A load below this part of one that seems to fail can probably be proved."""
_MOST_HALVINGS = 12
_MOST_TRIES = 2
_MOST_UNDECIDED = 7
_MODEL_ERROR = 0.03
"""Relative error of a rate that short steps proved, measured with bench/capacity.py."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search, with loads from `start` to `most`. `tolerance`: ratio of the two ends of the interval that
    is narrow enough, minus 1. `goal`: share of requests within `limits_s`. `arrivals`: variance to mean ratio of the
    arrivals of a rate.
    """

    by: Unit
    start: float
    most: float
    tolerance: float = 0.03
    goal: float = 0.99
    limits_s: Mapping[str, float] = field(default_factory=dict)
    arrivals: float = 1.0


@dataclass(frozen=True)
class NextStep:
    """Load of the next step; a `scout` only shows the direction."""

    load: float
    scout: bool


class CapacitySearch:
    """Folds the results of steps, and chooses the next one."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self.steps: list[CapacityStep] = []

    def add(self, step: CapacityStep) -> None:
        """Fold the result of a step. One that met the goal proves nothing where the queue
        of its load would be too long in the long run, at what overloaded steps have completed.
        """
        settings = self._settings
        raw = [s.as_measured() for s in (*self.steps, step)]
        model = QueueModel.of(raw, settings.limits_s, settings.arrivals) if settings.by == "rate" else None
        self.steps = [s if model is None else _in_the_long_run(s, model, settings.goal) for s in raw]

    @property
    def low(self) -> float | None:
        """Highest load that was proved to meet the goal, below `high`."""
        return max(self._loads("met", below=self.high), default=None)

    @property
    def high(self) -> float | None:
        """Lowest load that was proved not to meet the goal."""
        return min(self._loads("not_met"), default=None)

    @property
    def client_limit(self) -> float | None:
        """Lowest load at which our own client was the limit."""
        return min(self._loads("client"), default=None)

    def _loads(self, status: str, below: float | None = None) -> list[float]:
        return [s.load for s in self.steps if s.status == status and (below is None or s.load < below)]

    def _leaning(self, good: bool) -> list[float]:
        return [s.load for s in self.steps if s.status == "undecided" and s.leans is good]

    def _ceiling(self) -> float | None:
        """Lowest load that failed, or seems to."""
        known = [load for load in (self.high, self.client_limit) if load is not None]
        low = self.low or 0.0
        return min([*known, *(load for load in self._leaning(False) if load > low)], default=None)

    def _base(self, ceiling: float | None) -> float | None:
        """Highest load below the ceiling that met the goal, or seems to."""
        found = [*self._loads("met"), *self._leaning(True)]
        return max((load for load in found if ceiling is None or load < ceiling), default=None)

    def next(self) -> NextStep | None:
        ceiling = self._ceiling()
        base = self._base(ceiling)
        if not self.steps:
            return NextStep(self._settings.start, scout=True)
        if ceiling is None:
            return self._grow(base)
        if base is None:
            return self._shrink(ceiling)
        if not self._narrow(base, ceiling):
            return NextStep(self._between(base, ceiling), scout=ceiling / base > _WIDE)
        if self._tried(base) == 0 and base not in self._loads("met"):
            return NextStep(base, scout=False)
        if self.low is None:
            return self._lower(base)
        if not self._narrow(self.low, base) and base > self.low:  # the base could not be proved
            middle = self._between(self.low, base)
            return NextStep(middle, scout=False) if self._tried(middle) < _MOST_TRIES else None
        return self._prove_ceiling(ceiling)

    def proof(self) -> NextStep | None:
        """Choose the step that is most likely to prove a first load; None without one, and once a load is proved."""
        ceiling = self._ceiling()
        safe = [load for load in self._leaning(True) if ceiling is None or load <= _SAFE * ceiling]
        load = max(safe, default=self._base(ceiling))
        return None if load is None or self.low is not None or self._tried(load) else NextStep(load, scout=False)

    def _grow(self, base: float | None) -> NextStep | None:
        settings = self._settings
        top = max(s.load for s in self.steps)
        if base is None or top >= settings.most:
            last = base if base is not None else top
            proved = self.low is not None and self.low >= last
            return None if proved or self._tried(last) >= _MOST_TRIES else NextStep(last, scout=False)
        factor = _GROWTH if self._is_loaded() else _FASTEST_GROWTH
        return NextStep(self._whole(min(top * factor, settings.most)), scout=True)

    def _shrink(self, ceiling: float) -> NextStep | None:
        if len(self.steps) >= _MOST_HALVINGS or (self._settings.by == "concurrency" and ceiling <= 1):
            return None
        return NextStep(self._whole(ceiling / _GROWTH), scout=True)

    def _lower(self, base: float) -> NextStep | None:
        """Go down where the load that seemed to meet the goal could not be proved."""
        full = [s.load for s in self.steps if not s.scout]
        undecided = sum(1 for s in self.steps if not s.scout and s.status == "undecided")
        factor = (1 + self._settings.tolerance) ** float(2 ** max(0, undecided - 1))
        load = self._whole(min([base, *full]) / factor)
        return None if undecided >= _MOST_UNDECIDED or self._tried(load) else NextStep(load, scout=False)

    def _prove_ceiling(self, ceiling: float) -> NextStep | None:
        known = [load for load in (self.high, self.client_limit) if load is not None]
        if ceiling in known:
            return None
        if self._tried(ceiling) == 0:
            return NextStep(ceiling, scout=False)
        if not known:
            return None
        below = [load for load in self._leaning(False) if load < min(known)]
        top = max([ceiling, *below])
        load = self._whole(math.sqrt(top * min(known)), top)
        return None if self._tried(load) or self._narrow(top, min(known)) else NextStep(load, scout=False)

    def _narrow(self, low: float, high: float) -> bool:
        if self._settings.by == "concurrency" and high - low <= 1:
            return True
        return high / low <= 1 + self._settings.tolerance + 1e-9

    def _between(self, low: float, high: float) -> float:
        """A load between two others: their geometric mean, or near saturation."""
        saturation = self._saturation()
        if saturation is not None and high / low > _WIDE:
            load = self._whole(_BELOW_SATURATION * saturation)
            if low * 1.02 < load < high * 0.98:
                return load
        return self._whole(math.sqrt(low * high), low)

    def _saturation(self) -> float | None:
        """Requests per second that an overloaded server completed."""
        if self._settings.by != "rate":
            return None
        return max((s.requests_per_s for s in self.steps if s.queue_grows and s.requests_per_s), default=None)

    def _whole(self, load: float, above: float = 0.0) -> float:
        if self._settings.by == "concurrency":
            return float(max(1, math.floor(above) + 1, round(load)))
        return float(f"{load:.3g}")

    def _is_loaded(self) -> bool:
        medians = [s.e2e_p50_s for s in self.steps if s.e2e_p50_s]
        return len(medians) > 1 and medians[-1] > _LOADED * medians[0]

    def _tried(self, load: float) -> int:
        return sum(1 for s in self.steps if math.isclose(s.load, load) and not s.scout)

    def answer(self) -> CapacityAnswer:
        low, high, client = self.low, self.high, self.client_limit
        limited = high is None and client is not None
        why = "our own client was the limit" if limited else "" if high else self._open_top()
        return CapacityAnswer(
            capacity=low,
            low=low,
            high=high,
            client_limit=client,
            known=low is not None,
            at_least=low is not None and high is None,
            why=self._unknown() if low is None else why,
            interval=self._interval(),
            narrow=low is not None and high is not None and high / low <= 1 + self._settings.tolerance + 1e-9,
        )

    def _interval(self) -> tuple[float | None, float | None]:
        """Interval of the long-run capacity; an end is None where it is open. Random arrivals of a short step come faster
        or slower than its load says: its ends are the rates that were offered.
        """
        low, high = self.low, self.high
        if self._settings.by == "concurrency":
            return low, high
        lows = [_offered(s) for s in self.steps if s.load == low and s.status == "met"]
        highs = [_offered(s) for s in self.steps if s.load == high and s.status == "not_met"]
        return (
            None if low is None else float(f"{min([low, *lows]) * (1 - _MODEL_ERROR):.4g}"),
            None if high is None else float(f"{max([high, *highs]) * (1 + _MODEL_ERROR):.4g}"),
        )

    def _open_top(self) -> str:
        top = max((s.load for s in self.steps), default=0.0)
        if top >= self._settings.most:
            return f"the highest load that is tried ({figure(self._settings.most)}) met the goal"
        return "no load was proved to fail within the budget"

    def _unknown(self) -> str:
        if not self.steps:
            return "no step ended"
        no_load = "no load was proved to meet the goal"
        if self.high is not None:
            return no_load
        return f"our own client was the limit, and {no_load}" if self.client_limit else f"{no_load}, or to fail"


def _offered(step: CapacityStep) -> float:
    """Requests per second that were due in the measured time of a step."""
    return step.requests / step.measured_s if step.measured_s else step.load


def _in_the_long_run(step: CapacityStep, model: QueueModel, goal: float) -> CapacityStep:
    share = model.share_in_time(step.load)
    if share >= goal or step.status == "not_met" or not step.leans:
        return step
    limit = f"the {model.completed_per_s:.3g}/s that steps with a queue completed on average"
    why = f"too near {limit}: in the long run {100 * share:.1f} % would be in time (estimated)"
    before = ShortDecision(status=step.status, leans=step.leans, why=step.why)
    return replace(
        step, status="undecided" if step.status == "met" else step.status, leans=False, why=why, measured=before
    )
