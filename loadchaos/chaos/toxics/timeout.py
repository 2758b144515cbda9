"""Toxic `timeout`: pass no data, then close the connection."""

from __future__ import annotations

from loadchaos.chaos.toxics.base import CUT, SLOW, Attribute, ToxicType


class TimeoutToxic(ToxicType):
    """Pass no data, and close the connection after `timeout` (0: never)."""

    name = "timeout"
    attributes = (Attribute("timeout", 0, "ms"),)
    effects = (*SLOW, *CUT)
    blocks = True

    def close_after_s(self) -> float | None:
        """Return how long data may wait."""
        return self.values["timeout"] / 1000 or None


TOXIC = TimeoutToxic
