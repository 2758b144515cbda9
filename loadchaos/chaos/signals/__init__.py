"""Signals that an attack may send: one file per signal.

SIGNALS maps each name of `ProcessSignal` (core/attack_names.py) to the SIGNAL that the file of that name holds.
A new signal is a file with a SignalType, and its name in `ProcessSignal`.
"""

from __future__ import annotations

from importlib import import_module
from typing import get_args

from loadchaos.chaos.signals.base import ROLES, SignalType
from loadchaos.core.attack_names import ProcessSignal

__all__ = ["ROLES", "SIGNALS", "SignalType"]

SIGNALS: dict[str, SignalType] = {
    name: import_module(f"loadchaos.chaos.signals.{name}").SIGNAL for name in get_args(ProcessSignal)
}
