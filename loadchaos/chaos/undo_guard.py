"""A child that takes an attack back when we end in any way, SIGKILL included: then its pipe closes."""

from __future__ import annotations

import subprocess


def guard(undo: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Runs the shell text `undo` (its arguments as $1, $2, ...) as soon as its standard input has a line or is closed."""
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; {undo}", "sh", *arguments], stdin=subprocess.PIPE, start_new_session=True
    )
