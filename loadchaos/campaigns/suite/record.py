"""Record of a suite: suite.json and suite.html. Both are written after each profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadchaos.campaigns.campaign import Campaign, now_text, verdict_of
from loadchaos.core import exit_codes
from loadchaos.core.model import Facts
from loadchaos.report.html import suite_page
from loadchaos.report.suite_result import ProfileRow, ServerName, State, SuiteResult

_WORST_FIRST = (
    exit_codes.FAIL,
    exit_codes.INTERNAL_ERROR,
    exit_codes.USER_ERROR,
    exit_codes.TARGET_ERROR,
    exit_codes.UNKNOWN,
    exit_codes.PASS,
)


def worst(codes: Sequence[int]) -> int:
    """Exit code of a suite: a signal, else the worst; 3 without a run."""
    for code in exit_codes.BY_SIGNAL:
        if code in codes:
            return code
    return next((code for code in _WORST_FIRST if code in codes), exit_codes.UNKNOWN)


class SuiteRecord:
    """Results of a suite so far. Files are complete after each change, so that SIGKILL loses nothing that was finished."""

    def __init__(self, campaign: Campaign, target: str, facts: Facts) -> None:
        self.campaign, self._target, self._facts = campaign, target, facts
        self._started = now_text()
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
        self.campaign.write({"suite.json": result, "suite.html": suite_page.render(result)})

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
            ended=now_text() if ended else None,
            exit_code=self.exit_code if ended else None,
            verdict=verdict_of(self.exit_code) if ended else None,
            profiles=tuple(self._rows.values()),
        )
