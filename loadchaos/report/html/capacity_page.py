"""Render the page of a capacity search: answer, curves, steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadchaos.analysis.capacity.result import CapacityResult, CapacityStep
from loadchaos.core.units import figure
from loadchaos.report import capacity_text
from loadchaos.report.formatting import clean, duration, tick_duration, utc_text
from loadchaos.report.html import templates
from loadchaos.report.performance import per_second

_BADGES = {"pass": "pass", "fail": "fail", "unknown": "unknown", "error": "fail"}
_STATUS_CSS = {"met": "pass", "not_met": "fail", "undecided": "unknown", "client": "unknown"}
_WIDTH, _HEIGHT = 1000.0, 100.0
_MOST_TICKS = 8
_APART = 0.1
"""Part of the axis between two labels."""

Steps = Sequence[CapacityStep]


@dataclass(frozen=True)
class CapacityCurve:
    """One curve over the load: a path, its points, and bars of intervals."""

    label: str
    css: str
    path: str
    dots: str
    bars: str = ""


@dataclass(frozen=True)
class CapacityChart:
    """Curves on one scale; ticks are (position in per cent, label)."""

    title: str
    curves: Sequence[CapacityCurve]
    y_ticks: Sequence[tuple[float, str]]
    line: float | None = None


@dataclass(frozen=True)
class AxisScale:
    """Maps values to a position between 0 and 1, linear or logarithmic."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            return _share(math.log(max(value, self.low)), math.log(self.low), math.log(self.high))
        return _share(value, self.low, self.high)


def render(data: CapacityResult) -> str:
    return templates.render(
        "capacity.html.j2",
        badge=_BADGES.get(data.verdict or "", "unknown"),
        verdict=(data.verdict or "not finished").upper(),
        **shared(data),
        facts=capacity_text.facts(data),
        failures=[f"{f.id} in {f.steps} steps: {clean(f.title, 200)}" for f in data.failures],
        data=data,
        text=capacity_text,
        statuses=_STATUS_CSS,
    )


def shared(data: CapacityResult) -> dict[str, Any]:
    """Answer and curves, for the page and the Capacity tab of the web UI."""
    steps = sorted(capacity_text.longest_steps(data.steps), key=lambda step: step.load)
    loads = [step.load for step in steps]
    x = AxisScale(min(loads) / 1.15, max(loads) * 1.15, log=True) if loads else AxisScale(1, 2)
    marks = [(load, css) for load, css in ((data.answer.low, "good"), (data.answer.high, "bad")) if load]
    return {
        "headline": capacity_text.headline(data),
        "goal": capacity_text.goal_text(data),
        "traffic": capacity_text.phase_text(data),
        "target": clean(data.target, 300),
        "server": " ".join(clean(part, 100) for part in data.server.parts),
        "times": f"{utc_text(data.started)}, {len(data.steps)} steps, {duration(data.seconds)}",
        "charts": _charts(steps, x, data) if len(steps) > 1 else [],
        "x_ticks": _load_ticks(x, [load for load, _ in marks]),
        "x_label": "requests/s" if data.by == "rate" else "users",
        "marks": [(100 * x.at(load), css) for load, css in marks],
    }


def _charts(steps: Steps, x: AxisScale, data: CapacityResult) -> list[CapacityChart]:
    charts = [_goodput(steps, x, data.goal)]
    charts.append(_linear("Throughput, requests/s", steps, x, [("completed", "first", "requests_per_s")]))
    charts.append(
        _linear("Throughput, output tokens/s", steps, x, [("output tokens/s", "second", "output_tokens_per_s")])
    )
    for name, title in (("ttft", "Time to first token"), ("itl", "Time between chunks"), ("e2e", "End-to-end time")):
        pairs = [("p50", "first", f"{name}_p50_s"), ("p99", "second", f"{name}_p99_s")]
        charts.append(_latency(title, steps, x, pairs, data.slo_s.get(name)))
    return [chart for chart in charts if chart.curves]


def _goodput(steps: Steps, x: AxisScale, goal: float) -> CapacityChart:
    y = AxisScale(0, 1.1)
    known = [s for s in steps if s.goodput is not None]
    bars = "".join(
        f"M{_x(x, s.load)},{_y(y, s.goodput_low or 0.0)}V{_y(y, s.goodput_high or 0.0)}" for s in known
    )  # fmt: skip
    curve = _curve("goodput, with its interval", "first", known, "goodput", (x, y))
    ticks = [(100 * y.at(v), f"{100 * v:.0f} %") for v in (0, 0.5, 1)]
    curves = [CapacityCurve(curve.label, curve.css, curve.path, curve.dots, bars)] if known else []
    return CapacityChart("Goodput", curves, ticks, 100 * y.at(goal))


def _linear(title: str, steps: Steps, x: AxisScale, series: Sequence[tuple[str, str, str]]) -> CapacityChart:
    most = max((v for s in steps for _, _, key in series if (v := s.figure(key))), default=0.0)
    if not most:
        return CapacityChart(title, (), ())
    y = AxisScale(0, 1.1 * most)
    ticks = [(100 * y.at(v), per_second(v)) for v in (0, most / 2, most)]
    return CapacityChart(title, _curves(steps, series, (x, y)), ticks)


def _latency(
    title: str, steps: Steps, x: AxisScale, series: Sequence[tuple[str, str, str]], limit_s: float | None
) -> CapacityChart:
    values = [v for s in steps for _, _, key in series if (v := s.figure(key))]
    if not values:
        return CapacityChart(title, (), ())
    values += [limit_s] if limit_s else []
    y = AxisScale(min(values) / 1.3, max(values) * 1.3, log=True)
    ticks = [(100 * y.at(v), tick_duration(v)) for v in _decades(y)]
    return CapacityChart(title, _curves(steps, series, (x, y)), ticks, 100 * y.at(limit_s) if limit_s else None)


def _curves(
    steps: Steps, series: Sequence[tuple[str, str, str]], axes: tuple[AxisScale, AxisScale]
) -> list[CapacityCurve]:
    found = []
    for label, css, key in series:
        known = [s for s in steps if s.figure(key)]
        if known:
            found.append(_curve(label, css, known, key, axes))
    return found


def _curve(label: str, css: str, steps: Steps, key: str, axes: tuple[AxisScale, AxisScale]) -> CapacityCurve:
    points = [f"{_x(axes[0], s.load)},{_y(axes[1], s.figure(key) or 0.0)}" for s in steps]
    return CapacityCurve(label, css, "M" + "L".join(points), "".join(f"M{p}h0" for p in points))


def _x(scale: AxisScale, value: float) -> float:
    return round(_WIDTH * scale.at(float(value)), 1)


def _y(scale: AxisScale, value: float) -> float:
    return round(_HEIGHT * (1 - scale.at(float(value))), 2)


def _share(value: float, low: float, high: float) -> float:
    return 0.0 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))


def _decades(scale: AxisScale) -> list[float]:
    """Round values on a logarithmic axis: 1, 2 and 5 in each decade, or fewer where that are too many."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for parts in ((1, 2, 5), (1, 3), (1,)):
        found = [p * 10.0**n for n in range(first, last + 1) for p in parts]
        inside = [float(f"{v:.3g}") for v in found if scale.low <= v <= scale.high]
        if len(inside) <= _MOST_TICKS // 2 + 1:
            return inside
    return inside


def _load_ticks(scale: AxisScale, marked: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks at the marked loads, and at round ones that are not near them."""
    if not scale.log:
        return []
    places = [scale.at(load) for load in marked]
    marked = [load for n, load in enumerate(marked) if all(abs(places[n] - at) > _APART for at in places[:n])]
    round_loads = [v for v in _decades(scale) if all(abs(scale.at(v) - at) > _APART for at in places)]
    return [(100 * scale.at(v), figure(float(f"{v:.4g}"))) for v in sorted([*marked, *round_loads])]
