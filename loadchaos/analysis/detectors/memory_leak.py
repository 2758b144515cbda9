"""Whether a server's memory leaks: what grows while it warms up, levels off, or fills a cache with images is no leak.

Folds rows into bounded samples; `leaking` is a pure function over one process's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loadchaos.analysis.detectors.image_cache import ImageCacheBudget
from loadchaos.analysis.detectors.trend_tests import Point, RisingTrend, Samples, creeping, slope
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.mechanisms import Check
from loadchaos.analysis.request_stats import S
from loadchaos.core.model import Row

SPAN_S = 600.0
_WARM_UP_S = 300.0
_STEADY = 0.8  # of the slope before: a line has 1 of it, a square root 0.77, a logarithm 0.6
_BY, _AT_LEAST = 0.05, 64 * 1024 * 1024.0
_MOST_PROCESSES = 32
_ROLES = ("api_server", "engine_core", "worker")
_MB = 2**20


def leaking(resident: Sequence[Point], *, may_hold: float = 0.0) -> RisingTrend | None:
    """Memory (bytes) that rises by 64 MB and 5 % or more, seen for ten minutes or more, and by more than caches `may_hold`.

    It must rise at the end as it did before: the first third, five minutes or more of it, is warm-up and does not count.
    """
    if not resident or resident[-1][0] - resident[0][0] < SPAN_S:
        return None
    trend = creeping(resident, at_least=_AT_LEAST + may_hold, by=_BY)
    return trend if trend is not None and _steady(resident) else None


def _steady(points: Sequence[Point]) -> bool:
    """Whether it rises as fast in the last part as in the one before, once it is warm."""
    begin, span_s = points[0][0], points[-1][0] - points[0][0]
    warm = [p for p in points if p[0] - begin >= max(_WARM_UP_S, span_s / 3)]
    middle = len(warm) // 2
    return slope(warm[middle:]) >= _STEADY * slope(warm[:middle]) and slope(warm[middle:]) > 0


class MemoryLeakDetector:
    """Folds process, end and configuration rows; `found` tells leaks, each once, `check` what grew and proves none."""

    def __init__(self) -> None:
        self._resident: dict[tuple[str, int], tuple[str, Samples]] = {}
        self._told: set[tuple[str, int]] = set()
        self._aborted = False
        self._held = ImageCacheBudget()

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        self._held.feed(row)
        kind = row.get("row")
        if kind == "process":
            self._process(row)
        elif kind == "end":
            self._aborted = self._aborted or row.get("outcome") == "aborted"

    def _process(self, row: Row) -> None:
        role, resident = str(row.get("role")), row.get("rss_bytes")
        key = (str(row.get("replica")), int(row.get("pid") or 0))
        if row.get("what") == "gone":
            self._resident.pop(key, None)
        elif role in _ROLES and resident and (key in self._resident or len(self._resident) < _MOST_PROCESSES):
            self._resident.setdefault(key, (role, Samples()))[1].add(row["at_ns"] / S, float(resident))

    def found(self, now_ns: int) -> list[Failure]:
        """What leaks, as of now."""
        found = []
        for key, (role, samples) in self._resident.items():
            trend = leaking(samples.points(), may_hold=self._held.bytes) if key not in self._told else None
            if trend is None:
                continue
            self._told.add(key)
            title = f"Memory of the {_named(role, key)} grows and does not level off: "
            title += f"{trend.begin / _MB:.0f} MB to {trend.end / _MB:.0f} MB in {trend.span_s:.0f} s, "
            title += f"{trend.per_s * 3600 / _MB:.0f} MB an hour"
            name = "api_server_leak" if role == "api_server" and self._aborted else "memory_leak"
            remedy = "restart it before the memory is used up; heap profiles (memray attach) of that process upstream"
            shown = evidence("figures", title)
            found.append(Failure(name, "degraded", title, shown, now_ns, process=f"pid {key[1]}", remedy=remedy))
        return found

    def check(self) -> Check | None:
        """What grew by as much as a leak would, and why it proves none; None where nothing did."""
        grew = [
            words
            for key, (role, samples) in self._resident.items()
            if key not in self._told and (words := self._grew(_named(role, key), samples.points()))
        ]
        return Check("memory", "no process leaks", f"no leak proved: {'; '.join(grew)}", "pass") if grew else None

    def _grew(self, name: str, points: Sequence[Point]) -> str:
        if len(points) < 2:
            return ""
        edge, span_s = max(1, len(points) // 10), points[-1][0] - points[0][0]
        begin, end = median(v for _, v in points[:edge]), median(v for _, v in points[-edge:])
        if end - begin < max(_AT_LEAST, _BY * begin):
            return ""
        if span_s < SPAN_S:
            why = f"a leak is told from {SPAN_S:.0f} s on"
        elif leaking(points) is not None:
            why = f"its cache of images may hold {self._held.bytes / _MB:.0f} MB"
        else:
            why = "it did not grow on as steadily"
        return f"{name} grew from {begin / _MB:.0f} to {end / _MB:.0f} MB in {span_s:.0f} s ({why})"


def _named(role: str, key: tuple[str, int]) -> str:
    return f"{role.replace('_', ' ')} (pid {key[1]})"
