"""Toxic `slicer`: cut data into small pieces."""

from __future__ import annotations

import random
from dataclasses import replace

from loadchaos.chaos.toxics.base import SLOW, Attribute, Chunking, ToxicType


class SlicerToxic(ToxicType):
    """Cut data into pieces of `average_size`, `delay` apart.

    The size varies by up to `size_variation` either way.
    """

    name = "slicer"
    attributes = (
        Attribute("average_size", 64, "bytes"),
        Attribute("size_variation", 0, "bytes"),
        Attribute("delay", 0, "us"),
    )
    effects = SLOW

    def chunk(self, chunking: Chunking) -> Chunking:
        """Make the pieces smaller and pause after each."""
        variation = self.values["size_variation"]
        size = int(self.values["average_size"] + random.uniform(-variation, variation))
        return replace(chunking, size=max(1, min(chunking.size, size)), pause_s=self.values["delay"] / 1e6)


TOXIC = SlicerToxic
