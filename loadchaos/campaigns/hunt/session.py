"""One hunt: workloads, then replay and reduction of what was found."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadchaos.campaigns.hunt.corpus import Corpus, WorkloadChoice, finding_key, findings_of
from loadchaos.campaigns.hunt.findings import HuntFinding, Reproduction, collect, keep_run
from loadchaos.campaigns.hunt.genes import GenePool, ServerLimits, pool_of
from loadchaos.campaigns.hunt.journal import CORPUS, RUNS, SETTINGS, Journal
from loadchaos.campaigns.hunt.workers import SlotLostError, SlotProcess
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, TargetError
from loadchaos.core.model import Facts
from loadchaos.core.stats import upper_bound_at_zero
from loadchaos.core.units import spent_time
from loadchaos.core.whole_file import write_json, write_whole
from loadchaos.profile.profile import yaml_text
from loadchaos.report.formatting import plural
from loadchaos.report.html import hunt_page
from loadchaos.run.interrupts import Interrupts

_KEPT_SHARE, _MOST_KEPT_SHARE, _KEPT_STARTS = 0.3, 0.5, 8
"""Share of the budget that is kept for replay and reduction of what was found; more where a server starts slowly."""
_MOST_LOST = 3
_MOST_USELESS = 5


@dataclass(frozen=True)
class HuntSettings:
    """Settings of a hunt, as hunt.json has them.

    Attributes:
        requests: requests of the largest workload.
        most_findings: the hunt ends after this many findings; None: when its budget is spent.
        feedback: False: every workload is drawn at random.
    """

    seed: int
    budget_s: float
    requests: int = 64
    most_findings: int | None = None
    feedback: bool = True
    genes: Mapping[str, Mapping[str, Any]] | None = None


class HuntSession:
    """Runs a hunt and keeps its files."""

    def __init__(
        self,
        settings: HuntSettings,
        folder: Path,
        runners: Sequence[SlotProcess],
        reproduction: Reproduction,
        interrupts: Interrupts,
        print_line: Callable[[str], None],
    ) -> None:
        self._settings, self._folder, self._runners = settings, folder, list(runners)
        self._reproduction, self._print = reproduction, print_line
        self._journal = Journal(folder)
        self._before_s = float(self._journal.rows[-1]["at_s"]) if self._journal.rows else 0.0
        self._begin_s = time.monotonic()
        self._start_s = 0.0
        self._corpus: Corpus | None = None
        self._interrupts = interrupts
        self._ended_early = False
        self._failed: LoadchaosError | None = None

    @property
    def at_s(self) -> float:
        return self._before_s + time.monotonic() - self._begin_s

    async def run(self) -> int:
        """Hunt, replay and minimise. Returns the exit code. Raises LoadchaosError where the server cannot be tested at
        all.
        """
        with self._interrupts.handled_by(self._interrupted):
            return await self._hunt()

    async def _hunt(self) -> int:
        try:
            probed = await self._probe()
            if probed is None:
                return self._interrupts.exit_code
            pool = self._prepare(probed)
            self._start_s = time.monotonic() - self._begin_s
            self._begin_s = time.monotonic()  # the start of the server is no part of the budget
            await self._work_on_all(pool)
            self._ended_early = not self._finished()
        finally:
            await asyncio.gather(*(runner.stop() for runner in self._runners))
        found = self.findings()
        if found and not self._interrupts:
            await self._reproduction.run(found, max(0.0, self._settings.budget_s - self.at_s))
        self._report()
        self._journal.close()
        return self._conclude(found)

    async def _probe(self) -> Mapping[str, Any] | None:
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

    def _prepare(self, probed: Mapping[str, Any]) -> GenePool:
        facts = Facts.from_json(probed["facts"])
        if probed.get("trouble"):
            self._print(f"note: the server does not answer as expected: {probed['trouble']}")
        limits = ServerLimits(
            facts,
            probed["settings"],
            tuple(probed["models"]),
            self._settings.requests,
            tuple(probed.get("endpoints", ())),
        )
        pool = pool_of(limits, self._settings.genes)
        corpus = Corpus(self._settings.seed, pool, self._settings.feedback)
        for row in self._journal.rows:
            corpus.fold(row)
        self._corpus = corpus
        genes = [name for group in pool.choices.values() for name, values in group.items() if values]
        self._print(f"server: {facts.dialect} {facts.version or '(version unknown)'}; {len(genes)} genes fit it")
        if corpus.workloads:
            self._print(f"continuing after {corpus.workloads:,} workloads")
        file = self._folder / SETTINGS
        data = _read(file)
        before = data.get("identified_with") or {}
        data["identified_with"] = {name: n + before.get(name, 0) for name, n in (probed.get("asked") or {}).items()}
        data["server"] = {"dialect": facts.dialect, "version": facts.version, "model": facts.model}
        write_json(file, data)
        return pool

    async def _work_on_all(self, pool: GenePool) -> None:
        working = [asyncio.create_task(self._work(runner, pool)) for runner in self._runners]
        try:
            await asyncio.gather(*working)
        finally:
            for task in working:
                task.cancel()

    async def _work(self, runner: SlotProcess, pool: GenePool) -> None:
        corpus = self._corpus
        assert corpus is not None
        lost = useless = 0
        while not self._finished() and lost < _MOST_LOST and useless < _MOST_USELESS:
            choice = corpus.choose()
            order = {
                "workload": choice.workload.to_json(), "profile": choice.workload.profile(pool), "seed": choice.seed,
                "folder": str(self._folder / RUNS / f"{choice.number:05}"), "known": list(corpus.findings),
            }  # fmt: skip
            try:
                result = await runner.run(order)
            except (SlotLostError, LoadchaosError) as e:
                lost += 1
                self._note_lost(e, choice)
                if isinstance(e, LoadchaosError) and lost >= _MOST_LOST:
                    self._failed = e
                continue
            lost = 0
            if result.get("stopped"):
                return
            useful = self._fold(choice, dict(result), pool)
            useless = 0 if useful else useless + 1
        if not self._finished():
            self._print("a server is not used any more: its workloads were lost or proved nothing")
            await runner.stop()

    def _note_lost(self, error: Exception, choice: WorkloadChoice) -> None:
        if not self._interrupts:
            self._print(f"workload {choice.number}: lost: {error}")

    def _finished(self) -> bool:
        settings, corpus = self._settings, self._corpus
        assert corpus is not None
        if self._interrupts:
            return True
        if settings.most_findings is not None and len(corpus.findings) >= settings.most_findings:
            return True
        kept_s = max(_KEPT_SHARE * settings.budget_s, _KEPT_STARTS * self._start_s)
        kept_s = min(kept_s, _MOST_KEPT_SHARE * settings.budget_s)
        return self.at_s >= settings.budget_s - (kept_s if corpus.findings else 0.0)

    def _fold(self, choice: WorkloadChoice, result: dict[str, Any], pool: GenePool) -> bool:
        """Record the result of a workload, keep what is new, remove its run. Returns True if it proved or found
        something.
        """
        corpus = self._corpus
        assert corpus is not None
        run, known = Path(result.pop("run")), set(corpus.findings)
        row = {**choice.to_json(), "at_s": round(self.at_s, 3), **result}
        kept = corpus.fold(row)
        new = [f for f in findings_of(row) if finding_key(f) not in known]
        self._journal.append({**row, "news": sorted(corpus.news_of_last)})
        if new:
            for finding in self.findings():
                if finding.workload == choice.number:
                    keep_run(finding, self._folder, run)
        if kept:
            self._keep_profile(choice, pool)
        shutil.rmtree(run.parent if run.parent.name == f"{choice.number:05}" else run, ignore_errors=True)
        self._print(self._progress(choice, row, new))
        self._report()
        return bool(row["proved"] or findings_of(row))

    def _keep_profile(self, choice: WorkloadChoice, pool: GenePool) -> None:
        folder = self._folder / CORPUS
        folder.mkdir(exist_ok=True)
        (folder / f"{choice.number:05}.yaml").write_text(yaml_text(choice.workload.profile(pool)), encoding="utf-8")

    def findings(self) -> list[HuntFinding]:
        return collect(self._journal.rows, self._folder)

    def _progress(self, choice: WorkloadChoice, row: Mapping[str, Any], new: Sequence[Mapping[str, Any]]) -> str:
        corpus = self._corpus
        assert corpus is not None
        origin = "drawn" if choice.parent is None else f"{choice.change} of {choice.parent}"
        shown = f"workload {choice.number} ({origin}): {sent_of([row])}, {row['seconds']:.0f} s, "
        shown += f"{len(corpus.news_of_last)} new of {len(corpus.hits)} features"
        if not row["proved"]:
            shown += f", proved nothing ({row['why']})"
        found = findings_of(row)
        if found:
            ids = ", ".join(str(f["id"]) for f in found)
            shown += f"; {'NEW FINDING' if new else 'known'}: {ids}"
        left_s = max(0.0, self._settings.budget_s - self.at_s)
        return f"{shown}; {plural(len(corpus.findings), 'finding')}, {spent_time(left_s)} left"

    def _report(self) -> None:
        corpus = self._corpus
        if corpus is None:
            return
        entries = [
            {
                "n": e.number, "news": len(e.news), "chosen": e.chosen, "energy": corpus.energy(e),
                "workload": e.workload.to_json(), "known_failure": e.known_failure,
            }
            for e in sorted(corpus.entries, key=corpus.energy, reverse=True)
        ]  # fmt: skip
        findings = [{**f.to_json(), "text": f.describe()} for f in self.findings()]
        data = {
            "settings": _read(self._folder / SETTINGS), "rows": self._journal.rows, "entries": entries,
            "findings": findings, "worth": self.worth(), "features": len(corpus.hits),
        }  # fmt: skip
        write_whole(self._folder / "report.html", hunt_page.render(data))

    def worth(self) -> str:
        first = (_read(self._folder / SETTINGS).get("identified_with") or {}).get("generations") or 0
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
        proved = sum(bool(r["proved"]) for r in self._journal.rows)
        if self._ended_early or 2 * proved <= len(self._journal.rows):
            self._print("UNKNOWN: too few workloads proved anything")
            return exit_codes.UNKNOWN
        self._print("NOTHING FOUND")
        return exit_codes.PASS


def sent_of(rows: Sequence[Mapping[str, Any]], first: int = 0) -> str:
    """Describe the requests of workloads by purpose. `first`: requests that identified the server before the first
    workload. Pages and tokenizer calls are not counted.
    """
    requests = sum(int(r.get("requests") or 0) for r in rows)
    questions = sum(int(r.get("questions") or 0) for r in rows)
    discovery = first + sum(int((r.get("asked") or {}).get("discovery") or 0) for r in rows)
    others = [plural(questions, "question")] if questions else []
    others += [f"{discovery:,} to identify the server"] if discovery else []
    return plural(requests, "request") + (f" (and {', '.join(others)})" if others else "")


def worth(rows: Sequence[Mapping[str, Any]], features: int, first: int = 0) -> str:
    proved = sum(bool(r["proved"]) for r in rows)
    failed = sum(bool(findings_of(r)) for r in rows)
    starts = 1 + sum(bool(r.get("restarted")) for r in rows)
    took = spent_time(float(rows[-1]["at_s"])) if rows else "no time"
    text = f"{plural(len(rows), 'workload')} ({proved:,} proved something), {sent_of(rows, first)}, "
    text += f"{took}, {features:,} features"
    bound = upper_bound_at_zero(proved) if proved and not failed else None
    if bound is not None:
        text += f"; a workload like these fails with p < {bound:.3f} (95 %)"
    return f"{text}; {plural(starts, 'server start')}"


def _read(file: Path) -> dict[str, Any]:
    import json

    try:
        return dict(json.loads(file.read_bytes()))
    except (OSError, ValueError):
        return {}
