"""A child process that undoes an attack when loadchaos ends.

It works even after SIGKILL: then the child's pipe closes.
"""

from __future__ import annotations

import subprocess


def guard(undo: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a child that runs the shell text `undo` on input or its end.

    The arguments are $1, $2, ... in the shell text.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; {undo}", "sh", *arguments], stdin=subprocess.PIPE, start_new_session=True
    )
