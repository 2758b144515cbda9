"""What the charts of a run show, as numbers: charts.py draws them as SVG, report.js with uPlot where scripts run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadchaos.core.model import OUTCOMES
from loadchaos.report.live_stats.buckets import Bucket

_NS = 1_000_000_000
_LOG_FROM = 20
"""A chart becomes logarithmic when its highest value is so many times its middle one."""

Value = float | None
Points = Sequence[tuple[float, Bucket | None]]

# One colour a kind of outcome (CSS classes of the page): what went well, what was refused, what broke, what we did.
OUTCOME_CLASS = {
    "ok": "good", "rejected": "warn", "shed": "warn", "aborted": "ours", "missed": "none", "unfinished": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One value a point, None in gaps; `css` is its colour's class."""

    label: str
    css: str
    values: Sequence[Value]

    @property
    def told(self) -> bool:
        """Whether it has any value."""
        return any(v is not None for v in self.values)


@dataclass(frozen=True)
class Plot:
    """Curves over one scale that begins at 0 or is `log`; `unit` is `s`, `%` or none; `top` the scale's end if it is fixed.

    Of `stacked` curves each stands on the one before, as columns. `empty` says why there is nothing to see.
    """

    title: str
    curves: tuple[Curve, ...] = ()
    unit: str = ""
    top: float | None = None
    log: bool = False
    stacked: bool = False
    empty: str = ""


def plots(points: Points, width_s: int) -> list[Plot]:
    """All of a run's charts, in the order in which they are read."""

    def each(read: Callable[[Bucket], Value]) -> list[Value]:
        return [None if b is None else read(b) for _, b in points]

    def quantile(kind: str, q: float) -> list[Value]:
        return each(lambda b: None if (v := b.latency[kind].quantile(q)) is None else v / _NS)

    every = [
        _outcomes(points, width_s),
        _plot("Time to first token", [
            Curve("p99", "second", quantile("ttft", 0.99)), Curve("p50", "first", quantile("ttft", 0.5)),
        ], "s", may_log=True, empty="no request was answered"),
        _plot("Gaps between tokens", [
            Curve("p99", "second", quantile("itl", 0.99)), Curve("p50", "first", quantile("itl", 0.5)),
        ], "s", may_log=True, empty="no answer had two tokens"),
        _plot("Tokens received per second", [
            Curve("tokens/s", "first", each(lambda b: b.tokens / width_s if b.in_flight else None)),
        ], empty="no token came"),
        _plot("In flight, and what the server says of it", [
            Curve("in flight (ours)", "ours", each(lambda b: sum(b.in_flight.values()) if b.in_flight else None)),
            Curve("running (server)", "first", each(lambda b: b.gauge("requests_running"))),
            Curve("waiting (server)", "second", each(lambda b: b.gauge("requests_waiting"))),
        ], empty="no request was in flight"),
    ]  # fmt: skip
    # What only some servers and machines tell of has no chart where they do not.
    some = [
        _plot("KV cache in use", [
            Curve("fullest replica", "first", each(lambda b: b.gauge("kv_usage_ratio", "max"))),
        ], "%", top=1.0),
        _plot("The machines: memory and GPUs in use", [
            Curve("GPU memory (fullest)", "first",
                  each(lambda b: b.fullest("gpu_memory_used_bytes", "gpu_memory_free_bytes"))),
            Curve("GPU busy (busiest)", "second", each(lambda b: b.busiest("gpu_utilisation_ratio"))),
            Curve("host memory (fullest)", "ours", each(Bucket.host_memory)),
            Curve("disk (fullest)", "warn", each(lambda b: b.left("disk_free_bytes", "disk_size_bytes"))),
            Curve("open files (host)", "attack", each(lambda b: b.share("host_files_open", "host_files_limit"))),
        ], "%", top=1.0),
        _plot("The GPUs: temperature and power", [
            Curve("temperature (hottest), C", "second", each(lambda b: b.busiest("gpu_temperature_c"))),
            Curve("power (highest), W", "first", each(lambda b: b.busiest("gpu_power_w"))),
        ]),
    ]  # fmt: skip
    slow = each(lambda b: b.slowed())
    if any(slow):
        some.append(_plot("The GPUs that slow themselves down", [Curve("too hot, or short of power", "bad", slow)]))
    return [*every, *(p for p in some if p.curves)]


def _plot(
    title: str,
    curves: Sequence[Curve],
    unit: str = "",
    *,
    top: float | None = None,
    may_log: bool = False,
    empty: str = "",
) -> Plot:
    told = tuple(c for c in curves if c.told)
    values = sorted(v for c in told for v in c.values if v is not None)
    if not values:
        return Plot(title, empty=empty or "nothing was measured")
    middle = values[len(values) // 2]
    log = may_log and middle > 0 and values[-1] > _LOG_FROM * middle
    return Plot(title + (" (logarithmic)" if log else ""), told, unit, top, log)


def _outcomes(points: Points, width_s: int) -> Plot:
    seen = {o for _, b in points if b for o in b.outcomes}
    order = [o for o in OUTCOMES if o in seen] + sorted(seen - set(OUTCOMES))
    curves: list[Curve] = []
    broken = 0
    for outcome in order:
        css = OUTCOME_CLASS.get(outcome, "")
        if not css:
            css, broken = f"bad{broken % 3}", broken + 1
        curves.append(Curve(outcome, css, [0.0 if b is None else b.outcomes[outcome] / width_s for _, b in points]))
    empty = "" if curves else "no request ended"
    return Plot("Requests ended per second, by outcome", tuple(curves), stacked=True, empty=empty)
