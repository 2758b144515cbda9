"""A client that opens a new connection for each request."""

from __future__ import annotations

from loadchaos.load.behaviours.plain import Options, act

__all__ = ["FRESH", "Options", "act"]

FRESH = True
