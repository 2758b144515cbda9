"""Exit codes of the command line, and the verdicts that they stand for. To add one: a line here, a row in docs/verdict.md
and README.md, and the place that returns it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

PASS = 0
FAIL = 1
USER_ERROR = 2
"""A mistake in the profile, the options, a port, a folder or the authorisation."""
UNKNOWN = 3
"""Nothing was proved, or the record is incomplete."""
TARGET_ERROR = 4
"""The target cannot be tested: never healthy, wrong model, a refused key."""
INTERNAL_ERROR = 70
"""A bug of loadchaos (EX_SOFTWARE of sysexits.h): it must not read as a verdict."""
INTERRUPTED = 130
"""Ended by SIGINT (Ctrl-C): 128 plus the number of the signal."""
TERMINATED = 143
"""Ended by SIGTERM."""
BY_SIGNAL = (INTERRUPTED, TERMINATED)
BEFORE_LOAD = (USER_ERROR, TARGET_ERROR)
"""Codes of a run that sent no request of its load."""

RunVerdict = Literal["pass", "fail", "unknown", "error"]
_VERDICTS: Mapping[int, RunVerdict] = {PASS: "pass", FAIL: "fail", UNKNOWN: "unknown"}
_WORST_FIRST = (FAIL, INTERNAL_ERROR, USER_ERROR, TARGET_ERROR, UNKNOWN, PASS)


def verdict_of(code: int) -> RunVerdict:
    """Verdict with this exit code; `error` without one."""
    return _VERDICTS.get(code, "error")


def shown_verdict(code: int | None) -> str:
    """The verdict; `interrupted` where a signal ended it, `not ended` without an exit code."""
    return "not ended" if code is None else "interrupted" if code in BY_SIGNAL else verdict_of(code)


def worst(codes: Sequence[int]) -> int:
    """Exit code of several runs: a signal, else the worst; 3 without a run."""
    return next((code for code in (*BY_SIGNAL, *_WORST_FIRST) if code in codes), UNKNOWN)
