"""Record of a suite: suite.json and suite.html. Both are written after each profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from loadchaos.core import exit_codes
from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import to_json
from loadchaos.core.whole_file import write_json, write_whole
from loadchaos.report.html import suite_page
from loadchaos.report.suite_result import ProfileRow, ServerName, State, SuiteResult, SuiteVerdict

_WORST_FIRST = (
    exit_codes.FAIL,
    exit_codes.INTERNAL_ERROR,
    exit_codes.USER_ERROR,
    exit_codes.TARGET_ERROR,
    exit_codes.UNKNOWN,
    exit_codes.PASS,
)
_VERDICTS: Mapping[int, SuiteVerdict] = {
    exit_codes.PASS: "pass",
    exit_codes.FAIL: "fail",
    exit_codes.UNKNOWN: "unknown",
}


def worst(codes: Sequence[int]) -> int:
    """Exit code of a suite: a signal, else the worst; 3 without a run."""
    for code in exit_codes.BY_SIGNAL:
        if code in codes:
            return code
    return next((code for code in _WORST_FIRST if code in codes), exit_codes.UNKNOWN)


def verdict_of(code: int) -> SuiteVerdict:
    return _VERDICTS.get(code, "error")


class SuiteRecord:
    """Results of a suite so far. Files are complete after each change, so that SIGKILL loses nothing that was finished."""

    def __init__(self, folder: Path, target: str, facts: Facts) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._target, self._facts = target, facts
        self._started = _now()
        self._rows: dict[str, ProfileRow] = {}

    def plan(self, name: str, about: str, reasons: Sequence[str]) -> None:
        state: State = "left out" if reasons else "waiting"
        self._rows[name] = ProfileRow(name=name, about=about, state=state, why=tuple(reasons))

    def begin(self, name: str) -> None:
        self._rows[name] = replace(self._rows[name], state="running")
        self.write()

    def end(self, row: ProfileRow) -> None:
        self._rows[row.name] = row
        self.write()

    def write(self, *, ended: bool = False) -> None:
        """Write suite.json and suite.html.

        Raises:
            LedgerError: they cannot be written.
        """
        result = self.result(ended=ended)
        try:
            write_json(self.folder / "suite.json", to_json(result))
            write_whole(self.folder / "suite.html", suite_page.render(result))
        except OSError as e:
            raise LedgerError(f"{self.folder}: {e.strerror}; {next_step(e)}") from e

    @property
    def exit_code(self) -> int:
        return worst([row.exit_code for row in self._rows.values() if row.exit_code is not None])

    def result(self, *, ended: bool) -> SuiteResult:
        facts = self._facts
        return SuiteResult(
            schema=1,
            target=self._target,
            server=ServerName(dialect=facts.dialect, version=facts.version, model=facts.model),
            started=self._started,
            ended=_now() if ended else None,
            exit_code=self.exit_code if ended else None,
            verdict=verdict_of(self.exit_code) if ended else None,
            profiles=tuple(self._rows.values()),
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
