"""Detector: interface of all that finds faults without a log line."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.analysis.failure import Failure
from loadchaos.analysis.mechanisms import Check
from loadchaos.core.ledger.row_fold import RowFold

Finding = Failure | Check | str
"""A failure of the server, a check of the verdict, or a note for its reader."""


class Detector(RowFold):
    """Folds ledger rows and reports failures.

    Attributes:
        slow: its `poll` is expensive or looks at long trends: it is polled every 10 s, less often in a long run.
    """

    slow: ClassVar[bool] = True

    def poll(self, now_ns: int) -> list[Failure]:  # noqa: ARG002 - the protocol's
        """Failures found since the last call, each once. One of severity `hang` names a hang that the states show."""
        return []

    def finish(self) -> list[Finding]:
        """Failures, checks and notes of the whole run.

        May be called again; `at_ns` 0 stands for the newest row's time.
        """
        return []
