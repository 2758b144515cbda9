"""Toxic `down`: refuse connections and reset those that are open."""

from __future__ import annotations

from loadchaos.chaos.toxics.base import CUT, ToxicType


class DownToxic(ToxicType):
    """Refuse connections and reset those that are open."""

    name = "down"
    effects = CUT
    refuses = True


TOXIC = DownToxic
