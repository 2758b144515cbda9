"""Toxic `limit_data`: close a connection after a number of bytes."""

from __future__ import annotations

from loadchaos.chaos.toxics.base import CUT, Attribute, ToxicType


class LimitDataToxic(ToxicType):
    """Close a connection after `bytes` have passed."""

    name = "limit_data"
    attributes = (Attribute("bytes", 1000, "bytes"),)
    effects = CUT

    def bytes_left(self, passed: int) -> int | None:
        """Return the rest of the limit."""
        return max(0, int(self.values["bytes"]) - passed)


TOXIC = LimitDataToxic
