"""SIGSTOP: stop a process until SIGCONT."""

from __future__ import annotations

import signal

from loadchaos.chaos.signals.base import PROCESS_FROZEN, SignalType

SIGNAL = SignalType(
    signal.SIGSTOP,
    effects={
        "engine_core": PROCESS_FROZEN,
        # A stopped API server does not even accept connections.
        "api_server": (*PROCESS_FROZEN, "server_unreachable", "connect_error"),
        "worker": PROCESS_FROZEN,
    },
    undo_number=signal.SIGCONT,
    undo_shell='kill -CONT "$1" 2>/dev/null',
)
