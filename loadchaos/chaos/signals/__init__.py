"""Signals that an attack may send: one file per signal.

SIGNALS maps each name of `PROCESS_SIGNALS` (core/attack_names.py) to the SIGNAL that the file of that name holds.
A new signal is a file with a SignalType, and its name in `PROCESS_SIGNALS`.
"""

from __future__ import annotations

from importlib import import_module

from loadchaos.chaos.signals.base import SignalType
from loadchaos.core import attack_names

__all__ = ["SIGNALS", "SignalType"]

SIGNALS: dict[str, SignalType] = {
    name: import_module(f"loadchaos.chaos.signals.{name}").SIGNAL for name in attack_names.PROCESS_SIGNALS
}
