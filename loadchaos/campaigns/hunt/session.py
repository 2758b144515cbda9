"""One hunt: workloads, then replay and reduction of what was found."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.hunt.corpus import Corpus, WorkloadChoice
from loadchaos.campaigns.hunt.findings import HuntFinding, Reproduction, collect, keep_run
from loadchaos.campaigns.hunt.genes import ServerLimits, pool_of
from loadchaos.campaigns.hunt.journal import (
    CORPUS,
    RUNS,
    SETTINGS,
    HuntSettings,
    Journal,
    WorkloadResult,
    WorkloadRow,
)
from loadchaos.campaigns.hunt.slot import ProbedSlot, WorkloadOrder
from loadchaos.campaigns.hunt.workers import SlotLostError, SlotProcess
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, TargetError
from loadchaos.core.model import ServerName
from loadchaos.core.stats import upper_bound_at_zero
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.core.units import spent_time
from loadchaos.profile.source import yaml_text
from loadchaos.report.formatting import plural
from loadchaos.report.html import hunt_page

_KEPT_SHARE, _MOST_KEPT_SHARE, _KEPT_STARTS = 0.3, 0.5, 8
"""Share of the budget that is kept for replay and reduction of what was found; more where a server starts slowly."""
_MOST_LOST = 3
_MOST_USELESS = 5


class HuntSession:
    """Runs a hunt and keeps its files."""

    def __init__(
        self, settings: HuntSettings, campaign: Campaign, runners: Sequence[SlotProcess], reproduction: Reproduction
    ) -> None:
        self._settings, self._campaign, self._runners = settings, campaign, list(runners)
        self._reproduction, self._print, self._interrupts = reproduction, campaign.print_line, campaign.interrupts
        self._journal = Journal(campaign.folder)
        campaign.before_s = self._journal.rows[-1].at_s if self._journal.rows else 0.0
        self._start_s = 0.0
        self._corpus: Corpus | None = None
        self._ended_early = False
        self._failed: LoadchaosError | None = None

    async def run(self) -> int:
        """Hunt, replay and minimise; returns the exit code. Raises LoadchaosError for a useless server."""
        with self._interrupts.handled_by(self._interrupted):
            return await self._hunt()

    async def _hunt(self) -> int:
        try:
            probed = await self._probe()
            if probed is None:
                return self._interrupts.exit_code
            self._prepare(probed)
            self._start_s = self._campaign.begin_now()
            await self._work_on_all()
            self._ended_early = not self._finished()
        finally:
            await asyncio.gather(*(runner.stop() for runner in self._runners))
        found = self.findings()
        if found and not self._interrupts:
            await self._reproduction.run(found, max(0.0, self._settings.budget_s - self._campaign.at_s))
        self._report()
        self._journal.close()
        return self._conclude(found)

    async def _probe(self) -> ProbedSlot | None:
        """Start the first server; returns its facts. None after an interruption."""
        try:
            return await self._runners[0].probe()
        except SlotLostError as e:
            if self._interrupts:
                return None
            raise TargetError(f"the server could not be started: {e}; see that log") from e

    def _interrupted(self, _: signal.Signals) -> None:
        if self._interrupts.count == 1:
            self._print("interrupted: the workloads in flight are ended")
        self._reproduction.stop()
        for runner in self._runners:
            runner.interrupt()

    def _prepare(self, probed: ProbedSlot) -> None:
        facts, settings = probed.facts, self._settings
        if probed.trouble:
            self._print(f"note: the server does not answer as expected: {probed.trouble}")
        pool = pool_of(
            ServerLimits(facts, probed.settings, probed.models, settings.requests, probed.endpoints), settings.genes
        )
        corpus = self._corpus = Corpus(settings.seed, pool, not settings.no_feedback)
        for row in self._journal.rows:
            corpus.fold(row)
        genes = [name for group in pool.choices.values() for name, values in group.items() if values]
        self._print(f"server: {facts.dialect} {facts.version or '(version unknown)'}; {len(genes)} genes fit it")
        if corpus.workloads:
            self._print(f"continuing after {corpus.workloads:,} workloads")
        before = settings.identified_with
        self._settings = replace(
            settings,
            identified_with={name: n + before.get(name, 0) for name, n in probed.asked.items()},
            server=from_json(ServerName, to_json(facts)),
        )
        self._campaign.write({SETTINGS: self._settings})

    @property
    def corpus(self) -> Corpus:
        assert self._corpus is not None  # since the first server was probed
        return self._corpus

    async def _work_on_all(self) -> None:
        working = [asyncio.create_task(self._work(runner)) for runner in self._runners]
        try:
            await asyncio.gather(*working)
        finally:
            for task in working:
                task.cancel()

    async def _work(self, runner: SlotProcess) -> None:
        lost = useless = 0
        while not self._finished() and lost < _MOST_LOST and useless < _MOST_USELESS:
            choice = self.corpus.choose()
            folder = self._campaign.folder / RUNS / f"{choice.number:05}"
            try:
                result = await runner.run(
                    WorkloadOrder(choice.workload.profile(self.corpus.pool), choice.seed, str(folder))
                )
            except (SlotLostError, LoadchaosError) as e:
                lost += 1
                if not self._interrupts:
                    self._print(f"workload {choice.number}: lost: {e}")
                if isinstance(e, LoadchaosError) and lost >= _MOST_LOST:
                    self._failed = e
                continue
            lost = 0
            if result.stopped:
                return
            useless = 0 if self._fold(choice, result) else useless + 1
        if not self._finished():
            self._print("a server is not used any more: its workloads were lost or proved nothing")
            await runner.stop()

    def _finished(self) -> bool:
        settings, corpus = self._settings, self.corpus
        if self._interrupts:
            return True
        if settings.findings is not None and len(corpus.findings) >= settings.findings:
            return True
        kept_s = max(_KEPT_SHARE * settings.budget_s, _KEPT_STARTS * self._start_s)
        kept_s = min(kept_s, _MOST_KEPT_SHARE * settings.budget_s)
        return self._campaign.at_s >= settings.budget_s - (kept_s if corpus.findings else 0.0)

    def _fold(self, choice: WorkloadChoice, result: WorkloadResult) -> bool:
        """Record the result of a workload, keep what is new, remove its run. True if it proved or found something."""
        corpus = self.corpus
        run, known = Path(result.run), set(corpus.findings)
        told = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "run"}
        row = WorkloadRow(
            **told,
            n=choice.number,
            workload=choice.workload,
            seed=choice.seed,
            change=choice.change,
            parent=choice.parent,
            at_s=round(self._campaign.at_s, 3),
        )
        kept = corpus.fold(row)
        row = replace(row, news=tuple(sorted(corpus.news_of_last)))
        self._journal.append(row)
        new = any(f.key not in known for f in row.findings)
        for finding in self.findings() if new else ():
            if finding.workload == choice.number:
                keep_run(finding, self._campaign, run)
        if kept:  # as a profile, which `loadchaos run` sends
            self._campaign.write({f"{CORPUS}/{choice.number:05}.yaml": yaml_text(choice.workload.profile(corpus.pool))})
        shutil.rmtree(run.parent if run.parent.name == f"{choice.number:05}" else run, ignore_errors=True)
        self._print(self._progress(row, len(corpus.hits), new=new))
        self._report()
        return row.proved or bool(row.findings)

    def findings(self) -> list[HuntFinding]:
        return collect(self._journal.rows, self._campaign.folder)

    def _progress(self, row: WorkloadRow, features: int, *, new: bool) -> str:
        origin = "drawn" if row.parent is None else f"{row.change} of {row.parent}"
        shown = f"workload {row.n} ({origin}): {sent_of([row])}, {row.seconds:.0f} s, "
        shown += f"{len(row.news)} new of {features} features"
        if not row.proved:
            shown += f", proved nothing ({row.why})"
        if row.findings:
            ids = ", ".join(f.id for f in row.findings)
            shown += f"; {'NEW FINDING' if new else 'known'}: {ids}"
        left_s = max(0.0, self._settings.budget_s - self._campaign.at_s)
        return f"{shown}; {plural(len(self.corpus.findings), 'finding')}, {spent_time(left_s)} left"

    def _report(self) -> None:
        corpus = self._corpus
        if corpus is None:
            return
        entries = [
            {
                "n": e.number, "news": len(e.news), "chosen": e.chosen, "energy": corpus.energy(e),
                "workload": e.workload, "known_failure": e.known_failure,
            }
            for e in sorted(corpus.entries, key=corpus.energy, reverse=True)
        ]  # fmt: skip
        findings = [{**to_json(f), "text": f.describe()} for f in self.findings()]
        data = {
            "settings": self._settings, "rows": self._journal.rows, "entries": entries,
            "findings": findings, "worth": self.worth(), "features": len(corpus.hits),
        }  # fmt: skip
        self._campaign.write({"report.html": hunt_page.render(to_json(data))})

    def worth(self) -> str:
        first = self._settings.identified_with.get("generations", 0)
        return worth(self._journal.rows, len(self._corpus.hits) if self._corpus is not None else 0, first)

    def _conclude(self, found: Sequence[HuntFinding]) -> int:
        for finding in found:
            self._print(f"FOUND {finding.number}: {finding.describe()}")
        self._print(self.worth())
        if self._interrupts:
            return self._interrupts.exit_code
        if found:
            return exit_codes.FAIL
        if self._failed is not None:
            self._print(f"the hunt ended early: {self._failed}")
        proved = sum(r.proved for r in self._journal.rows)
        if self._ended_early or 2 * proved <= len(self._journal.rows):
            self._print("UNKNOWN: too few workloads proved anything")
            return exit_codes.UNKNOWN
        self._print("NOTHING FOUND")
        return exit_codes.PASS


def sent_of(rows: Sequence[WorkloadRow], first: int = 0) -> str:
    """Requests of workloads by purpose; `first` identified the server. Pages and tokenizer calls do not count."""
    questions = sum(r.questions for r in rows)
    discovery = first + sum(r.asked.get("discovery", 0) for r in rows)
    others = [plural(questions, "question")] if questions else []
    others += [f"{discovery:,} to identify the server"] if discovery else []
    return plural(sum(r.requests for r in rows), "request") + (f" (and {', '.join(others)})" if others else "")


def worth(rows: Sequence[WorkloadRow], features: int, first: int = 0) -> str:
    """Describe what rows of workloads are worth; `first` as in `sent_of`."""
    proved, failed = sum(r.proved for r in rows), sum(bool(r.findings) for r in rows)
    took = spent_time(rows[-1].at_s) if rows else "no time"
    text = f"{plural(len(rows), 'workload')} ({proved:,} proved something), {sent_of(rows, first)}, "
    text += f"{took}, {features:,} features"
    bound = upper_bound_at_zero(proved) if proved and not failed else None
    if bound is not None:
        text += f"; a workload like these fails with p < {bound:.3f} (95 %)"
    return f"{text}; {plural(1 + sum(r.restarted for r in rows), 'server start')}"
