"""The native reader (_native.c), where it was built: it counts tokens of a form that Python has learned.

LOADCHAOS_PURE=1 in the environment has Python read everything.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from loadchaos.core.histogram import PER_OCTAVE
from loadchaos.load.wire.sse import json_string

if TYPE_CHECKING:
    from loadchaos.load.wire._native import Poller

PURE = "LOADCHAOS_PURE"


def is_native() -> bool:
    """True if streams without TLS are read natively."""
    return _extension() is not None


def new_poller(buffer_bytes: int, min_gap_ns: int) -> Poller[Any] | None:
    """Make a reader of many connections, None where Python has to read them. Each read takes `buffer_bytes` at most. Of
    the gaps between arrivals of one connection it tells the shortest above `min_gap_ns`.
    """
    extension: Any = _extension()
    return None if extension is None else extension.Poller(json_string, buffer_bytes, PER_OCTAVE, min_gap_ns)


def _extension() -> ModuleType | None:
    if os.environ.get(PURE, "0") not in ("", "0"):
        return None
    try:
        from loadchaos.load.wire import _native
    except ImportError:  # it was not built
        return None
    return _native
