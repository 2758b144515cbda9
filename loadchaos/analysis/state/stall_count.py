"""Count stalls that follow each other: they are one degraded time."""

from __future__ import annotations

from loadchaos.core.units import NS_PER_S

_CALM_NS = 10 * NS_PER_S


class Stalls:
    """Counts stalls until a time without any. `ended_ns`: when tokens came after the newest; 0: there was none."""

    def __init__(self) -> None:
        self._open_ns: int | None = None
        self._first_ns = self.ended_ns = self._longest_ns = self._count = 0

    def begin(self, since_ns: int) -> None:
        self._open_ns = since_ns
        self._first_ns = self._first_ns or since_ns

    def progressed(self, at_ns: int) -> None:
        if self._open_ns is not None:
            self._count += 1
            self._longest_ns = max(self._longest_ns, at_ns - self._open_ns)
            self.ended_ns, self._open_ns = at_ns, None

    def recent(self, now_ns: int) -> bool:
        """True while the next stall would belong to the ones before."""
        return self._count > 0 and now_ns - self.ended_ns < _CALM_NS

    def describe(self) -> str:
        longest = f"{self._longest_ns / NS_PER_S:.1f} s"
        if self._count > 1:
            return f"{self._count} stalls in {(self.ended_ns - self._first_ns) / NS_PER_S:.0f} s, the longest {longest}"
        return f"1 stall of {longest}" if self._count else ""

    def forget(self) -> None:
        self._open_ns = None
        self._first_ns = self.ended_ns = self._longest_ns = self._count = 0
