"""Record of a suite: suite.json and suite.html.

Both are written after each profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadchaos.core import exit_codes
from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.model import Facts
from loadchaos.core.whole_file import write_json, write_whole
from loadchaos.report.html import suite_page

_SCHEMA = 1
_WORST_FIRST = (
    exit_codes.FAIL,
    exit_codes.INTERNAL_ERROR,
    exit_codes.USER_ERROR,
    exit_codes.TARGET_ERROR,
    exit_codes.UNKNOWN,
    exit_codes.PASS,
)
_VERDICTS: Mapping[int, str] = {exit_codes.PASS: "pass", exit_codes.FAIL: "fail", exit_codes.UNKNOWN: "unknown"}


def worst(codes: Sequence[int]) -> int:
    """Exit code of a suite: a signal, else the worst; 3 without a run."""
    for code in exit_codes.BY_SIGNAL:
        if code in codes:
            return code
    return next((code for code in _WORST_FIRST if code in codes), exit_codes.UNKNOWN)


def verdict_of(code: int) -> str:
    """Verdict with this exit code; `error` without one."""
    return _VERDICTS.get(code, "error")


class SuiteRecord:
    """Results of a suite so far.

    Files are complete after each change, so that SIGKILL loses nothing that was finished.
    """

    def __init__(self, folder: Path, target: str, facts: Facts) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._target, self._facts = target, facts
        self._started = _now()
        self._rows: list[dict[str, Any]] = []

    def plan(self, name: str, about: str, reasons: Sequence[str]) -> None:
        """Add a profile that waits or, with reasons, is left out."""
        state = "left out" if reasons else "waiting"
        self._rows.append({"name": name, "about": about, "state": state, "why": list(reasons)})

    def begin(self, name: str) -> None:
        """Note that the run of a profile begins."""
        self._row(name)["state"] = "running"
        self.write()

    def end(self, name: str, seconds: float, result: Mapping[str, Any]) -> None:
        """Note the result of a profile: exit code, verdict, run, error."""
        self._row(name).update({"state": "finished", "seconds": round(seconds, 1), **result})
        self.write()

    def write(self, *, ended: bool = False) -> None:
        """Write suite.json and suite.html.

        Raises:
            LedgerError: they cannot be written.
        """
        data = self.to_json(ended=ended)
        try:
            write_json(self.folder / "suite.json", data)
            write_whole(self.folder / "suite.html", suite_page.render(data))
        except OSError as e:
            raise LedgerError(f"{self.folder}: {e.strerror}; {next_step(e)}") from e

    @property
    def exit_code(self) -> int:
        """Exit code of what has finished."""
        return worst([row["exit_code"] for row in self._rows if row["state"] == "finished"])

    def to_json(self, *, ended: bool) -> dict[str, Any]:
        """Return the contents of suite.json."""
        facts = self._facts
        return {
            "schema": _SCHEMA,
            "target": self._target,
            "server": {"dialect": facts.dialect, "version": facts.version, "model": facts.model},
            "started": self._started,
            "ended": _now() if ended else None,
            "exit_code": self.exit_code if ended else None,
            "verdict": verdict_of(self.exit_code) if ended else None,
            "profiles": self._rows,
        }

    def _row(self, name: str) -> dict[str, Any]:
        return next(row for row in self._rows if row["name"] == name)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
