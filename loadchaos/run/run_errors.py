"""Collect our own errors during a run."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.ledger.rows import RunDetail
from loadchaos.core.redact import Redactor


class RunErrors:
    """Errors of one run. `error` is the first one that ended it, `not_undone` the attacks that still hold."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self._folder, self._redactor = folder, redactor
        self._bug: str | None = None
        self.error: LoadchaosError | None = None
        self.not_undone: Sequence[str] = ()

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        try:
            yield
        except LoadchaosError as e:
            self.error = self.error or e
        except Exception as e:  # noqa: BLE001 - a bug of ours must cost neither the record nor the steps that follow
            self.record_bug(e)

    def of_judge(self, error: Exception) -> tuple[int, str | None]:
        """(exit code, text) for an error that left the run unjudged. A bug is recorded, and the summary has its text."""
        if isinstance(error, LoadchaosError):
            return error.exit_code, str(error)
        self.record_bug(error)
        return exit_codes.INTERNAL_ERROR, None

    def record_bug(self, e: Exception) -> None:
        trace = self._folder / "loadchaos-error.txt"
        text = self._redactor.text("".join(traceback.format_exception(e)))
        with contextlib.suppress(OSError), trace.open("a") as f:
            f.write(text + "\n")
        self._bug = self._bug or f"a bug in loadchaos; please report it with {trace}: {type(e).__name__}: {e}"

    @property
    def is_bug(self) -> bool:
        return self._bug is not None

    def exit_reason(self) -> RunDetail:
        """`{exit_code, why}` for the run's last row; empty without errors."""
        if self.error is not None:
            return {"exit_code": self.error.exit_code, "why": str(self.error)}
        return {} if self._bug is None else {"exit_code": exit_codes.INTERNAL_ERROR, "why": self._bug}

    def summary(self, *others: str | None) -> str | None:
        not_undone = None
        if self.not_undone:
            not_undone = f"these attacks were NOT undone, undo them by hand: {', '.join(self.not_undone)}"
        texts = [self.error and str(self.error), self._bug, not_undone, *others]
        return "; ".join(dict.fromkeys(t for t in texts if t)) or None
