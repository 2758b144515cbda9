"""Judge expectations `name op value`. A missing figure is unknown."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadchaos.analysis.detectors.growth_limits import Growth
from loadchaos.analysis.figures.efficiency import UNTOLD
from loadchaos.analysis.figures.requests import Part
from loadchaos.analysis.figures.sessions import SessionTimes
from loadchaos.analysis.figures.steady import SteadySpan
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core import latency_percentiles
from loadchaos.core.expectation_names import Expectation, parse
from loadchaos.core.histogram import LogHistogram
from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.model import Decision
from loadchaos.core.units import COMPARISONS, measured_duration

_LEAST_SHARE = 0.05
"""A steady state with a smaller share of what is needed does not tell how many requests are enough."""


@dataclass(frozen=True)
class ExpectationInputs:
    """Figures that expectations are judged by.

    `outcomes` and `latency` are by traffic; "" is all of it. `recoveries_s` has one entry per death, None without
    recovery; `away_s` is the longest time that such a death was observed. `ok` are requests that succeeded of those
    that had to, `errors` those that failed of all. `void` is the reason why latency means nothing (the generator was
    limited), else None.
    """

    counts: Mapping[str, int]
    ok: Mapping[str, Part]
    outcomes: Mapping[str, Mapping[str, int]]
    latency: Mapping[str, LatencyHistograms]
    recoveries_s: Sequence[float | None]
    away_s: float | None = None
    void: str | None = None
    drifts: Mapping[str, Growth | None] = field(default_factory=dict)
    errors: Mapping[str, Part] = field(default_factory=dict)
    goodput: Mapping[str, Part] = field(default_factory=dict)
    goodput_in_time: Mapping[str, Part] = field(default_factory=dict)
    """Goodput as if our own client had sent each request in time."""
    late: str | None = None
    """Reason why goodput is not known: the generator sent late, or gaps were not recorded."""
    host: Sequence[str] = ()
    """Reasons why loadchaos lacked CPU time: a broken limit of latency may be due to them."""
    others: str | None = None
    """Requests of other clients during the load: a broken limit of latency may be due to them."""
    warm: str | None = None
    """Reason why latency is too good: the prefix cache had the prompts before the load."""
    steady: SteadySpan | None = None
    """Steady state of a load that was to stay the same; None: it was not to."""
    efficiency: Mapping[str, Mapping[str, Part]] = field(default_factory=dict)
    sessions: Mapping[str, SessionTimes] = field(default_factory=dict)
    longest_stall: tuple[float, str] | None = None
    """Seconds, and the same as text; None: no request was in flight."""
    unproved: Mapping[str, str] = field(default_factory=dict)
    """Counts that may be too low, with the reason."""


class _Figure(NamedTuple):
    """A figure (None: unknown) and its text.

    `still`: it was still growing at the end of the run.
    `only_within`: the sample is too small, so that the value counts only where both ends of this interval break the limit.
    `doubt`: why the value looks better than it is: it proves a broken limit, and no met one.
    `in_time`: the value without the delay of our own client, and its text: the server did not break a limit that it meets.
    """

    value: float | None
    text: str
    still: bool = False
    only_within: tuple[float, float] | None = None
    in_time: tuple[float, str] | None = None
    doubt: str = ""


def judge(text: str, figures: ExpectationInputs) -> CheckResult:
    """Judge one expectation; one that cannot be parsed is unknown, never pass."""
    try:
        expected = parse(text, traffics=None)
    except ValueError as e:  # the profile is validated before
        return CheckResult(text, text, f"this expectation cannot be read: {e}", "unknown")
    figure = _figure(expected, figures)
    rule, decision, actual = f"{expected.op} {expected.limit}", _decision(figure, expected), figure.text
    if (
        decision == "fail"
        and figure.in_time is not None
        and COMPARISONS[expected.op](figure.in_time[0], expected.value)
    ):
        decision, actual = "unknown", f"{actual}, but our own client sent late: {figure.in_time[1]} without its delay"
    if decision == "fail" and (expected.name == "goodput" or latency_percentiles.parse(expected.name) is not None):
        host = f"on the machine of loadchaos {' and '.join(figures.host)}" if figures.host else None
        if why := " and ".join(filter(None, (host, figures.others))):
            decision, actual = "unknown", f"{actual}, but {why}"
    if figure.doubt:
        actual = f"{actual}, {'although' if decision == 'fail' else 'but'} {figure.doubt}"
    return CheckResult(expected.full_name, rule, actual, decision)


def _decision(figure: _Figure, expected: Expectation) -> Decision:
    if figure.value is None:
        return "unknown"
    met, wanted = COMPARISONS[expected.op], expected.value
    if figure.only_within is not None:
        broken = expected.op not in ("==", "!=") and not any(met(end, wanted) for end in figure.only_within)
        return "fail" if broken else "unknown"
    if not met(figure.value, wanted):
        return "fail"
    return "unknown" if figure.still or figure.doubt else "pass"


def shed_allowed(expect: Sequence[str]) -> set[str]:
    """List traffics whose shed requests have a rule of their own ("": all). `ok_share` does not count these requests."""
    found = set()
    for text in expect:
        with contextlib.suppress(ValueError):
            expected = parse(text, traffics=None)
            found |= {expected.traffic} if expected.name in ("shed_share", "outcomes.shed") else set()
    return found


def _figure(expected: Expectation, figures: ExpectationInputs) -> _Figure:
    """Look up the figure of an expectation. Counts and growths of core/expectation_names.py are entries of `counts` and
    `drifts`. Others have a function in `_SPECIAL`.
    """
    name, traffic = expected.name, expected.traffic
    if name in _SPECIAL:
        return _SPECIAL[name](traffic, figures)
    if name.startswith("outcomes."):
        return _outcome(traffic, name.removeprefix("outcomes."), figures)
    if expected.kind == "growth":
        return _drift(name.removeprefix("drift."), figures)
    if expected.kind == "count":
        return _count(name, figures)
    latency = latency_percentiles.parse(name)
    assert latency is not None, name
    if latency.latency == latency_percentiles.SESSION_TIME:
        return _session_time(traffic, latency, figures)
    return _latency(traffic, latency, figures)


def _drift(name: str, figures: ExpectationInputs) -> _Figure:
    grown = figures.drifts.get(name)
    return _Figure(None, "not enough data") if grown is None else _Figure(grown.per_hour, grown.describe(name))


def _count(name: str, figures: ExpectationInputs) -> _Figure:
    n = figures.counts.get(name, 0)
    if n == 0 and name in figures.unproved:
        return _Figure(None, f"0, but {figures.unproved[name]}")
    if name == "failures" and not n and (shed := figures.outcomes.get("", {}).get("shed", 0)):
        return _Figure(0.0, f"0; {shed:,} refused by admission control are counted by ok_share and shed_share")
    if name != "failures" or not n:
        return _Figure(float(n), str(n))
    times = figures.counts.get("occurrences", n)
    kinds, occurrences = ("kind" if n == 1 else "kinds"), ("occurrence" if times == 1 else "occurrences")
    return _Figure(float(n), f"{n} {kinds}, {times:,} {occurrences}")


def _goodput(traffic: str, figures: ExpectationInputs) -> _Figure:
    found = _part(figures.goodput.get(traffic), "requests that had to succeed", "no request had to succeed")
    if figures.late is not None:
        return _Figure(None, f"{found.text}, but {figures.late}")
    in_time = figures.goodput_in_time.get(traffic)
    if in_time is not None and in_time.share is not None and in_time.share != found.value:
        found = found._replace(in_time=(in_time.share, f"{in_time.share:.2%}"))
    return _if_cold(found, figures)


def _if_cold(figure: _Figure, figures: ExpectationInputs) -> _Figure:
    if figures.warm is None or figure.value is None:
        return figure
    return figure._replace(doubt=figures.warm)


def _share_of(
    parts_of: Callable[[ExpectationInputs], Mapping[str, Part]], whole: str, nothing: str
) -> Callable[[str, ExpectationInputs], _Figure]:
    return lambda traffic, figures: _part(parts_of(figures).get(traffic), whole, nothing)


def _shed(traffic: str, figures: ExpectationInputs) -> _Figure:
    outcomes = figures.outcomes.get(traffic) or {}
    sent = sum(n for outcome, n in outcomes.items() if outcome != "missed")
    return _part(Part(outcomes.get("shed", 0), sent), "requests sent", "no requests")


def _part(part: Part | None, what: str, nothing: str) -> _Figure:
    if part is None or part.share is None:
        return _Figure(None, nothing)
    return _Figure(part.share, f"{part.share:.2%}, {part.n:,} of {part.whole:,} {what}")


def _recovery(_traffic: str, figures: ExpectationInputs) -> _Figure:
    if not figures.recoveries_s:
        return _Figure(0.0, "no outage")
    known = [r for r in figures.recoveries_s if r is not None]
    if figures.away_s is not None:
        text = f"not recovered {measured_duration(figures.away_s)} later, at the end of the run"
        return _Figure(max([figures.away_s, *known]), text, still=True)
    return _Figure(max(known), measured_duration(max(known)))


def _longest_stall(_traffic: str, figures: ExpectationInputs) -> _Figure:
    return (
        _Figure(None, "no request was in flight") if figures.longest_stall is None else _Figure(*figures.longest_stall)
    )


def _outcome(traffic: str, outcome: str, figures: ExpectationInputs) -> _Figure:
    if traffic not in figures.outcomes:
        return _Figure(None, f"no requests of {traffic}" if traffic else "no requests")
    n = figures.outcomes[traffic].get(outcome, 0)
    return _Figure(float(n), str(n))


def _latency(traffic: str, name: latency_percentiles.LatencyName, figures: ExpectationInputs) -> _Figure:
    latency = figures.latency.get(traffic)
    histogram: LogHistogram | None = latency[name.latency] if latency is not None else None
    void = latency.void().get(name.latency) if latency is not None else None
    if latency is None or histogram is None or histogram.n == 0:
        return _Figure(None, f"no data: {void}" if void else "no data")
    few = name.too_few(histogram.n, latency.e2e.n)
    bounds = latency.lower_bounds if name.latency != "itl" else 0
    short = _too_short(name, histogram.n, latency.e2e.n, figures.steady)
    figure = _of_times(name, histogram, bounds, few, figures, short=short)
    if void:
        return _Figure(None, f"{figure.text}, but {void}")
    in_time = latency.without_own_delay(name.latency)
    ns = in_time.statistic(name.statistic) if in_time is not None else None
    return figure if ns is None else figure._replace(in_time=(ns / 1e9, _duration_text(ns)))


def _too_short(name: latency_percentiles.LatencyName, n: int, answers: int, steady: SteadySpan | None) -> str:
    """Say that the steady state is too short for a statistic of `n` samples from `answers` of the load; empty: it is not.
    The maximum is one of all requests, whenever they were sent.
    """
    if steady is None or name.statistic == "max":
        return ""
    if few := name.too_few(round(n * steady.share), round(answers * steady.share)):
        longer = _longer(answers, steady.share * n / latency_percentiles.FEWEST_SAMPLES[name.statistic])
        return f"{few} in the steady state, which has {steady.share:.0%} of the requests; {longer}"
    if steady.seconds < (fewest_s := latency_percentiles.FEWEST_STEADY_S):
        longer = _longer(answers, steady.seconds / fewest_s)
        return f"the steady state is {steady.seconds:.1f} s long, {fewest_s:g} s are needed; {longer}"
    return ""


def _longer(answers: int, share: float) -> str:
    """Say how many requests are enough where `answers` gave this share of what is needed; with a fifth to spare."""
    needed = math.ceil(0.12 * answers / share) * 10 if _LEAST_SHARE <= share < 1 else 0
    return f"run longer, e.g. {needed:,} requests" if needed else "run longer"


def _session_time(traffic: str, name: latency_percentiles.LatencyName, figures: ExpectationInputs) -> _Figure:
    times = figures.sessions.get(traffic)
    if times is None or times.histogram.n == 0:
        return _Figure(None, "no session was finished")
    few = name.too_few(times.histogram.n, times.histogram.n)
    found = _of_times(name, times.histogram, times.lower_bounds, few, figures)
    if not times.too_short or found.value is None:
        return found
    return found._replace(doubt=f"{found.doubt}; {times.too_short}" if found.doubt else times.too_short)


def _of_times(
    name: latency_percentiles.LatencyName,
    histogram: LogHistogram,
    bounds: int,
    few: str,
    figures: ExpectationInputs,
    *,
    short: str = "",
) -> _Figure:
    ns = histogram.statistic(name.statistic)
    assert ns is not None
    text, interval = _duration_text(ns), None
    if name.quantile is not None:
        interval = histogram.quantile_interval(name.quantile)
        assert interval is not None
        text += f" ({_interval_text(interval)}, n = {histogram.n:,})"
    if bounds:
        text += f" (lower bound: {bounds} timed out)"
    if figures.void:
        return _Figure(None, f"{text}, but {figures.void}")
    if not few and not short:
        return _if_cold(_Figure(ns / 1e9, text), figures)
    low, high = interval or ((0.0, math.inf) if few else (ns, ns))
    return _Figure(ns / 1e9, f"{text}: {few or short}", only_within=(low / 1e9, high / 1e9))


def _interval_text(interval: tuple[float, float]) -> str:
    low, high = interval
    if math.isinf(high):
        return f"at least {_duration_text(low)} with 95 % confidence" if low else "no interval"
    return f"90 % interval {_duration_text(low)} to {_duration_text(high)}"


def _duration_text(ns: float) -> str:
    return measured_duration(ns / 1e9)


_SPECIAL: Mapping[str, Callable[[str, ExpectationInputs], _Figure]] = {
    "ok_share": _share_of(lambda figures: figures.ok, "requests that had to succeed", "no request had to succeed"),
    "goodput": _goodput,
    "error_rate": _share_of(lambda figures: figures.errors, "requests that ended", "no requests"),
    "prefix_hit_rate": _share_of(
        lambda figures: figures.efficiency.get("prefix_hit_rate", {}), "prompt tokens", UNTOLD["prefix_hit_rate"]
    ),
    "acceptance": _share_of(
        lambda figures: figures.efficiency.get("acceptance", {}), "drafted tokens", UNTOLD["acceptance"]
    ),
    "shed_share": _shed,
    "recovers_within": _recovery,
    "longest_stall": _longest_stall,
}
"""Functions of the figures that are neither a count, a growth, an outcome nor a latency."""
