"""Our own exceptions: what *we* or *our user* did wrong. What the server does wrong is data, never an exception.

Each carries the exit code that `loadchaos` ends with (design: 2 profile and options, 3 unknown, 4 the target).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence


class LoadchaosError(Exception):
    """Base of all errors a user is meant to read; `exit_code` is what the command line ends with."""

    exit_code = 2


def next_step(e: OSError) -> str:
    """What to do about a file or folder that could not be written, as the end of a sentence."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space there, or choose another place with --out"
    if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "this user may not write there: choose another place with --out"
    return "choose another place with --out"


def how_to_read(e: OSError) -> str:
    """What to do about a file that could not be read, as the end of a sentence."""
    if e.errno in (errno.EACCES, errno.EPERM):
        return "give this user the right to read it, or run as who may"
    return "is it there, and its disk well?"


def why_unread(e: OSError) -> str:
    """Why a file that a profile names could not be read: it is looked for in two places."""
    if isinstance(e, FileNotFoundError):
        return "No such file beside the profile, nor in the current folder"
    return str(e.strerror)


class ProfileError(LoadchaosError):
    """One or more mistakes in a profile, each as `file:line:column: what was expected (got what)`."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(mistakes))


class OptionError(LoadchaosError):
    """A command-line option, folder or port that cannot be used."""


class AuthorizationError(LoadchaosError):
    """Something destructive was asked for a server the user has not authorised (`--authorize HOST:PORT`)."""


class TargetError(LoadchaosError):
    """The target is the trouble: unreachable, not healthy, 401, wrong model, no images, no development endpoints."""

    exit_code = 4


class LedgerError(LoadchaosError):
    """The run folder could not be written or read; nothing it says may be called a pass."""

    exit_code = 3
