"""Charts as values: paths on a 1000 x 100 plane that the page stretches, ticks in per cent. No library.

The shapes are SVG and the words are HTML, because an SVG that shrinks to a phone's width takes its letters with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadchaos.model import OUTCOMES
from loadchaos.tell.buckets import Bucket
from loadchaos.tell.series import Series, Span
from loadchaos.tell.words import clean, seconds

WIDTH, HEIGHT = 1000.0, 100.0
_NS = 1_000_000_000
_MAX_LANE_SPANS = 400
Value = float | None
Points = Sequence[tuple[float, Bucket | None]]

# One colour a kind of outcome (CSS classes of the page): what went well, what was refused, what broke, what we did.
OUTCOME_CLASS = {
    "ok": "good", "rejected": "warn", "shed": "warn", "aborted": "ours", "missed": "none", "unfinished": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One path with a name; `kind` is `line` or `area`, `css` its colour class; `dots` are its points without neighbours.

    `values` is what it shows, a number a point or nothing, with commas between: for the page's script.
    """

    label: str
    css: str
    path: str
    kind: str = "line"
    dots: str = ""
    values: str = ""


@dataclass(frozen=True)
class Tick:
    """A label at a place in per cent, from the left or from the bottom."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """One plot under the common time axis; `empty` says why there is nothing to see; `unit`: `s`, `%` or a plain number."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    empty: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Bar:
    """A stretch of a timeline lane, in per cent of the width."""

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
class Picture:
    """Everything drawn: lanes above charts, the time axis, and the moments marked through all of them."""

    lanes: tuple[Lane, ...] = ()
    charts: tuple[Chart, ...] = ()
    ticks: tuple[Tick, ...] = ()
    shades: tuple[Bar, ...] = ()
    marks: tuple[Bar, ...] = ()
    from_s: float = 0.0
    to_s: float = 0.0
    width_s: int = 1
    note: str = field(default="")


@dataclass(frozen=True)
class Axis:
    """Seconds to per cent of the width."""

    from_s: float
    to_s: float

    def percent(self, at_s: float) -> float:
        """0 to 100, cut at both ends."""
        span = max(self.to_s - self.from_s, 1e-9)
        return round(min(100.0, max(0.0, 100 * (at_s - self.from_s) / span)), 3)


def picture(series: Series, incidents: Sequence[tuple[float, str]] = ()) -> Picture:
    """The whole run; `incidents` are (seconds since the load began, label)."""
    points = series.points()
    spans = series.spans()
    if not points:
        return Picture(note="nothing was recorded")
    axis = Axis(points[0][0], max(points[-1][0] + series.width_s, *(s.to_s for s in spans), points[0][0] + 1))
    width = series.width_s
    return Picture(
        lanes=tuple(_lanes(axis, spans, incidents)),
        charts=tuple(c for c in _charts(axis, points, width) if c is not None),
        ticks=tuple(_time_ticks(axis)),
        shades=tuple(_bar(axis, s, "attack") for s in spans if s.lane.startswith("attack:"))[:_MAX_LANE_SPANS],
        marks=tuple(Bar(axis.percent(at), 0, "mark", label) for at, label in incidents),
        from_s=axis.from_s, to_s=axis.to_s, width_s=width,
    )  # fmt: skip


# What a gap in one watcher means: the others saw on.
_BLIND = {"scrape": "no metrics", "log": "no log", "probe": "no probes"}


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
    blind: dict[str, list[Span]] = {}
    for span in by_lane.get("gap", ()):
        blind.setdefault(_BLIND.get(span.name, "not watched"), []).append(span)
    lanes += [Lane(label, _joined(axis, spans, "none")) for label, spans in blind.items()]
    return lanes


def _bar(axis: Axis, span: Span, css: str) -> Bar:
    left = axis.percent(span.from_s)
    text = f": {clean(span.text, 300)}" if span.text else ""
    title = f"{clean(span.name, 60)}, {_clock(span.from_s)} to {_clock(span.to_s)}{text}"
    return Bar(left, max(0.15, round(axis.percent(span.to_s) - left, 3)), css, title)


def _joined(axis: Axis, spans: Sequence[Span], css: str) -> tuple[Bar, ...]:
    """At most some hundred bars: of a thousand attacks on a lane neighbours are drawn as one."""
    step = math.ceil(len(spans) / _MAX_LANE_SPANS)
    bars = []
    for i in range(0, len(spans), step):
        group = spans[i : i + step]
        first = group[0]
        whole = Span(first.lane, first.name, first.from_s, max(s.to_s for s in group), first.text)
        bars.append(_bar(axis, whole if step == 1 else Span(*_named(whole, len(group))), css))
    return tuple(bars)


def _named(span: Span, n: int) -> tuple[str, str, float, float]:
    return span.lane, f"{n} x {span.name}", span.from_s, span.to_s


# -- charts --------------------------------------------------------------------------------------------------------


def _charts(axis: Axis, points: Points, width_s: int) -> list[Chart | None]:
    def each(read: Callable[[Bucket], Value]) -> list[Value]:
        return [None if b is None else read(b) for _, b in points]

    def quantile(kind: str, q: float) -> list[Value]:
        return each(lambda b: None if (v := b.latency[kind].quantile(q)) is None else v / _NS)

    times = [t + width_s / 2 for t, _ in points]
    return [
        _outcomes(axis, points, width_s),
        _lines("Time to first token", axis, times, [
            ("p99", "second", quantile("ttft", 0.99)), ("p50", "first", quantile("ttft", 0.5)),
        ], seconds, may_log=True, empty="no request was answered"),
        _lines("Gaps between tokens", axis, times, [
            ("p99", "second", quantile("itl", 0.99)), ("p50", "first", quantile("itl", 0.5)),
        ], seconds, may_log=True, empty="no answer had two tokens"),
        _lines("Tokens received per second", axis, times, [
            ("tokens/s", "first", each(lambda b: b.tokens / width_s if b.in_flight else None)),
        ], _short, empty="no token came"),
        _lines("In flight, and what the server says of it", axis, times, [
            ("in flight (ours)", "ours", each(lambda b: sum(b.in_flight.values()) if b.in_flight else None)),
            ("running (server)", "first", each(lambda b: b.gauge("requests_running"))),
            ("waiting (server)", "second", each(lambda b: b.gauge("requests_waiting"))),
        ], _short, empty="no request was in flight"),
        _lines("KV cache in use", axis, times, [
            ("fullest replica", "first", each(lambda b: b.gauge("kv_usage_ratio", "max"))),
        ], _percent, top=1.0, empty="") if any(
            b is not None and b.gauge("kv_usage_ratio", "max") is not None for _, b in points
        ) else None,
        *_machines(axis, times, each),
    ]  # fmt: skip


def _machines(
    axis: Axis, times: Sequence[float], each: Callable[[Callable[[Bucket], Value]], list[Value]]
) -> list[Chart]:
    """What dcgm-exporter, node-exporter or NVML told; nothing where nobody did."""
    shares = [
        ("GPU memory (fullest)", "first", each(lambda b: b.fullest("gpu_memory_used_bytes", "gpu_memory_free_bytes"))),
        ("GPU busy (busiest)", "second", each(lambda b: b.busiest("gpu_utilisation_ratio"))),
        ("host memory (fullest)", "ours", each(Bucket.host_memory)),
    ]
    heat = [
        ("temperature (hottest), C", "second", each(lambda b: b.busiest("gpu_temperature_c"))),
        ("power (highest), W", "first", each(lambda b: b.busiest("gpu_power_w"))),
    ]
    found = []
    if told := [line for line in shares if any(v is not None for v in line[2])]:
        found.append(_lines("The machines: memory and GPUs in use", axis, times, told, _percent, top=1.0))
    if told := [line for line in heat if any(v is not None for v in line[2])]:
        found.append(_lines("The GPUs: temperature and power", axis, times, told, _short))
    return found


def _outcomes(axis: Axis, points: Points, width_s: int) -> Chart:
    """Requests ended per second, stacked by outcome."""
    seen = {o for _, b in points if b for o in b.outcomes}
    order = [o for o in OUTCOMES if o in seen] + sorted(seen - set(OUTCOMES))
    if not order:
        return Chart("Requests ended per second", (), (), "no request ended")
    rates = {o: [0.0 if b is None else b.outcomes[o] / width_s for _, b in points] for o in order}
    top, ticks = _scale(max(sum(r[i] for r in rates.values()) for i in range(len(points))), _short)
    below = [0.0] * len(points)
    lines, broken = [], 0
    for outcome in order:
        above = [b + r for b, r in zip(below, rates[outcome], strict=True)]
        css = OUTCOME_CLASS.get(outcome, "")
        if not css:
            css, broken = f"bad{broken % 3}", broken + 1
        path = _steps(axis, points, width_s, below, above, top)
        lines.append(Line(outcome, css, path, "area", values=_written(rates[outcome])))
        below = above
    return Chart("Requests ended per second, by outcome", tuple(lines), ticks)


def _steps(
    axis: Axis, points: Points, width_s: int, below: Sequence[float], above: Sequence[float], top: float
) -> str:  # fmt: skip
    """A filled band of steps; stretches where it is empty are left out."""
    parts: list[str] = []
    run: list[int] = []
    for i in range(len(points) + 1):
        if i < len(points) and above[i] > below[i]:
            run.append(i)
        elif run:
            there, back = [], []
            for j in run:
                x0, x1 = _x(axis, points[j][0]), _x(axis, points[j][0] + width_s)
                there.append(f"{x0},{_y(above[j], top)} {x1},{_y(above[j], top)}")
                back.append(f"{x1},{_y(below[j], top)} {x0},{_y(below[j], top)}")
            parts.append("M" + " ".join([*there, *reversed(back)]) + "z")
            run = []
    return "".join(parts)


def _lines(
    title: str, axis: Axis, times: Sequence[float], series: Sequence[tuple[str, str, list[Value]]],
    label: Callable[[float], str], *, top: float | None = None, may_log: bool = False, empty: str = "",
) -> Chart:  # fmt: skip
    values = [v for _, _, vs in series for v in vs if v is not None]
    if not values:
        return Chart(title, (), (), empty or "nothing was measured")
    highest, lowest = max(values), min((v for v in values if v > 0), default=0.0)
    middle = sorted(values)[len(values) // 2]
    log = may_log and middle > 0 and highest > 20 * middle
    place: Callable[[float], float]
    if log:
        floor, ceiling = math.floor(math.log10(lowest)), math.ceil(math.log10(highest) + 1e-9)
        place = lambda v: (math.log10(max(v, lowest)) - floor) / max(1, ceiling - floor)  # noqa: E731  # one of two scales
        ticks = tuple(
            Tick(round(100 * (e - floor) / max(1, ceiling - floor), 2), label(10.0**e))
            for e in range(floor + 1, ceiling + 1)
        )
    else:
        limit, ticks = (top, (Tick(50, label(top / 2)), Tick(100, label(top)))) if top else _scale(highest, label)
        place = lambda v: v / limit  # noqa: E731  # the other scale
    lines = tuple(
        Line(name, css, *_path(axis, times, [None if v is None else place(v) for v in vs]), _written(vs))
        for name, css, vs in series
        if any(v is not None for v in vs)
    )
    return Chart(title + (" (logarithmic)" if log else ""), lines, ticks, unit=_UNITS.get(label, ""))


def _written(values: Sequence[Value]) -> str:
    return ",".join("" if v is None else f"{v:.4g}" for v in values)


def _path(axis: Axis, times: Sequence[float], shares: Sequence[Value]) -> tuple[str, str, str]:
    """Line through shares of the height (0 to 1), its kind, and dots: a gap stays a gap, a lone point becomes a dot."""
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
    """A round top at or above the highest value, and two or so ticks."""
    if highest <= 0:
        return 1.0, (Tick(100, label(1.0)),)
    power = 10.0 ** math.floor(math.log10(highest))
    top = next(m * power for m in (1, 2, 4, 5, 10) if m * power >= highest * 0.999)
    return top, (Tick(50, label(top / 2)), Tick(100, label(top)))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:.2g}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


_UNITS: dict[Callable[[float], str], str] = {seconds: "s", _percent: "%"}

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


def _time_ticks(axis: Axis) -> list[Tick]:
    span = axis.to_s - axis.from_s
    step = next((s for s in _STEPS_S if span / s <= 7), 86400 * max(1, math.ceil(span / 86400 / 7)))
    first = math.ceil(axis.from_s / step)
    return [Tick(axis.percent(i * step), _clock(i * step)) for i in range(first, math.floor(axis.to_s / step) + 1)]


def _clock(at_s: float) -> str:
    """`-5 s`, `0:42`, `1:02:03` since the load began."""
    if at_s < 0:
        return f"-{seconds(-at_s)}"
    whole = int(at_s)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
