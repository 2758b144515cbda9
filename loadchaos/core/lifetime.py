"""The end of processes that we started, also where we are killed."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

PARENT_VARIABLE = "LOADCHAOS_PARENT"
"""Pid of the process that started this one. It is given, as that may have ended by the time a child asks for it."""
CHILD_GRACE_S = 3.0
"""A child has this long to end in order after its parent has ended; then it ends at once."""
_POLL_S = 0.5
PYTHON_MODULE = (sys.executable, "-P", "-m")
"""Begin of the command line of a module of ours. Without -P a `json.py` of the current folder would run in place of the
library.
"""


def ending_signals() -> list[signal.Signals]:
    """Signals that ask this process to end. Under nohup a closed terminal is none: it continues."""
    asked = [signal.SIGINT, signal.SIGTERM]
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*asked, signal.SIGHUP]


def parent_pid() -> int:
    return int(os.environ.get(PARENT_VARIABLE) or os.getppid())


def end_with(pid: int, grace_s: float = CHILD_GRACE_S) -> None:
    """End this process `grace_s` seconds after process `pid`, also if an event loop spins or is blocked by then.

    A thread of the system waits, in a process of gevent as well: its greenlets run only when their hub does.
    """

    def wait() -> None:
        _wait_for(pid)
        _native("time", "sleep")(grace_s)
        os._exit(1)

    _native("_thread", "start_new_thread")(wait, ())


def _wait_for(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or an old kernel
        while os.getppid() == pid:
            _native("time", "sleep")(_POLL_S)
        return
    ended = _native("select", "poll")()
    ended.register(fd, select.POLLIN)
    ended.poll()


def _native(module: str, name: str) -> Callable[..., Any]:
    """A function of the standard library as it was before gevent replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    found = monkey.get_original(module, name) if monkey else getattr(importlib.import_module(module), name)
    return cast("Callable[..., Any]", found)


def guard(undo: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a child that runs the shell text `undo` on input or its end, so even after SIGKILL of loadchaos. The
    arguments are $1, $2, ... in the shell text.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; {undo}", "sh", *arguments], stdin=subprocess.PIPE, start_new_session=True
    )
