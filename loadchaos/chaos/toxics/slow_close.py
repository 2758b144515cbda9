"""Toxic `slow_close`: delay the end of a connection."""

from __future__ import annotations

from loadchaos.chaos.toxics.base import SLOW, Attribute, ToxicType


class SlowCloseToxic(ToxicType):
    """Pass the end of a connection on after `delay`."""

    name = "slow_close"
    attributes = (Attribute("delay", 1000, "ms"),)
    effects = SLOW

    def end_delay_s(self) -> float:
        """Return the delay of the end."""
        return self.values["delay"] / 1000


TOXIC = SlowCloseToxic
