"""Exceptions for mistakes of loadchaos or its user, with exit codes. A fault of the server is data and never an
exception. All exit codes: core/exit_codes.py.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence

from loadchaos.core import exit_codes


class LoadchaosError(Exception):
    """Base of all errors for users; `exit_code` is that of the command."""

    exit_code = exit_codes.USER_ERROR


def next_step(e: OSError) -> str:
    """Suggest what to do about a failed write, as the end of a sentence."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there, or choose another folder with --out"
    if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "this user may not write there; choose another folder with --out"
    return "choose another folder with --out"


def how_to_read(e: OSError) -> str:
    """Suggest what to do about a failed read, as the end of a sentence."""
    if e.errno in (errno.EACCES, errno.EPERM):
        return "give this user permission to read it, or run as a user who has it"
    return "check that the file exists and that its disk works"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Suggest the nearest known word, as the end of a sentence about an unknown one; `otherwise` where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else otherwise


def why_unread(e: OSError) -> str:
    """Explain why a file that a profile names could not be read."""
    if isinstance(e, FileNotFoundError):
        return "No such file in the folder of the profile or in the current folder"
    return str(e.strerror)


class ProfileError(LoadchaosError):
    """Mistakes in a profile, each as `file:line:column: expected (got ...)`."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(mistakes))


class OptionError(LoadchaosError):
    """A command-line option, folder or port that cannot be used."""


class AuthorizationError(LoadchaosError):
    """A destructive action without authorisation (`--authorize HOST:PORT`)."""


class TargetError(LoadchaosError):
    """The target cannot be tested. For example it is unreachable, not healthy, refuses the key, or lacks the model,
    images or development endpoints.
    """

    exit_code = exit_codes.TARGET_ERROR


class UnreachableError(TargetError):
    """No server that could be tested answers at the target."""


class LedgerError(LoadchaosError):
    """The run folder could not be written or read, so no run in it can pass."""

    exit_code = exit_codes.UNKNOWN


class StoppedBySignalError(Exception):
    """Signal that work was cancelled, as the user ended the process. It is no LoadchaosError: nothing went wrong, and
    no step may treat it as its failure.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended by signal {exit_code - 128}")
        self.exit_code = exit_code
