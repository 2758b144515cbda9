"""Measure growth within a run, for `drift.rss <= 1%/h`.

A figure is judged from five minutes on. It grows when Mann-Kendall's test (corrected for autocorrelation) leaves less than
one chance in a hundred for noise, and the second half still rises; a warm-up that levels off does not count. Memory must
also rise by more than the image cache of the server may hold, and not ever more slowly. Otherwise its growth is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loadchaos.analysis.detectors.image_cache import ImageCacheBudget
from loadchaos.analysis.detectors.trend_tests import (
    FEWEST_POINTS,
    Point,
    Samples,
    autocorrelation_factor,
    levels_off,
    mann_kendall_z,
    slope,
)
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import ConfigurationRow, DeviceRow, EndRow, MetricsRow, ProcessRow, StateRow
from loadchaos.core.model import BLAMELESS, SERVER_ROLES, Row
from loadchaos.core.units import NS_PER_S

FIGURES = {
    "rss": "memory of the server's processes",
    "threads": "their threads",
    "fds": "their open files",
    "kv": "KV cache in use with nothing running, in points",
    "gpu_memory": "memory in use on the GPUs",
    "ttft": "time to first token",
    "error_rate": "share of requests that end badly, in points",
}
"""Figures that may drift. Points are of the whole (from 3 % to 4 % is one); all else is relative to the begin."""

_POINTS = ("kv", "error_rate")
_MEMORY = ("rss", "gpu_memory")
_SPAN_S = 300.0
_SURE = 2.33  # one-sided 1 %
_STILL = 1 / 3  # of the whole rise, in the second half: a line has a half of it, a logarithm a quarter
_ERRORS_S, _ERRORS_OF = 10.0, 200  # a share of fewer requests is mostly 0, and so would be its median


_UNITS = {"rss": (2**20, "MB"), "gpu_memory": (2**20, "MB"), "ttft": (0.001, "ms"), "threads": (1, ""), "fds": (1, "")}
"""(scale, unit) of the absolute growth per hour that is shown beside the relative one."""


@dataclass(frozen=True)
class Growth:
    """Growth of a figure per hour, observed for `span_s` seconds. Relative to its begin, or in points. `absolute`: the
    same in the figure's own unit.
    """

    per_hour: float
    span_s: float
    absolute: float = 0.0

    def describe(self, figure: str) -> str:
        """`+1.20%/h (38 MB/h), p < 0.01, over 600 s`."""
        if not self.per_hour:
            return f"none over {self.span_s:.0f} s"
        size, unit = _UNITS.get(figure, (0, ""))
        amount = self.absolute / size if size else 0.0
        own = f" ({f'{amount:,.0f}' if amount >= 100 else f'{amount:.3g}'} {unit}".rstrip() + "/h)" if size else ""
        return f"{self.per_hour:+.2%}/h{own}, p < 0.01, over {self.span_s:.0f} s"


@dataclass
class _Life:
    samples: dict[str, Samples] = field(default_factory=lambda: {name: Samples() for name in FIGURES})
    processes: dict[int, Row] = field(default_factory=dict)
    cache_holders: int = 0  # processes that may keep images
    devices: dict[str, float] = field(default_factory=dict)
    wrong: int = 0
    ended: int = 0
    since_s: float = 0.0


class GrowthTracker(RowFold):
    """Growth of each figure of a run. Folds end, process, metrics, device, configuration and state rows."""

    def __init__(self) -> None:
        self._life = _Life()
        self._past: dict[str, Growth] = {}
        self._image_cache = ImageCacheBudget()

    def on_configuration(self, row: ConfigurationRow) -> None:
        self._image_cache.on_configuration(row)

    def on_process(self, row: ProcessRow) -> None:
        for name, value in _processes(self._life, row):
            self._life.samples[name].add(_second(row), value)

    def on_metrics(self, row: MetricsRow) -> None:
        values = row.get("values") or {}
        if "kv_usage_ratio" in values and not values.get("requests_running", 1) and not values.get("requests_waiting"):
            self._life.samples["kv"].add(_second(row), float(values["kv_usage_ratio"]))

    def on_device(self, row: DeviceRow) -> None:
        if (used := (row.get("values") or {}).get("gpu_memory_used_bytes")) is not None:
            self._life.devices[f"{row.get('host')} {row.get('device')}"] = float(used)
            self._life.samples["gpu_memory"].add(_second(row), sum(self._life.devices.values()))

    def on_end(self, row: EndRow) -> None:
        self._image_cache.on_end(row)
        first_ns, sent_ns = row.get("first_token_ns"), row.get("sent_ns")
        if row.get("outcome") == "ok" and first_ns and sent_ns:
            self._life.samples["ttft"].add(_second(row), (first_ns - sent_ns) / NS_PER_S)
        if (share := _errors(self._life, row, _second(row))) is not None:
            self._life.samples["error_rate"].add(*share)

    def on_state(self, row: StateRow) -> None:
        if row.get("to") in ("dead", "restarting", "terminated"):
            self._past, self._life = {k: v for k, v in self.growths().items() if v is not None}, _Life()

    def growths(self) -> dict[str, Growth | None]:
        """Growth by figure, None where the data is too short. Of several lives of the server the worst."""
        cache_bytes = {"rss": self._image_cache.bytes * self._life.cache_holders}
        now = {name: growth(name, s.points(), cache_bytes.get(name, 0.0)) for name, s in self._life.samples.items()}
        lives = {name: [g for g in (now[name], self._past.get(name)) if g is not None] for name in FIGURES}
        return {name: max(found, key=lambda g: g.per_hour) if found else None for name, found in lives.items()}


def growth(figure: str, points: list[Point], cache_bytes: float = 0.0) -> Growth | None:
    """Growth per hour; 0 where uncertain, None where the data is too short.

    Args:
        figure: a key of FIGURES.
        points: (second, value), oldest first.
        cache_bytes: growth up to this does not count.
    """
    if len(points) < FEWEST_POINTS or (span_s := points[-1][0] - points[0][0]) < _SPAN_S:
        return None
    rate = slope(points)
    half = points[len(points) // 2 :]
    if (
        mann_kendall_z([v for _, v in points]) < _SURE * autocorrelation_factor(points)
        or slope(half) * (half[-1][0] - half[0][0]) < _STILL * rate * span_s
    ):
        return Growth(0.0, span_s)
    if rate * span_s <= cache_bytes or (figure in _MEMORY and levels_off(points, z=_SURE)):
        return Growth(0.0, span_s)
    values = sorted(v - rate * (t - points[0][0]) for t, v in points)
    begin = values[len(values) // 2]
    if figure in _POINTS:
        return Growth(rate * 3600, span_s)
    return Growth(rate * 3600 / begin if begin > 0 else float("inf"), span_s, rate * 3600)


def _second(row: EndRow | ProcessRow | MetricsRow | DeviceRow) -> float:
    return (row.get("at_ns") or 0) / NS_PER_S


def _processes(life: _Life, row: ProcessRow) -> Iterator[tuple[str, float]]:
    """Sums over the server's processes, once a round. A round ends when its first process comes again."""
    pid = int(row.get("pid") or 0)
    if row.get("what") == "gone":
        life.processes.clear()
        return
    if pid in life.processes:
        life.cache_holders = sum(r.get("role") in SERVER_ROLES for r in life.processes.values())
        for name, key in (("rss", "rss_bytes"), ("threads", "threads"), ("fds", "fds")):
            known = [float(r[key]) for r in life.processes.values() if r.get(key) is not None]
            if known:
                yield name, sum(known)
        life.processes.clear()
    life.processes[pid] = row


def _errors(life: _Life, row: EndRow, at_s: float) -> tuple[float, float] | None:
    life.since_s = life.since_s or at_s
    share = None
    if at_s - life.since_s > _ERRORS_S and life.ended >= _ERRORS_OF:
        share = (life.since_s + at_s) / 2, life.wrong / life.ended
        life.wrong = life.ended = 0
        life.since_s = at_s
    life.ended += 1
    outcome = row.get("outcome")
    life.wrong += outcome not in BLAMELESS and outcome not in (row.get("expect") or ())
    return share
