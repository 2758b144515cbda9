"""Judge expectations `name op value`. A missing figure is unknown."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadchaos.analysis.detectors.growth_limits import FIGURES, Growth
from loadchaos.analysis.request_stats import Part
from loadchaos.core import latency_names
from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.model import OUTCOMES, Decision
from loadchaos.core.stats import LogHistogram
from loadchaos.core.units import duration_s, growth, measured_duration, share

_OPS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FEWEST_ANSWERS = 20
_TEXT = re.compile(r"\s*([\w.-]+)\s*(==|!=|<=|>=|<|>)\s*(\S.*?)\s*$")
_COUNTS = (
    "engine_deaths", "hangs", "outages", "failures", "wrong_answers", "length_mismatch", "output_mismatch", "lost_requests",
    "restarts",
)  # fmt: skip


@dataclass(frozen=True)
class ExpectationInputs:
    """Figures that expectations are judged by.

    `outcomes` and `latency` are by traffic; "" is all of it.

    `recoveries_s` has one entry per death, None without recovery; `away_s` is the longest time that such a death was
    observed. `ok` are requests that succeeded of those that had to, `errors` those that failed of all. `void` is the reason
    why latency means nothing (the generator was limited), else None.
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
    unproved: Mapping[str, str] = field(default_factory=dict)
    """Counts that may be too low, with the reason."""


@dataclass(frozen=True)
class CheckResult:
    """Result of an expectation or of a check, as in verdict.json."""

    name: str
    expected: str
    actual: str
    verdict: Decision

    def to_json(self) -> dict[str, Any]:
        """`{"name", "expected", "actual", "verdict"}`."""
        return {"name": self.name, "expected": self.expected, "actual": self.actual, "verdict": self.verdict}


class _Figure(NamedTuple):
    """A figure (None: unknown), its text, and the unit of its limit.

    `still`: it was still growing at the end of the run. `only_within`: the sample is too small, so that the value counts
    only where both ends of this interval break the limit.
    """

    value: float | None
    text: str
    unit: str
    still: bool = False
    only_within: tuple[float, float] | None = None


def judge(expectation: str, figures: ExpectationInputs) -> CheckResult:
    """Judge one expectation; one that cannot be parsed is unknown, never pass."""
    match = _TEXT.match(expectation)
    if match is None:
        return CheckResult(
            expectation, expectation, "this expectation cannot be read: correct it in the profile", "unknown"
        )
    name, op, right = match.groups()
    expected = f"{op} {right}"
    try:
        figure = _figure(name, figures)
        wanted = _wanted(right, figure.unit)
    except (KeyError, ValueError) as e:  # an unknown name or value: the profile is validated before
        return CheckResult(name, expected, str(e).strip("'\""), "unknown")
    return CheckResult(name, expected, figure.text, _decision(figure, op, wanted))


def _decision(figure: _Figure, op: str, wanted: float) -> Decision:
    if figure.value is None:
        return "unknown"
    met = _OPS[op]
    if figure.only_within is not None:
        broken = op not in ("==", "!=") and not any(met(end, wanted) for end in figure.only_within)
        return "fail" if broken else "unknown"
    if not met(figure.value, wanted):
        return "fail"
    return "unknown" if figure.still else "pass"  # it was still growing when the run ended


def shed_allowed(expect: Sequence[str]) -> set[str]:
    """List traffics whose shed requests have a rule of their own ("": all).

    `ok_share` does not count these requests.
    """
    found = set()
    for text in expect:
        match = _TEXT.match(text)
        if match is not None:
            head = match[1].removesuffix("outcomes.shed").removesuffix("shed_share")
            found |= {head.rstrip(".")} if head != match[1] else set()
    return found


def _figure(name: str, figures: ExpectationInputs) -> _Figure:
    """Look a figure up by name. Raises KeyError for an unknown one."""
    traffic, dot, rest = name.partition(".")
    if traffic == "drift" and rest in FIGURES:
        grown = figures.drifts.get(rest)
        if grown is None:
            return _Figure(None, "not enough data", "growth")
        return _Figure(grown.per_hour, grown.describe(rest), "growth")
    if not dot or traffic == "outcomes":
        traffic, rest = "", name
    if rest in _COUNTS:
        n = figures.counts.get(rest, 0)
        if n == 0 and rest in figures.unproved:
            return _Figure(None, f"0, but {figures.unproved[rest]}", "count")
        return _Figure(float(n), _count_text(rest, n, figures), "count")
    if rest == "recovers_within":
        return _recovery(figures)
    if rest == "ok_share":
        return _part(figures.ok.get(traffic), "requests that had to succeed", "no request had to succeed")
    if rest == "error_rate":
        return _part(figures.errors.get(traffic), "requests that ended", "no requests")
    if rest == "shed_share":
        return _shed(traffic, figures)
    if rest.startswith("outcomes."):
        return _outcome(traffic, rest.removeprefix("outcomes."), figures)
    if (latency := latency_names.parse(rest)) is not None:
        return _latency(traffic, latency, figures)
    raise KeyError(f"unknown figure {name}")


def _shed(traffic: str, figures: ExpectationInputs) -> _Figure:
    outcomes = figures.outcomes.get(traffic) or {}
    sent = sum(n for outcome, n in outcomes.items() if outcome != "missed")
    return _part(Part(outcomes.get("shed", 0), sent), "requests sent", "no requests")


def _part(part: Part | None, what: str, nothing: str) -> _Figure:
    """A share with the counts that it is made of."""
    if part is None or part.share is None:
        return _Figure(None, nothing, "share")
    return _Figure(part.share, f"{part.share:.2%}, {part.n:,} of {part.whole:,} {what}", "share")


def _count_text(name: str, n: int, figures: ExpectationInputs) -> str:
    if name != "failures" or not n:
        return str(n)
    times = figures.counts.get("occurrences", n)
    kinds, occurrences = ("kind" if n == 1 else "kinds"), ("occurrence" if times == 1 else "occurrences")
    return f"{n} {kinds}, {times:,} {occurrences}"


def _recovery(figures: ExpectationInputs) -> _Figure:
    if not figures.recoveries_s:
        return _Figure(0.0, "no outage", "duration")
    known = [r for r in figures.recoveries_s if r is not None]
    if figures.away_s is not None:
        text = f"not recovered {measured_duration(figures.away_s)} later, at the end of the run"
        return _Figure(max([figures.away_s, *known]), text, "duration", still=True)
    return _Figure(max(known), measured_duration(max(known)), "duration")


def _outcome(traffic: str, outcome: str, figures: ExpectationInputs) -> _Figure:
    if outcome not in OUTCOMES:
        raise KeyError(f"unknown outcome {outcome}")
    if traffic not in figures.outcomes:
        return _Figure(None, f"no requests of {traffic}" if traffic else "no requests", "count")
    n = figures.outcomes[traffic].get(outcome, 0)
    return _Figure(float(n), str(n), "count")


def _latency(traffic: str, name: latency_names.LatencyName, figures: ExpectationInputs) -> _Figure:
    latency = figures.latency.get(traffic)
    histogram: LogHistogram | None = latency[name.latency] if latency is not None else None
    if latency is None or histogram is None or histogram.n == 0:
        return _Figure(None, "no data", "duration")
    ns = histogram.mean() if name.quantile is None else histogram.quantile(name.quantile)
    assert ns is not None
    text, interval = _duration_text(ns), None
    if name.quantile is not None:
        interval = histogram.quantile_interval(name.quantile)
        assert interval is not None
        text += f" ({_interval_text(interval)}, n = {histogram.n:,})"
    if latency.lower_bounds and name.latency != "itl":
        text += f" (lower bound: {latency.lower_bounds} timed out)"
    if figures.void:
        return _Figure(None, f"{text}, but {figures.void}", "duration")
    few = _too_few(name, latency)
    if not few:
        return _Figure(ns / 1e9, text, "duration")
    low, high = interval or (0.0, math.inf)
    return _Figure(ns / 1e9, f"{text}: {few}", "duration", only_within=(low / 1e9, high / 1e9))


def _too_few(name: latency_names.LatencyName, latency: LatencyHistograms) -> str:
    """Say that the sample is too small for the figure; empty if it is not."""
    n = latency[name.latency].n
    if n < name.fewest:
        return f"{name.statistic} needs {name.fewest:,} samples"
    answers = latency.e2e.n  # the gaps of one answer are no independent sample
    if name.latency == "itl" and answers < _FEWEST_ANSWERS:
        return f"from {answers} answers, {_FEWEST_ANSWERS} are needed"
    return ""


def _interval_text(interval: tuple[float, float]) -> str:
    low, high = interval
    if math.isinf(high):
        return f"at least {_duration_text(low)} with 95 % confidence" if low else "no interval"
    return f"90 % interval {_duration_text(low)} to {_duration_text(high)}"


def _duration_text(ns: float) -> str:
    return measured_duration(ns / 1e9)


def _wanted(text: str, unit: str) -> float:
    if unit == "duration":
        return duration_s(text)
    if unit == "growth":
        return growth(text)
    return share(text) if unit == "share" else float(text)
