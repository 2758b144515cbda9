"""Report of the supervisor of a server to the process that started it: one line of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReportKind = Literal["start", "exit", "dropped"]


@dataclass(frozen=True)
class SupervisorReport:
    """One event of a server, `at_ns` (monotonic). `code`, `signal` and `reason` of an exit; `bytes` of output dropped."""

    what: ReportKind
    at_ns: int
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    bytes: int = 0
