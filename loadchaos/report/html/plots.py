"""Define the charts of a run as numbers, without any drawing. There are two renderers for these numbers. charts.py
draws static SVG when the page is written: it must be complete where scripts are blocked (mail, CI artifact viewers), in
print, and in web_panels.py. uplot_data.py and report.js draw the same numbers with uPlot (cursor, zoom), which needs a
canvas and therefore a script. uPlot cannot run without a browser, and hover and zoom cannot be done without a script,
so neither renderer replaces the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadchaos.analysis.figures.time_bucket import Bucket
from loadchaos.core.units import NS_PER_S
from loadchaos.report.phrases import outcome_order, outcome_text

_LOG_FROM = 20
"""A chart becomes logarithmic when its highest value is more than this many times its median."""

Value = float | None
Points = Sequence[tuple[float, Bucket | None]]

# One colour per kind of outcome (CSS classes of the page): ok, refused, failed, ended by loadchaos.
OUTCOME_CLASS = {
    "ok": "good",
    "rejected": "warn",
    "shed": "warn",
    "aborted": "ours",
    "missed": "none",
    "unfinished": "none",
}


@dataclass(frozen=True)
class Curve:
    """One value per point, None in gaps; `css` is the class of its colour."""

    label: str
    css: str
    values: Sequence[Value]

    @property
    def has_values(self) -> bool:
        return any(v is not None for v in self.values)


@dataclass(frozen=True)
class Plot:
    """Curves of one chart, with their scale. `unit` is `s`, `%` (shares of 1) or empty, `top` the upper end of a fixed
    scale, `log` a logarithmic one that does not begin at 0, `stacked` puts each curve on the one before, `empty` says
    why there is nothing to draw.
    """

    title: str
    curves: tuple[Curve, ...] = ()
    unit: str = ""
    top: float | None = None
    log: bool = False
    stacked: bool = False
    empty: str = ""


def plots(points: Points, width_s: int, event_tokens: float) -> list[Plot]:
    """Build all charts of a run, in the order of the page. `event_tokens`: tokens per event of an answer."""
    # A chart that only some servers and machines have data for is left out without data.
    return [*_load_plots(points, width_s, event_tokens), *(p for p in _server_plots(points) if p.curves)]


def _each(points: Points, read: Callable[[Bucket], Value]) -> list[Value]:
    return [None if b is None else read(b) for _, b in points]


def _quantiles(title: str, points: Points, kind: str, empty: str) -> Plot:
    def quantile(q: float) -> list[Value]:
        return _each(points, lambda b: None if (v := b.latency[kind].quantile(q)) is None else v / NS_PER_S)

    curves = [Curve("p99", "second", quantile(0.99)), Curve("p50", "first", quantile(0.5))]
    return _plot(title, curves, "s", may_log=True, empty=empty)


def _load_plots(points: Points, width_s: int, event_tokens: float) -> list[Plot]:
    def each(read: Callable[[Bucket], Value]) -> list[Value]:
        return _each(points, read)

    tokens = each(lambda b: b.events * event_tokens / width_s if b.in_flight else None)
    queues = [
        Curve("in flight (client)", "ours", each(lambda b: sum(b.in_flight.values()) if b.in_flight else None)),
        Curve("running (server)", "first", each(lambda b: b.gauge("requests_running"))),
        Curve("waiting (server)", "second", each(lambda b: b.gauge("requests_waiting"))),
    ]
    return [
        _outcomes(points, width_s),
        _quantiles("Time to first token", points, "ttft", "no request was answered"),
        _quantiles("Gaps between tokens", points, "itl", "no answer had two tokens"),
        _plot("Tokens received per second", [Curve("tokens/s", "first", tokens)], empty="no token was received"),
        _plot("Requests in flight and in the server's queue", queues, empty="no request was in flight"),
    ]


def _server_plots(points: Points) -> list[Plot]:
    def each(read: Callable[[Bucket], Value]) -> list[Value]:
        return _each(points, read)

    gpu_memory = each(lambda b: b.fullest("gpu_memory_used_bytes", "gpu_memory_free_bytes"))
    hosts = [
        Curve("GPU memory (fullest)", "first", gpu_memory),
        Curve("GPU busy (busiest)", "second", each(lambda b: b.busiest("gpu_utilisation_ratio"))),
        Curve("host memory (fullest)", "ours", each(Bucket.host_memory)),
        Curve("disk (fullest)", "warn", each(lambda b: b.used_share("disk_free_bytes", "disk_size_bytes"))),
        Curve("open files (host)", "attack", each(lambda b: b.share("host_files_open", "host_files_limit"))),
    ]
    gpus = [
        Curve("temperature (hottest), C", "second", each(lambda b: b.busiest("gpu_temperature_c"))),
        Curve("power (highest), W", "first", each(lambda b: b.busiest("gpu_power_w"))),
    ]
    kv = Curve("fullest replica", "first", each(lambda b: b.gauge("kv_usage_ratio", "max")))
    slow = each(lambda b: b.throttled_gpus())
    return [
        _plot("KV cache in use", [kv], "%", top=1.0),
        _plot("Hosts: memory and GPUs in use", hosts, "%", top=1.0),
        _plot("GPUs: temperature and power", gpus),
        *([_plot("GPUs throttled", [Curve("thermal or power limit", "bad", slow)])] if any(slow) else []),
    ]


def _plot(
    title: str,
    curves: Sequence[Curve],
    unit: str = "",
    *,
    top: float | None = None,
    may_log: bool = False,
    empty: str = "",
) -> Plot:
    filled = tuple(c for c in curves if c.has_values)
    values = sorted(v for c in filled for v in c.values if v is not None)
    if not values:
        return Plot(title, empty=empty or "nothing was measured")
    median = values[len(values) // 2]
    log = may_log and median > 0 and values[-1] > _LOG_FROM * median
    return Plot(title + (" (logarithmic)" if log else ""), filled, unit, top, log)


def _outcomes(points: Points, width_s: int) -> Plot:
    order = outcome_order(Counter(o for _, b in points if b for o in b.outcomes))
    curves: list[Curve] = []
    failed = 0
    for outcome in order:
        css = OUTCOME_CLASS.get(outcome, "")
        if not css:
            css, failed = f"bad{failed % 3}", failed + 1
        curves.append(
            Curve(outcome_text(outcome), css, [0.0 if b is None else b.outcomes[outcome] / width_s for _, b in points])
        )
    empty = "" if curves else "no request ended"
    return Plot("Requests ended per second, by outcome", tuple(curves), stacked=True, empty=empty)
