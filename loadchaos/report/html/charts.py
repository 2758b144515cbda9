"""Draw charts as static SVG paths on a plane of 1000 x 100, which the page stretches; ticks are in per cent. The labels
are HTML, because an SVG that shrinks to the width of a phone shrinks its letters too. plots.py says why report.html has
this renderer and an interactive one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadchaos.analysis.figures.series import Series, Span
from loadchaos.report.formatting import clean, duration, percent, tick_duration
from loadchaos.report.html.plots import Plot, Value, plots

WIDTH, HEIGHT = 1000.0, 100.0
_MAX_LANE_SPANS = 400
_LAST_TICK = 0.05  # of the width: a label there would stick out
_SHADES_APART = 0.05  # per cent of the width: closer spans become one


@dataclass(frozen=True)
class ChartLine:
    """One named path: a `line`, an `area` or a `heat`. `dots` is the path of the points without neighbours."""

    label: str
    css: str
    path: str
    kind: str = "line"
    dots: str = ""


@dataclass(frozen=True)
class Tick:
    """A label at a position in per cent, from the left or from the bottom."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """One chart on the common time axis. `empty` says why there is nothing to draw, `text` is for screen readers,
    `transform` leads from the plane of the paths to this one.
    """

    title: str
    lines: tuple[ChartLine, ...]
    ticks: tuple[Tick, ...]
    empty: str = ""
    css: str = ""
    text: str = ""
    transform: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar of a timeline lane, in per cent of the width."""

    left: float
    width: float
    css: str
    title: str


@dataclass(frozen=True)
class Lane:
    """One row of the timeline."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Shade:
    """Time spans shaded behind all charts: attacks or a server state."""

    css: str
    spans: tuple[tuple[float, float], ...]
    path: str


@dataclass(frozen=True)
class ChartSet:
    """All drawings of a run, with the numbers behind the charts (`plots`). `starts`: second at which each point begins;
    `width_s`: seconds that one covers; `note`: why there is nothing to draw.
    """

    lanes: tuple[Lane, ...] = ()
    charts: tuple[Chart, ...] = ()
    ticks: tuple[Tick, ...] = ()
    shades: tuple[Shade, ...] = ()
    marks: tuple[Bar, ...] = ()
    from_s: float = 0.0
    to_s: float = 0.0
    width_s: int = 1
    note: str = field(default="")
    plots: tuple[Plot, ...] = ()
    starts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Axis:
    """Maps values to a position between 0 and 1, linear or logarithmic."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        return 0.0 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))

    def percent(self, value: float) -> float:
        return round(100 * self.at(value), 3)


def picture(series: Series, incidents: Sequence[tuple[float, str]] = ()) -> ChartSet:
    """Draw a whole run; `incidents` are (seconds on the axis, label)."""
    points = series.points()
    spans = series.spans()
    if not points:
        return ChartSet(note="nothing was recorded")
    axis = Axis(points[0][0], max(points[-1][0] + series.width_s, *(s.to_s for s in spans), points[0][0] + 1))
    starts, width = tuple(t for t, _ in points), series.width_s
    numbers = tuple(plots(points, width, series.answers.event_tokens.mean))
    return ChartSet(
        lanes=tuple(_lanes(axis, spans, incidents)),
        charts=tuple(_chart(axis, p, starts, width) for p in numbers),
        ticks=tuple(_time_ticks(axis)),
        shades=tuple(_shades(axis, spans)),
        marks=tuple(Bar(axis.percent(at), 0, "mark", label) for at, label in incidents),
        from_s=axis.low,
        to_s=axis.high,
        width_s=width,
        plots=numbers,
        starts=starts,
    )


# What a gap of one monitor means: the others kept recording.
_GAP_LABELS = {"scrape": "no metrics", "log": "no log", "probe": "no probes", "kernel": "no kernel log"}


# -- lanes ---------------------------------------------------------------------------------------------------------


def _lanes(axis: Axis, every: Sequence[Span], incidents: Sequence[tuple[float, str]]) -> list[Lane]:
    by_lane: dict[str, list[Span]] = {}
    for span in every:
        by_lane.setdefault(span.lane, []).append(span)
    lanes = []
    states = [name for name in by_lane if name.startswith("state:")]
    for name in states:
        label = "server" if len(states) == 1 else name.removeprefix("state:")
        lanes.append(Lane(clean(label, 24), tuple(_bar(axis, s, "state-" + clean(s.name, 20)) for s in by_lane[name])))
    if incidents:
        lanes.append(Lane("incidents", tuple(Bar(axis.percent(at), 0.4, "bad", label) for at, label in incidents)))
    for name in sorted(n for n in by_lane if n.startswith("attack:")):
        bars = _joined(axis, by_lane[name], "attack")
        lanes.append(Lane(clean(name.removeprefix("attack:"), 24), bars))
    if "load" in by_lane:
        lanes.append(Lane("load", tuple(_bar(axis, s, "ours") for s in by_lane["load"])))
    gaps: dict[str, list[Span]] = {}
    for span in by_lane.get("gap", ()):
        gaps.setdefault(_GAP_LABELS.get(span.name, "not monitored"), []).append(span)
    lanes += [Lane(label, _joined(axis, spans, "none")) for label, spans in gaps.items()]
    return lanes


def _bar(axis: Axis, span: Span, css: str) -> Bar:
    left = axis.percent(span.from_s)
    text = f": {clean(span.text, 300)}" if span.text else ""
    title = f"{clean(span.name, 60)}, {_clock(span.from_s)} to {_clock(span.to_s)}{text}"
    return Bar(left, max(0.15, round(axis.percent(span.to_s) - left, 3)), css, title)


def _joined(axis: Axis, spans: Sequence[Span], css: str) -> tuple[Bar, ...]:
    step = math.ceil(len(spans) / _MAX_LANE_SPANS)
    bars = []
    for i in range(0, len(spans), step):
        group = spans[i : i + step]
        first, last_s = group[0], max(s.to_s for s in group)
        name, text = (first.name, first.text) if step == 1 else (f"{len(group)} x {first.name}", "")
        bars.append(_bar(axis, Span(first.lane, name, first.from_s, last_s, text), css))
    return tuple(bars)


# -- shades behind the charts ----------------------------------------------------------------------------------


def _shades(axis: Axis, every: Sequence[Span]) -> list[Shade]:
    kinds: dict[str, list[tuple[float, float]]] = {}
    for span in sorted(every, key=lambda s: not s.lane.startswith("state:")):
        if span.lane.startswith("attack:"):
            kinds.setdefault("attack", []).append((span.from_s, span.to_s))
        elif span.lane.startswith("state:") and span.name != "healthy":
            kinds.setdefault("state-" + clean(span.name, 20), []).append((span.from_s, span.to_s))
    return [
        Shade(css, spans, _shade_path(axis, spans)) for css, found in kinds.items() if (spans := _union(axis, found))
    ]


def _union(axis: Axis, spans: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    joined: list[tuple[float, float]] = []
    for a, b in sorted(spans):
        if joined and axis.percent(a) - axis.percent(joined[-1][1]) < _SHADES_APART:
            joined[-1] = joined[-1][0], max(b, joined[-1][1])
        else:
            joined.append((a, b))
    return tuple(joined)


def _shade_path(axis: Axis, spans: Sequence[tuple[float, float]]) -> str:
    ends = ((axis.percent(a) * WIDTH / 100, axis.percent(b) * WIDTH / 100) for a, b in spans)
    return "".join(f"M{a:.1f},0H{max(b, a + 1.5):.1f}V100H{a:.1f}z" for a, b in ends)


# -- charts --------------------------------------------------------------------------------------------------------


def _chart(axis: Axis, plot: Plot, starts: Sequence[float], width_s: int) -> Chart:
    if plot.empty:
        return Chart(plot.title, (), (), plot.empty)
    label = _LABELS[plot.unit]
    if plot.stacked:
        return _stacked(axis, plot, starts, width_s, label)
    place, ticks = _logarithmic(plot, label) if plot.log else _linear(plot, label)
    times = [t + width_s / 2 for t in starts]
    lines = tuple(
        ChartLine(c.label, c.css, *_path(axis, times, [None if v is None else place(v) for v in c.values]))
        for c in plot.curves
    )
    return Chart(plot.title, lines, ticks)


Place = Callable[[float], float]
"""Maps a value to its share of the chart's height."""


def _linear(plot: Plot, label: Callable[[float], str]) -> tuple[Place, tuple[Tick, ...]]:
    top = plot.top
    if top:
        return lambda v: v / top, (Tick(50, label(top / 2)), Tick(100, label(top)))
    limit, ticks = _scale(max(v for c in plot.curves for v in c.values if v is not None), label)
    return lambda v: v / limit, ticks


def _logarithmic(plot: Plot, label: Callable[[float], str]) -> tuple[Place, tuple[Tick, ...]]:
    values = [v for c in plot.curves for v in c.values if v]
    lowest = min(values)
    floor, ceiling = math.floor(math.log10(lowest)), math.ceil(math.log10(max(values)) + 1e-9)
    decades = max(1, ceiling - floor)
    ticks = tuple(Tick(round(100 * (e - floor) / decades, 2), label(10.0**e)) for e in range(floor + 1, ceiling + 1))
    return lambda v: (math.log10(max(v, lowest)) - floor) / decades, ticks


def _stacked(axis: Axis, plot: Plot, starts: Sequence[float], width_s: int, label: Callable[[float], str]) -> Chart:
    every = [[v or 0.0 for v in c.values] for c in plot.curves]
    top, ticks = _scale(max(map(sum, zip(*every, strict=True))), label)
    below = [0.0] * len(starts)
    lines = []
    for curve, values in zip(plot.curves, every, strict=True):
        above = [b + v for b, v in zip(below, values, strict=True)]
        lines.append(ChartLine(curve.label, curve.css, _columns(axis, starts, width_s, below, above, top), "area"))
        below = above
    return Chart(plot.title, tuple(lines), ticks)


def _columns(
    axis: Axis, starts: Sequence[float], width_s: int, below: Sequence[float], above: Sequence[float], top: float
) -> str:
    parts: list[str] = []
    run: list[int] = []
    for i in range(len(starts) + 1):
        if i < len(starts) and above[i] > below[i]:
            run.append(i)
        elif run:
            there, back = [], []
            for j in run:
                x0, x1 = _x(axis, starts[j]), _x(axis, starts[j] + width_s)
                there.append(f"{x0},{_y(above[j], top)} {x1},{_y(above[j], top)}")
                back.append(f"{x1},{_y(below[j], top)} {x0},{_y(below[j], top)}")
            parts.append("M" + " ".join([*there, *reversed(back)]) + "z")
            run = []
    return "".join(parts)


def _path(axis: Axis, times: Sequence[float], shares: Sequence[Value]) -> tuple[str, str, str]:
    """Path through shares of the height (0 to 1), its kind, and dots. A gap stays a gap, a single point becomes a dot."""
    parts, dots, pen = [], [], False
    for i, (t, v) in enumerate(zip(times, shares, strict=True)):
        if v is None:
            pen = False
            continue
        at = f"{_x(axis, t)},{_y(v, 1.0)}"
        if not pen and (i + 1 == len(shares) or shares[i + 1] is None):
            dots.append(f"M{at}h0")
            continue
        parts.append(("L" if pen else "M") + at)
        pen = True
    return "".join(parts), "line", "".join(dots)


def _x(axis: Axis, at_s: float) -> str:
    return f"{axis.percent(at_s) * WIDTH / 100:.1f}".removesuffix(".0")


def _y(value: float, top: float) -> str:
    return f"{HEIGHT * (1 - min(1.0, max(0.0, value / top))):.1f}".removesuffix(".0")


def _scale(highest: float, label: Callable[[float], str]) -> tuple[float, tuple[Tick, ...]]:
    if highest <= 0:
        return 1.0, (Tick(100, label(1.0)),)
    power = 10.0 ** math.floor(math.log10(highest))
    top = next(m * power for m in (1, 2, 4, 5, 10) if m * power >= highest * 0.999)
    return top, (Tick(50, label(top / 2)), Tick(100, label(top)))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:.2g}"


_LABELS: dict[str, Callable[[float], str]] = {"": _short, "s": tick_duration, "%": percent}

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


def _time_ticks(axis: Axis) -> list[Tick]:
    span = axis.high - axis.low
    step = next((s for s in _STEPS_S if span / s <= 7), 86400 * max(1, math.ceil(span / 86400 / 7)))
    first = math.ceil(axis.low / step)
    last = math.floor((axis.high - span * _LAST_TICK) / step)
    return [Tick(axis.percent(i * step), _clock(i * step)) for i in range(first, last + 1)]


def _clock(at_s: float) -> str:
    """Format seconds since the first request as `-5 s`, `0:42` or `1:02:03`."""
    if at_s < 0:
        return f"-{-at_s:g} s" if at_s == int(at_s) else f"-{duration(-at_s)}"
    whole = int(at_s)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
