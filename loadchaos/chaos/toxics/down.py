"""Toxic `down`: refuse connections and reset those that are open."""

from __future__ import annotations

from loadchaos.chaos.toxics.base import CUT, ApiCall, ToxicType


class DownToxic(ToxicType):
    """Refuse connections and reset those that are open.

    toxiproxy has no such toxic: its proxy is disabled instead.
    """

    name = "down"
    effects = CUT
    refuses = True

    def toxiproxy_add(self) -> ApiCall:
        """Return the call that disables the proxy."""
        return "POST", "", {"enabled": False}

    def toxiproxy_remove(self) -> ApiCall:
        """Return the call that enables the proxy."""
        return "POST", "", {"enabled": True}


TOXIC = DownToxic
