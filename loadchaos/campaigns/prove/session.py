"""One proof: reproducers by releases, each cell on fresh servers, with a state that is continued."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from loadchaos.analysis.advisories.condition import ServerFacts, judge
from loadchaos.campaigns.campaign import Campaign, SavedState
from loadchaos.campaigns.minimise.candidate_session import short_reason
from loadchaos.campaigns.minimise.validate import on_fresh_server
from loadchaos.campaigns.prove.cells import Cell
from loadchaos.campaigns.prove.reproducers import AdvisoryScript
from loadchaos.campaigns.replay.servers import ServerChoice, result_redactor
from loadchaos.core.errors import TargetError
from loadchaos.core.version_ranges import within

STATE = "doctor.json"
_SCHEMA = 1
_SCRIPT_S = 900.0
"""A script sends a few requests, some of which a server that hangs leaves without an answer for a minute."""


@dataclass(frozen=True)
class ProvePlan:
    """Order of a proof: reproducers, and the servers on which they are tried.

    Attributes:
        servers: launch commands of each release, with the facts that doctor has of them.
        times: fresh servers for each reproducer.
        settings: what a continued proof must have in common with its begin.
        prepare: installs a release and returns why it cannot; None: a single server that is installed. On such a one bugs
            that doctor rules out are not tried. On releases all are, each until it has shown itself once.
    """

    reproducers: Sequence[AdvisoryScript]
    servers: Mapping[str, Sequence[tuple[ServerChoice, ServerFacts]]]
    times: int
    settings: Mapping[str, str | tuple[str, ...]]
    prepare: Callable[[str], Awaitable[str]] | None = None


@dataclass(frozen=True)
class _Stored:
    cells: tuple[Cell, ...] = ()


@dataclass
class ProveSession:
    """Cells by reproducer and release. A prediction is made once: a continued proof keeps it."""

    campaign: Campaign
    plan: ProvePlan
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._saved = SavedState(self.campaign, STATE, _SCHEMA, self.plan.settings)
        stored = (replace(c, times=self.plan.times) for c in self._saved.load(_Stored).cells)
        self.cells = {(c.reproducer, c.release): c for c in stored}
        self._servers: dict[tuple[str, str], ServerChoice] = {}
        for release in self.plan.servers:
            for one in self.plan.reproducers:
                self._predict(one, release)
        self._save()

    def _predict(self, one: AdvisoryScript, release: str) -> None:
        """Choose the first command that the reproducer can run on, and judge the advisory on it."""
        servers = self.plan.servers[release]
        lacking = [one.lacks(facts) for _, facts in servers]
        number = min(range(len(servers)), key=lambda n: len(lacking[n]))
        lacks, (server, facts) = lacking[number], servers[number]
        key, judged = (one.name, release), judge(one.advisory, facts)
        why = f"the launch command lacks {', '.join(lacks)}" if lacks else ""
        never_sent = any(kind in facts.never for kind in one.advisory.traffic)
        if judged.result == "does not apply" and not lacks and (never_sent or self.plan.prepare is None):
            why = f"doctor rules it out: {judged.why_not}"
        if not why:
            self._servers[key] = server
        evidence = (*one.advisory.affected, *one.advisory.unaffected)
        proved = any(e.proved is not None and within(e.versions, release) is True for e in evidence)
        new = Cell(one.name, one.advisory.id, one.advisory.severity, release, judged.result, _today(), proved)
        known = self.cells.get(key, new)
        if known.state == "not run":
            self.cells[key] = replace(known, launch=number + 1, times=self.plan.times, why=why)

    async def run(self) -> None:
        for release in self.plan.servers:
            found = [(one, self.cells[one.name, release]) for one in self.plan.reproducers]
            left = [(one, c) for one, c in found if (one.name, release) in self._servers and not self._done(c)]
            why = await self.plan.prepare(release) if left and self.plan.prepare is not None else ""
            for one, cell in left:
                if why:
                    self._keep(_undecided(replace(cell, measured=_today()), why)[0])
                else:
                    await self._tries(cell, one)

    def _done(self, cell: Cell) -> bool:
        return cell.tries >= self.plan.times or (self.plan.prepare is not None and cell.reproduced > 0)

    async def _tries(self, cell: Cell, one: AdvisoryScript) -> None:
        while not self._done(cell):
            cell, said = await self._try(cell, one)
            self._keep(cell)
            self.campaign.print_line(f"{cell.release} {one.name}: {said}")
            if cell.why:
                return

    async def _try(self, cell: Cell, one: AdvisoryScript) -> tuple[Cell, str]:
        server = self._servers[one.name, cell.release]
        folder = self.campaign.folder / "servers" / cell.release / one.name / f"{cell.tries + 1:02}"
        shutil.rmtree(folder, ignore_errors=True)  # of a try that was stopped
        cell = replace(cell, measured=_today(), why="")
        hidden = result_redactor(server)
        try:
            found, _ = await on_fresh_server(one.script, server, one.expected, folder, _SCRIPT_S)
        except TargetError as e:
            return _undecided(cell, hidden.text(short_reason(str(e))))
        if found.line is not None:
            return replace(cell, tries=cell.tries + 1, reproduced=cell.reproduced + 1), "reproduced"
        if found.code == 0:
            return replace(cell, tries=cell.tries + 1), "not reproduced"
        if found.code == 1 and one.expected is not None:
            return _undecided(
                cell, f"the script saw it, and the log has {found.other or 'no failure'}, not {one.expected.id}"
            )
        last = (found.output.strip().splitlines() or ["nothing"])[-1]
        return _undecided(cell, f"the script could not decide: {hidden.text(last)[:200]}")

    def _keep(self, cell: Cell) -> None:
        self.cells[cell.reproducer, cell.release] = cell
        self._save()

    def _save(self) -> None:
        self._saved.save(cells=list(self.cells.values()))


def _undecided(cell: Cell, why: str) -> tuple[Cell, str]:
    return replace(cell, why=why), f"unknown: {why}"


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"
