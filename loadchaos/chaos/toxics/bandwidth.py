"""Toxic `bandwidth`: limit the transfer rate."""

from __future__ import annotations

from dataclasses import replace

from loadchaos.chaos.toxics.base import SLOW, Attribute, Chunking, ToxicType


class BandwidthToxic(ToxicType):
    """Pass `rate` kilobytes per second."""

    name = "bandwidth"
    attributes = (Attribute("rate", 100, "KB/s"),)
    effects = SLOW

    def chunk(self, chunking: Chunking) -> Chunking:
        """Limit the rate; pieces are small enough for at least ten per second."""
        rate = max(self.values["rate"], 0.001) * 1024
        return replace(chunking, size=max(1, min(chunking.size, int(rate / 10))), rate=rate)


TOXIC = BandwidthToxic
