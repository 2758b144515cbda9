"""Detector: interface of all that finds faults without a log line."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core import typed_json
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import FactsRow
from loadchaos.core.model import Facts, Severity

Finding = Failure | CheckResult | str
"""A failure of the server, a check of the verdict, or a note for its reader."""


class Detector(RowFold):
    """Folds ledger rows and reports failures: those in `_pending`, or what its own `poll` finds.

    Attributes:
        slow: its `poll` is expensive or looks at long trends: it is polled every 10 s, less often in a long run.
    """

    slow: ClassVar[bool] = False
    _facts: Facts | None = None
    """The facts that discovery found before the load."""

    def __init__(self) -> None:
        self._pending: list[Failure] = []
        self._known_failures: set[tuple[str, str]] = set()

    def on_facts(self, row: FactsRow) -> None:
        if self._facts is None and row.get("facts"):
            self._facts = typed_json.from_json(Facts, row["facts"])

    def poll(self, now_ns: int) -> list[Failure]:  # noqa: ARG002 - a detector of trends needs it
        """Failures found since the last call, each once. One of severity `hang` names a hang that the states show."""
        pending, self._pending = self._pending, []
        return pending

    def report_once(self, failure: Failure) -> None:
        """Report a failure if it is the first one of its id and process."""
        if (name := (failure.id, str(failure.process))) not in self._known_failures:
            self._known_failures.add(name)
            self._pending.append(failure)

    def finish(self) -> list[Finding]:
        """Failures, checks and notes of the whole run. May be called again; `at_ns` 0 is the newest row's time."""
        return []


def from_figures(name: str, severity: Severity, title: str, remedy: str, at_ns: int, where: str | None) -> Failure:
    """Make a failure whose evidence is its title, which tells the figures."""
    return Failure(name, severity, title, evidence("figures", title), at_ns, process=where, remedy=remedy)
