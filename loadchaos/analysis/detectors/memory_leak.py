"""Detect memory leaks of server processes.

Growth of a start and of a warm-up, growth that levels off, and growth of an image cache are no leaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loadchaos.analysis.detectors.base import Detector, Finding, from_figures
from loadchaos.analysis.detectors.devices import MOST_PROCESSES
from loadchaos.analysis.detectors.image_cache import ImageCacheBudget
from loadchaos.analysis.detectors.trend_tests import Point, RisingTrend, Samples, rising_trend, slope
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.ledger.rows import ConfigurationRow, EndRow, ProcessRow
from loadchaos.core.model import SERVER_ROLES
from loadchaos.core.units import NS_PER_S

SPAN_S = 600.0
"""Time over which memory grows before that is a leak."""
_WARM_UP_S = 300.0
_STEADY = 0.8  # of the slope before: a line has 1 of it, a square root 0.77, a logarithm 0.6
_BY, _AT_LEAST = 0.05, 64 * 1024 * 1024.0
_MB = 2**20


def leak_trend(resident: Sequence[Point], *, cache_bytes: float = 0.0) -> RisingTrend | None:
    """Trend of leaking memory (bytes) over ten minutes or more. It rises by 5 % and by 64 MB more than caches may hold.
    It must rise at the end as it did before: the first third, five minutes or more of it, is warm-up and does not
    count.
    """
    if not resident or resident[-1][0] - resident[0][0] < SPAN_S:
        return None
    trend = rising_trend(resident, at_least=_AT_LEAST + cache_bytes, by=_BY)
    return trend if trend is not None and _steady(resident) else None


def _steady(points: Sequence[Point]) -> bool:
    begin, span_s = points[0][0], points[-1][0] - points[0][0]
    warm = [p for p in points if p[0] - begin >= max(_WARM_UP_S, span_s / 3)]
    middle = len(warm) // 2
    return slope(warm[middle:]) >= _STEADY * slope(warm[:middle]) and slope(warm[middle:]) > 0


class MemoryLeakDetector(Detector):
    """Folds process, end and configuration rows. Reports leaks, each once, and growth that proves none as a check."""

    slow = True

    def __init__(self) -> None:
        super().__init__()
        self._resident: dict[tuple[str, int], tuple[str, Samples]] = {}
        self._seen_ns: dict[tuple[str, int], int] = {}
        self._answered_ns = 0
        self._reported: set[tuple[str, int]] = set()
        self._aborted = False
        self._image_cache = ImageCacheBudget()

    def on_configuration(self, row: ConfigurationRow) -> None:
        self._image_cache.on_configuration(row)

    def on_end(self, row: EndRow) -> None:
        self._image_cache.on_end(row)
        self._aborted = self._aborted or row.get("outcome") == "aborted"
        if row.get("outcome") == "ok":
            self._answered_ns = row["at_ns"]

    def on_process(self, row: ProcessRow) -> None:
        role, resident = str(row.get("role")), row.get("rss_bytes")
        key = (str(row.get("replica")), int(row.get("pid") or 0))
        if row.get("what") == "gone":
            self._resident.pop(key, None)
            self._seen_ns.pop(key, None)
        elif self._answered_ns < self._seen_ns.setdefault(key, row["at_ns"]):
            return  # it may still load its model
        elif role in SERVER_ROLES and resident and (key in self._resident or len(self._resident) < MOST_PROCESSES):
            self._resident.setdefault(key, (role, Samples()))[1].add(row["at_ns"] / NS_PER_S, float(resident))

    def poll(self, now_ns: int) -> list[Failure]:
        for key, (role, samples) in self._resident.items():
            if key in self._reported:
                continue
            trend = leak_trend(samples.points(), cache_bytes=self._image_cache.bytes)
            if trend is None:
                continue
            self._reported.add(key)
            title = f"Memory of {_process(role, key)} grows steadily: {trend.begin / _MB:.0f} MB to {trend.end / _MB:.0f} MB"
            title += f" in {trend.span_s:.0f} s ({trend.per_s * 3600 / _MB:.0f} MB/h)"
            name = "api_server_leak" if role == "api_server" and self._aborted else "memory_leak"
            remedy = "Restart it before memory runs out. Send a heap profile of that process (memray attach) upstream."
            self._pending.append(from_figures(name, "degraded", title, remedy, now_ns, f"pid {key[1]}"))
        return super().poll(now_ns)

    def finish(self) -> list[Finding]:
        grew = [
            text
            for key, (role, samples) in self._resident.items()
            if key not in self._reported and (text := self._unproved(_process(role, key), samples.points()))
        ]
        return [CheckResult("memory", "no process leaks", f"no leak proved: {'; '.join(grew)}", "pass")] if grew else []

    def _unproved(self, process: str, points: Sequence[Point]) -> str:
        if len(points) < 2:
            return ""
        edge, span_s = max(1, len(points) // 10), points[-1][0] - points[0][0]
        begin, end = median(v for _, v in points[:edge]), median(v for _, v in points[-edge:])
        if end - begin < max(_AT_LEAST, _BY * begin):
            return ""
        if span_s < SPAN_S:
            why = f"a leak needs {SPAN_S:.0f} s of data"
        elif leak_trend(points) is not None:
            why = f"its image cache may hold {self._image_cache.bytes / _MB:.0f} MB"
        else:
            why = "the growth slowed down"
        return f"{process} grew from {begin / _MB:.0f} to {end / _MB:.0f} MB in {span_s:.0f} s ({why})"


def _process(role: str, key: tuple[str, int]) -> str:
    return f"{role.replace('_', ' ')} (pid {key[1]})"
