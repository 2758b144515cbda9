"""Watch one step of a capacity search, and decide it.

The requests that count were due after the warm-up and have had time to end. The warm-up is twice the median time of an
answer, at least 3 s.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from loadchaos.analysis.capacity import rule
from loadchaos.analysis.capacity.client_side import ClientLoad
from loadchaos.analysis.capacity.server_side import ServerLoad
from loadchaos.analysis.capacity.step_columns import CapacityStep, StepStatus
from loadchaos.analysis.capacity.step_figures import StepRequest, with_figures
from loadchaos.core.goodput import expected_of, figures_of, had_to_succeed
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import BeginRow, EndRow, HeartbeatRow, LoadRow, MetricsRow, MissedRow
from loadchaos.core.model import Row
from loadchaos.core.units import NS_PER_S

_LEAST_WARM_UP_S, _MOST_WARM_UP = 3.0, 0.4
_FEWEST_EARLY = 30
_LEAST_EARLY_S = 10.0
_SCOUT_S, _SCOUT_REQUESTS = 8.0, 8
_BIN_S = 0.25


@dataclass(frozen=True)
class StepPlan:
    """Load and goal of one step.

    Attributes:
        by: `rate` in requests per second, or `concurrency` in users.
        look_s: Measured time until the first look; the next ones come after twice and four times as much.
        most_s: Measured time at which an undecided step ends.
        scout: The step only shows the direction of the search: it ends early, and never as `met`.
    """

    by: str
    load: float
    goal: float
    limits_s: Mapping[str, float]
    look_s: float
    most_s: float
    scout: bool = False


@dataclass(frozen=True)
class StepWindow:
    """Requests of the measured time, in ten groups of equal time."""

    from_ns: int
    to_ns: int
    groups: list[tuple[int, int]]
    pending: list[int]
    requests: list[StepRequest]

    @property
    def seconds(self) -> float:
        return max(0.0, (self.to_ns - self.from_ns) / NS_PER_S)

    @property
    def ended(self) -> int:
        """Requests that have ended, or found no slot."""
        return sum(n for _, n in self.groups)

    @property
    def bad(self) -> int:
        return sum(b for b, _ in self.groups)

    @property
    def not_sent(self) -> int:
        return self.ended - len(self.requests)

    def with_pending(self, *, bad: bool) -> list[tuple[int, int]]:
        return [(b + bad * p, n + p) for (b, n), p in zip(self.groups, self.pending, strict=True)]


class StepProgress(NamedTuple):
    """A step in progress; `requests` are those that were measured and ended. `goodput` is None before the first of
    them.
    """

    elapsed_s: float
    in_flight: int
    requests: int = 0
    goodput: float | None = None
    interval: tuple[float, float] = (0.0, 1.0)

    def describe(self) -> str:
        if self.goodput is None:
            return f"{self.elapsed_s:.0f} s, warm-up, {self.in_flight} in flight"
        low, high = self.interval
        return (
            f"{self.elapsed_s:.0f} s, {self.requests:,} requests, goodput {100 * self.goodput:.2f} % "
            f"({100 * low:.2f} to {100 * high:.2f}), {self.in_flight} in flight"
        )


class StepWatch(RowFold):
    """Folds the rows of one step; `reason` says when it can end."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.status: StepStatus | None = None
        self.why = ""
        self._begin_ns: int | None = None
        self._now_ns = self._looked_ns = 0
        self._looks = 0
        self._in_flight: dict[str, int] = {}
        self._requests: list[StepRequest] = []
        self._unsent: list[tuple[int, int]] = []
        self._changes: Counter[int] = Counter()
        self._e2e_ns: list[int] = []
        self._had: Counter[str] = Counter()
        self._successes = 0
        self.client, self.server = ClientLoad(plan.by == "rate"), ServerLoad()

    # --- rows ---------------------------------------------------------------------------------------------------------

    def fold(self, row: Row) -> None:
        if self.status is None:
            super().fold(row)

    def on_load(self, row: LoadRow) -> None:
        if row["what"] == "begin" and self._begin_ns is None:
            self._begin_ns = row["at_ns"]

    def on_missed(self, row: MissedRow) -> None:
        if row["why"] == "no_slot":
            self._unsent.append((row["at_ns"], row["count"]))

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self.client.on_heartbeat(row)
        self._now_ns = max(self._now_ns, row["at_ns"])

    def on_metrics(self, row: MetricsRow) -> None:
        self.server.on_metrics(row)

    def on_begin(self, row: BeginRow) -> None:
        self._begin_ns = self._begin_ns or row["due_ns"]
        self._in_flight[row["id"]] = row["due_ns"]
        self._change(row["due_ns"], 1)

    def on_end(self, row: EndRow) -> None:
        if self._in_flight.pop(row["id"], None) is not None:
            self._change(row["at_ns"], -1)
        self._now_ns = max(self._now_ns, row["at_ns"])
        if not had_to_succeed(row) or (row.get("detail") or {}).get("slowed"):
            return
        self.client.on_end(row)
        request = StepRequest.of(row, self._limits_exceeded(row))
        self._requests.append(request)
        if request.ok and request.sample is not None:
            insort(self._e2e_ns, request.sample.e2e_ns or 0)

    def _limits_exceeded(self, row: EndRow) -> tuple[str, ...]:
        if str(row.get("outcome")) not in expected_of(row):
            return ("failed",)
        found = figures_of(row, self.plan.limits_s)
        self._had.update(found)
        self._successes += 1
        return tuple(name for name, seconds in found.items() if seconds > self.plan.limits_s[name])

    def _change(self, at_ns: int, by: int) -> None:
        if self._begin_ns is not None:
            self._changes[int((at_ns - self._begin_ns) / NS_PER_S / _BIN_S)] += by

    # --- decision -----------------------------------------------------------------------------------------------------

    def reason(self) -> str | None:
        if self.status is None and self._now_ns - self._looked_ns >= NS_PER_S:
            self._looked_ns = self._now_ns
            self._decide(final=False)
        return self.why if self.status is not None else None

    def finish(self) -> None:
        if self.status is None:
            self._decide(final=True)

    def missing_figure(self) -> str | None:
        if not self._successes:
            return None
        return next((name for name in self.plan.limits_s if not self._had[name]), None)

    def _decide(self, *, final: bool) -> None:
        window = self._window()
        if window is None:
            if final:
                self._end_as("undecided", "too few requests ended")
            return
        plan, goal = self.plan, self.plan.goal
        growth, enough = self._growth(window), window.ended >= _FEWEST_EARLY
        early = rule.goodput_interval(window.with_pending(bad=False), rule.EARLY_Z)
        planned = round(plan.load * plan.most_s) if plan.by == "rate" else 0
        if growth.sure:
            share = f"{100 * growth.share:.0f} % of the requests stay behind"
            self._end_as("not_met", f"the queue grows without end: {share}")
        elif (self._now_ns - window.from_ns) / NS_PER_S < _LEAST_EARLY_S and not final:
            return  # an overloaded server shows what it completes
        elif enough and early.high < goal:
            self._end_as("not_met", f"{window.bad:,} of {window.ended:,} requests are not good")
        elif enough and early.overdispersion < 2 and rule.cannot_recover(window.bad, planned, goal):
            self._end_as("not_met", f"{window.bad:,} bad requests are too many for the whole step")
        elif plan.scout and window.seconds >= _SCOUT_S and window.ended >= _SCOUT_REQUESTS:
            if self._is_missed(window):
                return
            grows = ", the queue may be growing" if growth.possible else ""
            self._end_as("undecided", f"the first look at this load{grows}")
        elif final or self._look_is_due(window):
            self._look(window, growth, final=final or window.seconds >= plan.most_s)

    def _look_is_due(self, window: StepWindow) -> bool:
        look_s = self.plan.look_s * float(2**self._looks)
        return window.seconds >= min(max(look_s, 1.5 * self._median_s()), self.plan.most_s)

    def _look(self, window: StepWindow, growth: rule.QueueGrowth, *, final: bool) -> None:
        self._looks += 1
        met = rule.decide(rule.goodput_interval(window.with_pending(bad=True), rule.LOOK_Z), self.plan.goal)
        if met == "met" and not growth.possible and not self.plan.scout:
            self._end_as("met", "the whole interval of the goodput is above the goal")
        elif not self._is_missed(window) and (final or self._looks >= rule.LOOKS):
            why = "the queue may be growing" if growth.possible else "the interval of the goodput contains the goal"
            self._end_as("undecided", why)

    def _is_missed(self, window: StepWindow) -> bool:
        """End a step as missed whose whole interval is below the goal, even if all that have not ended were good."""
        interval = rule.goodput_interval(window.with_pending(bad=False), rule.LOOK_Z)
        if missed := rule.decide(interval, self.plan.goal) == "not_met":
            self._end_as("not_met", "the whole interval of the goodput is below the goal")
        return missed

    def _end_as(self, status: StepStatus, why: str) -> None:
        limit = self.client.limit_reason() or self._slots_reason()
        if status != "met" and limit is not None:
            status, why = "client", limit
        self.status, self.why = status, why

    def _slots_reason(self) -> str | None:
        """Reason why our own limit of requests in flight failed the step, or None. The requests that were sent meet the
        goal, and those that found no free slot make the step miss it.
        """
        window = self._window()
        if window is None or not window.not_sent:
            return None
        bad_sent = sum(bool(request.over) for request in window.requests)
        if not window.requests or 1 - bad_sent / len(window.requests) < self.plan.goal:
            return None
        return f"our own client had as many requests in flight as it may, and did not send {window.not_sent:,} others"

    # --- the measured time --------------------------------------------------------------------------------------------

    def _median_s(self) -> float:
        return self._e2e_ns[len(self._e2e_ns) // 2] / NS_PER_S if self._e2e_ns else 0.0

    def _window(self) -> StepWindow | None:
        if self._begin_ns is None or self._now_ns <= self._begin_ns:
            return None
        elapsed_s = (self._now_ns - self._begin_ns) / NS_PER_S
        warm_s = min(max(_LEAST_WARM_UP_S, 2 * self._median_s()), max(_LEAST_WARM_UP_S, _MOST_WARM_UP * elapsed_s))
        longest_s = self._e2e_ns[int(0.95 * (len(self._e2e_ns) - 1))] / NS_PER_S if self._e2e_ns else 0.0
        left_s = elapsed_s - warm_s
        from_ns = self._begin_ns + int(warm_s * NS_PER_S)
        to_ns = self._now_ns - int(min(1.5 * longest_s, left_s / 2) * NS_PER_S)
        if left_s <= 0 or to_ns - from_ns < NS_PER_S:
            return None
        bad, whole, pending = [0] * rule.GROUPS, [0] * rule.GROUPS, [0] * rule.GROUPS
        width = (to_ns - from_ns) / rule.GROUPS

        def group(at_ns: int) -> int:
            return min(rule.GROUPS - 1, int((at_ns - from_ns) / width))

        measured = [request for request in self._requests if from_ns <= request.due_ns < to_ns]
        unsent = [(at_ns, count, count) for at_ns, count in self._unsent if from_ns <= at_ns < to_ns]
        for at_ns, n_bad, n in [*((r.due_ns, int(bool(r.over)), 1) for r in measured), *unsent]:
            bad[group(at_ns)] += n_bad
            whole[group(at_ns)] += n
        for due_ns in self._in_flight.values():
            if from_ns <= due_ns < to_ns:
                pending[group(due_ns)] += 1
        return StepWindow(from_ns, to_ns, list(zip(bad, whole, strict=True)), pending, measured)

    def _growth(self, window: StepWindow) -> rule.QueueGrowth:
        begin_ns = self._begin_ns or 0
        first, last = (int((ns - begin_ns) / NS_PER_S / _BIN_S) for ns in (window.from_ns, self._now_ns))
        if self.plan.by != "rate" or last - first < 4 * rule.GROUPS:
            return rule.QueueGrowth()
        measured = list(accumulate(self._changes[index] for index in range(last)))[first:]
        size = len(measured) / rule.GROUPS
        means = [fmean(measured[int(n * size) : int((n + 1) * size)]) for n in range(rule.GROUPS)]
        between_s = len(measured) * _BIN_S * (rule.GROUPS - 1) / rule.GROUPS
        growth = rule.queue_growth(means, self.plan.load * between_s)
        if growth.sure and not self.server.waits(window.from_ns):  # more run, but none waits
            return rule.QueueGrowth(growth.share, possible=True)
        return growth

    # --- results ------------------------------------------------------------------------------------------------------

    def progress(self) -> StepProgress:
        elapsed_s = (self._now_ns - self._begin_ns) / NS_PER_S if self._begin_ns is not None else 0.0
        window = self._window()
        if window is None or not window.ended:
            return StepProgress(elapsed_s, len(self._in_flight))
        interval = rule.goodput_interval(window.groups, rule.LOOK_Z)
        share = 1 - window.bad / window.ended
        return StepProgress(elapsed_s, len(self._in_flight), window.ended, share, (interval.low, interval.high))

    def result(self) -> CapacityStep:
        window = self._window()
        plan = self.plan
        found = CapacityStep(
            load=plan.load,
            status=self.status or "undecided",
            why=self.why,
            scout=plan.scout,
            client=self.client.figures(),
        )
        if window is None or self._begin_ns is None:
            return found
        groups = window.with_pending(bad=True)
        interval, highest = (rule.goodput_interval(g, rule.LOOK_Z) for g in (groups, window.with_pending(bad=False)))
        due, bad = sum(n for _, n in groups), sum(b for b, _ in groups)
        growth = self._growth(window)
        over = Counter(name for request in window.requests for name in request.over)
        share = (due - bad) / due if due else None
        found = replace(
            found,
            leans=None if share is None else share >= plan.goal and not growth.possible,
            seconds=round((self._now_ns - self._begin_ns) / NS_PER_S, 2),
            warm_up_s=round((window.from_ns - self._begin_ns) / NS_PER_S, 2),
            measured_s=round(window.seconds, 2),
            requests=due,
            good=due - bad,
            unfinished=sum(window.pending),
            not_sent=window.not_sent,
            goodput=None if share is None else round(share, 6),
            goodput_low=round(interval.low, 6),
            goodput_high=round(highest.high, 6),
            overdispersion=round(interval.overdispersion, 2),
            over=dict(over.most_common()),
            queue_growth=round(growth.share, 4) if plan.by == "rate" else None,
            queue_grows=growth.sure,
            server=self.server.figures(window.from_ns, self._now_ns),
        )
        in_flight = self._in_flight.values()
        return with_figures(found, self._requests, window.requests, window.from_ns, self._now_ns, in_flight)
