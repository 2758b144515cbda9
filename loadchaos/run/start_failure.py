"""Cause and remedy of a failed start in one line, from the server's log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from loadchaos.analysis.classify.diagnosis import Diagnosis
from loadchaos.analysis.classify.rejoin import rejoin
from loadchaos.analysis.failure import DEADLY, Failure
from loadchaos.core.redact import Redactor
from loadchaos.report.formatting import clean
from loadchaos.report.phrases import remedy_text
from loadchaos.server.discovery.preflight import READ_THE_LOG
from loadchaos.server.process.launcher import quoted_last_line
from loadchaos.server.process.supervisor import NOT_STARTED

SILENT_S = 30.0
_EVIDENCE = 240
_UNEXPLAINED = ("unexplained_", "unknown_")


class StuckStart:
    """Server that has logged a fatal error and neither exits nor answers."""

    def __init__(self, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._size, self._since_s, self._read = -1, clock(), False

    def reason(self) -> str | None:
        """Return the end of a sentence; None while the start may go on."""
        size = self._log.stat().st_size if self._log.exists() else 0
        if size != self._size:
            self._size, self._since_s, self._read = size, self._clock(), False
        if self._read or not size or self._clock() - self._since_s < SILENT_S:
            return None
        self._read = True
        fatal = any(f.severity in DEADLY and not f.id.startswith(_UNEXPLAINED) for f in _failures(self._log))
        return f"it logged a fatal error and then nothing for {SILENT_S:g} s, and did not exit" if fatal else None


def explained(message: str, log: Path) -> str:
    """Add the cause to the message about a failed start. Without a cause, add the last line of the log."""
    message = message.removesuffix(READ_THE_LOG)
    if f"it {NOT_STARTED}: " in message:
        return message  # there is no log
    if cause := cause_of_failed_start(log):
        return f"{message}. Cause: {cause}"
    return message + quoted_last_line(log)


def cause_of_failed_start(log: Path) -> str:
    """Describe the worst failure of a log: title, id, line, remedy. Empty where the log shows none."""
    found = _failures(log)  # the fatal ones first
    return Redactor().text(_sentence(found[0])) if found else ""


def _failures(log: Path) -> list[Failure]:
    diagnosis = Diagnosis(str(log))
    try:
        with log.open(encoding="utf-8", errors="replace") as f:
            for line in rejoin(line.rstrip("\r\n") for line in f):
                diagnosis.feed(line)
    except OSError:
        return []
    return diagnosis.finish()


def _sentence(failure: Failure) -> str:
    """Format a failure: `title (id): decisive line. To do: remedy`."""
    shown = (failure.candidates[0] if failure.candidates else failure.evidence).text or ""
    title = clean(failure.title, 200)
    text = f"{title} ({failure.id})"
    _, _, detail = title.rpartition(": ")
    if not failure.id.startswith(_UNEXPLAINED) and detail[:40] not in shown:
        text += f": {clean(shown, _EVIDENCE)}"
    remedy = remedy_text(failure.remedy)
    return f"{text.removesuffix('.')}. To do: {remedy}" if remedy else text
