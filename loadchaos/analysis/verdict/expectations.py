"""Judge expectations `name op value`. A missing figure is unknown."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadchaos.analysis.detectors.growth_limits import FIGURES, Growth
from loadchaos.core import latency_names
from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.model import OUTCOMES, Decision
from loadchaos.core.stats import LogHistogram
from loadchaos.core.units import duration_s, format_duration, growth, share

_OPS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_TEXT = re.compile(r"\s*([\w.-]+)\s*(==|!=|<=|>=|<|>)\s*(\S.*?)\s*$")
_COUNTS = (
    "engine_deaths", "hangs", "failures", "length_mismatch", "output_mismatch", "lost_requests", "restarts",
)  # fmt: skip


@dataclass(frozen=True)
class ExpectationInputs:
    """Figures that expectations are judged by.

    `outcomes` and `latency` are by traffic; "" is all of it.

    `recoveries_s` has one entry per death, None without recovery; `away_s` is the longest time that such a death was
    observed. `ok_share` is None where no request had to succeed. `void` is the reason why latency means nothing (the
    generator was limited), else None.
    """

    counts: Mapping[str, int]
    ok_share: Mapping[str, float | None]
    outcomes: Mapping[str, Mapping[str, int]]
    latency: Mapping[str, LatencyHistograms]
    recoveries_s: Sequence[float | None]
    away_s: float | None = None
    void: str | None = None
    drifts: Mapping[str, Growth | None] = field(default_factory=dict)


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

    `still`: it was still growing at the end of the run.
    """

    value: float | None
    text: str
    unit: str
    still: bool = False


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
        value, actual, unit, still = _figure(name, figures)
        wanted = _wanted(right, unit)
    except (KeyError, ValueError) as e:  # an unknown name or value: the profile is validated before
        return CheckResult(name, expected, str(e).strip("'\""), "unknown")
    if value is None:
        return CheckResult(name, expected, actual, "unknown")
    right = _OPS[op](value, wanted)
    if still and right:
        return CheckResult(name, expected, actual, "unknown")  # it was still growing when the run ended
    return CheckResult(name, expected, actual, "pass" if right else "fail")


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
        return _Figure(float(n), str(n), "count")
    if rest == "recovers_within":
        return _recovery(figures)
    if rest == "ok_share":
        ok = figures.ok_share.get(traffic)
        return _Figure(ok, "no request had to succeed" if ok is None else f"{ok:.2%}", "share")
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
    if not sent:
        return _Figure(None, "no requests", "share")
    part = outcomes.get("shed", 0) / sent
    return _Figure(part, f"{part:.2%}", "share")


def _recovery(figures: ExpectationInputs) -> _Figure:
    if not figures.recoveries_s:
        return _Figure(0.0, "no outage", "duration")
    known = [r for r in figures.recoveries_s if r is not None]
    if figures.away_s is not None:
        text = f"not recovered {format_duration(figures.away_s)} later, at the end of the run"
        return _Figure(max([figures.away_s, *known]), text, "duration", still=True)
    return _Figure(max(known), format_duration(max(known)), "duration")


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
    text = format_duration(ns / 1e9) if ns >= 1e6 else f"{ns / 1e3:.0f}us"
    if latency.lower_bounds and name.latency != "itl":
        text += f" (lower bound: {latency.lower_bounds} timed out)"
    if figures.void:
        return _Figure(None, f"{text}, but {figures.void}", "duration")
    return _Figure(ns / 1e9, text, "duration")


def _wanted(text: str, unit: str) -> float:
    if unit == "duration":
        return duration_s(text)
    if unit == "growth":
        return growth(text)
    return share(text) if unit == "share" else float(text)
