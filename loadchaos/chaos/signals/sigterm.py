"""SIGTERM: ask a process to end."""

from __future__ import annotations

import signal

from loadchaos.chaos.signals.base import ENGINE_CORE_GONE, PROCESS_GONE, WORKER_GONE, SignalType

SIGNAL = SignalType(
    signal.SIGTERM,
    effects={
        "engine_core": ENGINE_CORE_GONE,
        "api_server": (*PROCESS_GONE, "server_terminated"),
        "worker": WORKER_GONE,
    },
)
