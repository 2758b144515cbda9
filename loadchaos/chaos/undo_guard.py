"""A child process that takes an attack back when loadchaos ends, even by SIGKILL: then its pipe closes."""

from __future__ import annotations

import subprocess


def guard(undo: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a child that runs the shell text `undo` when its standard input gets a line or is closed.

    The arguments are $1, $2, ... in the shell text.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; {undo}", "sh", *arguments], stdin=subprocess.PIPE, start_new_session=True
    )
