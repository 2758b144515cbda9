"""Toxic `latency`: delay all data."""

from __future__ import annotations

import random

from loadchaos.chaos.toxics.base import SLOW, Attribute, ToxicType


class LatencyToxic(ToxicType):
    """Delay data by `latency`, plus or minus a random part of `jitter`."""

    name = "latency"
    attributes = (
        Attribute("latency", 100, "ms"),
        Attribute("jitter", 0, "ms"),
    )
    effects = SLOW

    def delay_s(self) -> float:
        """Return the delay of one piece of data."""
        jitter_ms = self.values["jitter"]
        return (self.values["latency"] + random.uniform(-jitter_ms, jitter_ms)) / 1000


TOXIC = LatencyToxic
