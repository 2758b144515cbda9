"""What goes wrong on our side in a run: told in its last row, and to the person at the terminal."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadchaos.core.errors import LedgerError, LoadchaosError
from loadchaos.core.redact import Redactor


class RunErrors:
    """Of one run: the first `error` that ended it, a mistake of our own, and attacks `left_over` that still hold."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self._folder, self._redactor = folder, redactor
        self._mistake: str | None = None
        self.error: LoadchaosError | None = None
        self.left_over: Sequence[str] = ()

    def mistook(self, e: Exception) -> None:
        """Keep the trace of an exception that is a mistake of ours; the run goes on to its end."""
        trace = self._folder / "loadchaos-error.txt"
        text = self._redactor.text("".join(traceback.format_exception(e)))
        with contextlib.suppress(OSError), trace.open("a") as f:
            f.write(text + "\n")
        what = f"a mistake of loadchaos itself, please report it with {trace}: {type(e).__name__}: {e}"
        self._mistake = self._mistake or what

    def why(self) -> dict[str, Any]:
        """What the run's last row says of it; empty where nothing went wrong."""
        if self.error is not None:
            return {"exit_code": self.error.exit_code, "why": str(self.error)}
        return {} if self._mistake is None else {"exit_code": LedgerError.exit_code, "why": self._mistake}

    def in_words(self, lost: str | None, load_failed: str | None, also: str | None) -> str | None:
        """For the person at the terminal. `lost`: why the ledger cannot be written; None where all is well."""
        unwritten = lost and f"the ledger could not be written, so nothing more is proved: {lost}"
        left = f"NOT taken back, do it by hand: {', '.join(self.left_over)}" if self.left_over else None
        texts = [self.error and str(self.error), self._mistake, unwritten, load_failed, left, also]
        return "; ".join(dict.fromkeys(t for t in texts if t)) or None
