"""Render the page of a capacity search: answer, curves, steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.core.units import figure
from loadchaos.report import capacity_text
from loadchaos.report.formatting import clean, duration, percent, tick_duration, utc_text
from loadchaos.report.html import templates
from loadchaos.report.html.charts import HEIGHT, WIDTH, Axis, ChartLine, Tick
from loadchaos.report.performance import per_second

_BADGES = {"pass": "pass", "fail": "fail", "unknown": "unknown", "error": "fail"}
_STATUS_CSS = {"met": "pass", "not_met": "fail", "undecided": "unknown", "client": "unknown"}
_MOST_TICKS = 8
_APART = 0.1
"""Part of the axis between two labels."""

Steps = Sequence[CapacityStep]


@dataclass(frozen=True)
class CapacityChart:
    """Curves over the load, on one scale. `goal` is the place of a dashed line, `bars` the path of their intervals."""

    title: str
    curves: Sequence[ChartLine] = ()
    ticks: Sequence[Tick] = ()
    goal: float | None = None
    bars: str = ""


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


def shared(data: CapacityResult) -> dict[str, object]:
    """Answer and curves, for the page and the Capacity tab of the web UI."""
    steps = sorted(capacity_text.longest_steps(data.steps), key=lambda step: step.load)
    loads = [step.load for step in steps]
    x = Axis(min(loads) / 1.15, max(loads) * 1.15, log=True) if loads else Axis(1, 2)
    marks = [(load, css) for load, css in ((data.answer.low, "good"), (data.answer.high, "bad")) if load]
    return {
        "headline": capacity_text.headline(data),
        "goal": capacity_text.goal_text(data),
        "traffic": capacity_text.phase_text(data),
        "target": clean(data.target, 300),
        "server": " ".join(clean(part, 100) for part in data.server.parts),
        "times": f"{utc_text(data.started)}, {len(data.steps)} steps, {duration(data.seconds)}",
        "charts": _Drawing(steps, x).charts(data) if len(steps) > 1 else [],
        "x_ticks": _load_ticks(x, [load for load, _ in marks]),
        "x_label": "requests/s" if data.by == "rate" else "users",
        "marks": [(100 * x.at(load), css) for load, css in marks],
    }


class _Drawing:
    """Draws the steps over their load, on the axis `x`."""

    def __init__(self, steps: Steps, x: Axis) -> None:
        self._steps, self._x = steps, x

    def charts(self, data: CapacityResult) -> list[CapacityChart]:
        latencies = (("ttft", "Time to first token"), ("itl", "Time between chunks"), ("e2e", "End-to-end time"))
        charts = [
            self._goodput(data.goal),
            self._throughput("Throughput, requests/s", "completed", "first", "requests_per_s"),
            self._throughput("Throughput, output tokens/s", "output tokens/s", "second", "output_tokens_per_s"),
            *(self._latency(title, name, data.slo_s.get(name)) for name, title in latencies),
        ]
        return [chart for chart in charts if chart.curves]

    def _goodput(self, goal: float) -> CapacityChart:
        y = Axis(0, 1.1)
        known = [s for s in self._steps if s.goodput is not None]
        bars = (f"M{self._place(y, s.load, s.goodput_low)}V{_down(y, s.goodput_high)}" for s in known)
        curves = self._curves(y, ("goodput, with its interval", "first", "goodput"), known=known)
        ticks = [Tick(100 * y.at(v), percent(v)) for v in (0, 0.5, 1)]
        return CapacityChart("Goodput", curves, ticks, 100 * y.at(goal), "".join(bars))

    def _throughput(self, title: str, label: str, css: str, key: str) -> CapacityChart:
        most = max((v for s in self._steps if (v := s.figure(key))), default=0.0)
        y = Axis(0, 1.1 * most)
        ticks = [Tick(100 * y.at(v), per_second(v)) for v in (0, most / 2, most)]
        return CapacityChart(title, self._curves(y, (label, css, key)), ticks)

    def _latency(self, title: str, name: str, limit_s: float | None) -> CapacityChart:
        series = ("p50", "first", f"{name}_p50_s"), ("p99", "second", f"{name}_p99_s")
        values = [v for s in self._steps for *_, key in series if (v := s.figure(key))]
        if not values:
            return CapacityChart(title)
        values += [limit_s] if limit_s else []
        y = Axis(min(values) / 1.3, max(values) * 1.3, log=True)
        ticks = [Tick(100 * y.at(v), tick_duration(v)) for v in _decades(y)]
        return CapacityChart(title, self._curves(y, *series), ticks, 100 * y.at(limit_s) if limit_s else None)

    def _curves(self, y: Axis, *series: tuple[str, str, str], known: Steps | None = None) -> list[ChartLine]:
        found = []
        for label, css, key in series:
            shown = known if known is not None else [s for s in self._steps if s.figure(key)]
            points = [self._place(y, s.load, s.figure(key)) for s in shown]
            if points:
                dots = "".join(f"M{p}h0" for p in points)
                found.append(ChartLine(label, css, "M" + "L".join(points), dots=dots))
        return found

    def _place(self, y: Axis, load: float, value: float | None) -> str:
        return f"{round(WIDTH * self._x.at(float(load)), 1)},{_down(y, value)}"


def _down(scale: Axis, value: float | None) -> float:
    return round(HEIGHT * (1 - scale.at(float(value or 0.0))), 2)


def _decades(scale: Axis) -> list[float]:
    """Round values on a logarithmic axis: 1, 2 and 5 in each decade, or fewer where that are too many."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for parts in ((1, 2, 5), (1, 3), (1,)):
        found = [p * 10.0**n for n in range(first, last + 1) for p in parts]
        inside = [float(f"{v:.3g}") for v in found if scale.low <= v <= scale.high]
        if len(inside) <= _MOST_TICKS // 2 + 1:
            return inside
    return inside


def _load_ticks(scale: Axis, marked: Sequence[float]) -> list[Tick]:
    if not scale.log:
        return []
    places = [scale.at(load) for load in marked]
    marked = [load for n, load in enumerate(marked) if all(abs(places[n] - at) > _APART for at in places[:n])]
    round_loads = [v for v in _decades(scale) if all(abs(scale.at(v) - at) > _APART for at in places)]
    return [Tick(100 * scale.at(v), figure(float(f"{v:.4g}"))) for v in sorted([*marked, *round_loads])]
