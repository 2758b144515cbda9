"""SIGKILL: end a process at once."""

from __future__ import annotations

import signal

from loadchaos.chaos.signals.base import ENGINE_CORE_GONE, PROCESS_GONE, WORKER_GONE, SignalType

SIGNAL = SignalType(
    signal.SIGKILL,
    effects={"engine_core": ENGINE_CORE_GONE, "api_server": PROCESS_GONE, "worker": WORKER_GONE},
)
