"""Signals that an attack may send. A new one is an entry in SIGNALS, and its name in `PROCESS_SIGNALS`."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

PROCESS_GONE = (
    "http_error", "stream_error", "finish_error", "truncated", "connect_error", "reset", "engine_dead_error",
    "engine_death_unexplained", "restart_unexplained",
)  # fmt: skip
"""Effects on clients and log of a process that has ended. Each is ours only where that very process has ended."""
ENGINE_CORE_GONE = (*PROCESS_GONE, "engine_core_proc_died")
# A worker's end takes the engine core with it, which logs its own message.
WORKER_GONE = (*PROCESS_GONE, "worker_proc_died", "executor_failed", "engine_core_fatal", "engine_core_proc_died")
GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
PROCESS_FROZEN = ("alive_but_hung", "stalled", "timeout", "shm_broadcast_stall")


@dataclass(frozen=True)
class SignalType:
    """A signal: its number, its effects by role, and what undoes it. `undo_number` is the signal that takes it back,
    None where nothing does. `undo_shell` does the same as shell text, with the pid as $1, for the case that loadchaos
    itself is killed. `shown_by`: states of the process (psutil) that show at once that it works; empty: it may take time.
    """

    number: signal.Signals
    effects: Mapping[str, Sequence[str]]
    undo_number: signal.Signals | None = None
    undo_shell: str = ""
    shown_by: Sequence[str] = ()


SIGNALS: dict[str, SignalType] = {
    "sigkill": SignalType(
        signal.SIGKILL,
        {"engine_core": ENGINE_CORE_GONE, "api_server": PROCESS_GONE, "worker": WORKER_GONE},
        shown_by=GONE,
    ),
    "sigterm": SignalType(
        signal.SIGTERM,
        {
            "engine_core": ENGINE_CORE_GONE,
            "api_server": (*PROCESS_GONE, "server_terminated"),
            "worker": WORKER_GONE,
        },
    ),
    "sigstop": SignalType(
        signal.SIGSTOP,
        {
            "engine_core": PROCESS_FROZEN,
            # A stopped API server does not even accept connections.
            "api_server": (*PROCESS_FROZEN, "server_unreachable", "connect_error"),
            "worker": PROCESS_FROZEN,
        },
        undo_number=signal.SIGCONT,
        undo_shell='kill -CONT "$1" 2>/dev/null',
        shown_by=(psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, *GONE),
    ),
}
