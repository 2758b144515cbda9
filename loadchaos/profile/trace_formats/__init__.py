"""Formats of recorded arrivals; one file each. A file makes a `TraceFormat` (base.py): how its first record is
recognised and how a record becomes an arrival. To add one, copy burstgpt.py and enter it in `FORMATS`.
"""

from __future__ import annotations

from loadchaos.core.plugins import PluginTable
from loadchaos.profile.trace_formats import aiperf, azure, burstgpt, mooncake, otel
from loadchaos.profile.trace_formats.base import Arrival, TraceFormat

__all__ = ["FORMATS", "Arrival", "TraceFormat"]

FORMATS = PluginTable[TraceFormat](
    "trace_formats",
    TraceFormat,
    {
        "mooncake": mooncake.FORMAT,
        "burstgpt": burstgpt.FORMAT,
        "azure": azure.FORMAT,
        "aiperf": aiperf.FORMAT,
        "otel": otel.FORMAT,
    },
)
"""Format by name, in the order in which they are tried."""
