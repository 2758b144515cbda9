"""Result of a suite as in suite.json: what the page and the terminal show. The fields are its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loadchaos.analysis.verdict.model import KnownIssue
from loadchaos.core import exit_codes
from loadchaos.core.exit_codes import RunVerdict
from loadchaos.core.model import ServerName, Severity
from loadchaos.core.typed_json import IF_KNOWN, only_with

State = Literal["waiting", "running", "finished", "left out"]


@dataclass(frozen=True, kw_only=True)
class SuiteFailure:
    """A failure of a profile's run that counts against it."""

    id: str
    title: str
    severity: Severity
    count: int
    known: tuple[KnownIssue, ...]
    remedy: str
    incident: str | None


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """A profile of a suite, and how its run ended, or reasons `why` it is left out. `seconds` and what follows are
    there once it has finished, `requests` and what follows only of a run that began.
    """

    name: str
    about: str
    state: State
    why: tuple[str, ...] = ()
    seconds: float | None = field(default=None, metadata=IF_KNOWN)
    exit_code: int | None = field(default=None, metadata=only_with("seconds"))
    verdict: RunVerdict | None = field(default=None, metadata=only_with("seconds"))
    run: str | None = field(default=None, metadata=only_with("seconds"))
    error: str | None = field(default=None, metadata=only_with("seconds"))
    requests: int | None = field(default=None, metadata=IF_KNOWN)
    worth: str = field(default="", metadata=only_with("requests"))
    failures: tuple[SuiteFailure, ...] = field(default=(), metadata=only_with("requests"))
    unknown: tuple[str, ...] = field(default=(), metadata=only_with("requests"))
    broken: tuple[str, ...] = field(default=(), metadata=only_with("requests"))

    @property
    def shown_verdict(self) -> str:
        """Verdict of a finished run; `interrupted` where a signal ended it."""
        return "error" if self.exit_code is None else exit_codes.shown_verdict(self.exit_code)


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """A suite; `ended`, `exit_code` and `verdict` are None until it has ended."""

    schema: Literal[1]
    target: str
    server: ServerName
    started: str
    ended: str | None
    exit_code: int | None
    verdict: RunVerdict | None
    profiles: tuple[ProfileRow, ...]

    @property
    def shown_verdict(self) -> str:
        return exit_codes.shown_verdict(self.exit_code)

    def in_state(self, *states: State) -> list[ProfileRow]:
        return [row for row in self.profiles if row.state in states]
