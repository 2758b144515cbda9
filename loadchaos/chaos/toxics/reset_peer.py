"""Toxic `reset_peer`: reset connections."""

from __future__ import annotations

from loadchaos.chaos.toxics.base import CUT, Attribute, ToxicType


class ResetPeerToxic(ToxicType):
    """Reset connections after `timeout`."""

    name = "reset_peer"
    attributes = (Attribute("timeout", 0, "ms"),)
    effects = CUT

    def reset_after_s(self) -> float | None:
        """Return the time until the reset."""
        return self.values["timeout"] / 1000


TOXIC = ResetPeerToxic
