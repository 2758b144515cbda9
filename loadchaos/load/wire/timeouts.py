"""Time limits of a client, on the wire."""

from __future__ import annotations

from dataclasses import dataclass

from loadchaos.profile.client_limits import ClientLimits

_DEFAULT_LIMITS = ClientLimits()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


@dataclass(frozen=True)
class WireTimeouts:
    """Longest silences allowed, in ns: until the first body byte, between bytes, and for the whole request. A request is
    sent again only if its connection had been idle for longer than `retry_idle_ns`.
    """

    first_byte_ns: int = _ns(_DEFAULT_LIMITS.first_byte)
    between_bytes_ns: int = _ns(_DEFAULT_LIMITS.between_bytes)
    total_ns: int = _ns(_DEFAULT_LIMITS.total)
    retry_idle_ns: int = _ns(_DEFAULT_LIMITS.retry_idle)

    @classmethod
    def of(cls, limits: ClientLimits) -> WireTimeouts:
        seconds = (limits.first_byte, limits.between_bytes, limits.total, limits.retry_idle)
        return cls(*(_ns(s) for s in seconds))


DEFAULT_TIMEOUTS = WireTimeouts()
