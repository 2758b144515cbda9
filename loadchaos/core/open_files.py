"""Prepare a process for many connections."""

from __future__ import annotations

import contextlib
import os
import resource

MOST_FILES = 65_536
"""Size of the table of open files; it takes 8 bytes for each."""


def allow_many_open_files() -> None:
    """Raise the soft limit of open files, and make their table large at once. The soft limit becomes the hard one.
    Linux doubles the table of a process when it is full (fs/file.c, expand_fdtable). In a process with several threads
    each doubling waits for an RCU grace period: 7 to 17 ms were measured, in which the thread that opened a connection
    did nothing else.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    highest = (MOST_FILES if soft == resource.RLIM_INFINITY else min(MOST_FILES, soft)) - 1
    with contextlib.suppress(OSError):
        any_file = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if any_file < highest and not _is_open(highest):
                os.close(os.dup2(any_file, highest, inheritable=False))
        finally:
            os.close(any_file)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
