"""Findings of a hunt, each with its run, replay and reproducer. The replay and the minimiser are the commands
`loadchaos replay` and `loadchaos minimise`, each a process of its own with a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadchaos.analysis.failure import DEADLY_OR_HUNG
from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.hunt.journal import FINDINGS, HuntFailure, WorkloadRow
from loadchaos.campaigns.replay.estimate import probability, result_line
from loadchaos.campaigns.replay.session import ReplayState, proved
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.core.typed_json import IF_KNOWN, from_json, only_with
from loadchaos.report.formatting import plural

FILE = "finding.json"
REPLAY_TRIES = 3
_LEAST_S, _END_S = 10.0, 30.0
_NO_TIME = "the budget was spent"


@dataclass(frozen=True)
class FindingReplay:
    """Result of a replay: `reproduced` of `tries`; nothing where it was not replayed."""

    reproduced: int = field(default=0, metadata=only_with("line"))
    tries: int = field(default=0, metadata=only_with("line"))
    line: str | None = field(default=None, metadata=IF_KNOWN)


@dataclass
class HuntFinding:
    """A failure by id and guilty frame. `after_requests` of the load and `after_others` (questions, requests that
    identified the server) it showed first, after `at_s` of the hunt, in `workload`; `workloads` are all that showed it.
    `repro`: folder of the reproducer. `note`: why it was not replayed. `out_of_time`: the budget was spent before it
    could be replayed or minimised; a resumed hunt has time again.
    """

    key: str
    number: int
    failure: HuntFailure
    workload: int
    at_s: float
    after_requests: int
    folder: str
    workloads: tuple[int, ...] = ()
    replay: FindingReplay = FindingReplay()
    minimised: str = ""
    repro: str = ""
    note: str = ""
    after_others: int = 0
    out_of_time: bool = False

    def describe(self) -> str:
        failure, replay = self.failure, self.replay
        frame = f" in {failure.frame}" if failure.frame else ""
        shown = f"{len(self.workloads)} of the workloads" if len(self.workloads) > 1 else f"workload {self.workload}"
        after = f"after {plural(self.after_requests, 'request')}"
        after += f" and {self.after_others:,} beside the load" if self.after_others else ""
        parts = [f"{failure.id}{frame}: {failure.title} ({shown}, first {after})"]
        if replay.tries:
            p = probability(replay.reproduced, replay.tries)
            parts.append(f"replay: {replay.reproduced} of {replay.tries} ({p})")
        return "; ".join([*parts, *filter(None, (self.minimised, self.note))])


def collect(rows: Sequence[WorkloadRow], folder: Path) -> list[HuntFinding]:
    """Group the failures of all rows by id and guilty frame, with what replay and minimiser have found before."""
    found: dict[str, HuntFinding] = {}
    requests = others = 0
    for row in rows:
        for failure in row.findings:
            if failure.key not in found:
                number = len(found) + 1
                place = f"{FINDINGS}/{number:02}-{re.sub(r'[^A-Za-z0-9_]+', '-', failure.id)}"
                after = requests + failure.after_requests
                new = HuntFinding(failure.key, number, failure, row.n, row.at_s, after, place)
                found[failure.key] = replace(new, after_others=others + row.others)
            if row.n not in found[failure.key].workloads:
                found[failure.key].workloads += (row.n,)
        requests += row.requests
        others += row.others
    for finding in found.values():
        _read_back(finding, folder)
    return list(found.values())


def _read_back(finding: HuntFinding, folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        before = from_json(HuntFinding, json.loads((folder / finding.folder / FILE).read_bytes()))
        finding.replay, finding.minimised = before.replay, before.minimised
        finding.repro, finding.note = before.repro, before.note
        # Older files have the reason as a text alone.
        finding.out_of_time = before.out_of_time or before.note.startswith(_NO_TIME)


def keep_run(finding: HuntFinding, campaign: Campaign, run: Path) -> None:
    into = campaign.folder / finding.folder
    into.mkdir(parents=True, exist_ok=True)
    kept = into / "run"
    if run.is_dir() and not kept.exists():
        shutil.copytree(run, kept, symlinks=True)
    incident = kept / "incidents" / (finding.failure.incident or "")
    if (incident / "incident.md").is_file():
        shutil.copyfile(incident / "incident.md", into / "incident.md")
    campaign.write({f"{finding.folder}/{FILE}": finding})


class Reproduction:
    """Replays and minimises findings within a time limit."""

    def __init__(self, campaign: Campaign, launch: str, extra: Sequence[str]) -> None:
        self._campaign, self._launch, self._extra = campaign, launch, tuple(extra)
        self._folder, self._print = campaign.folder, campaign.print_line
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the command that is running; no other one follows."""
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def run(self, findings: Sequence[HuntFinding], budget_s: float) -> None:
        order = sorted(findings, key=lambda f: (f.failure.severity not in DEADLY_OR_HUNG, f.number))
        deadline_s = time.monotonic() + budget_s
        for finding in order:
            if finding.out_of_time:
                finding.note, finding.out_of_time = "", False
        waiting = [f for f in order if not f.replay.tries and not f.note]
        for i, finding in enumerate(waiting):
            share_s = (deadline_s - time.monotonic()) / (2 * (len(waiting) - i))
            await self._step(finding, self._replay, share_s)
        waiting = [f for f in order if f.replay.reproduced and not f.minimised]
        for i, finding in enumerate(waiting):
            share_s = (deadline_s - time.monotonic()) / (len(waiting) - i)
            await self._step(finding, self._minimise, share_s)

    async def _step(self, finding: HuntFinding, step: Callable[..., Any], share_s: float) -> None:
        if share_s < _LEAST_S:
            if not finding.note:
                missing = "minimised" if finding.replay.tries else "replayed"
                finding.note, finding.out_of_time = f"{_NO_TIME} before it could be {missing}", True
        elif not self._stopped:
            await step(finding, share_s)
        if not self._stopped:
            self._campaign.write({f"{finding.folder}/{FILE}": finding})
            self._print(finding.describe())

    async def _replay(self, finding: HuntFinding, share_s: float) -> None:
        failure, into = finding.failure, self._folder / finding.folder
        if failure.before_load:
            finding.note = "it showed before the load, so no request of the load can be replayed"
            return
        argv = ["replay", str(into / "run"), "--times", str(REPLAY_TRIES), "--failure", failure.id]
        last = await self._command(argv, into, share_s)
        results = _tries(into)
        if results:
            line = result_line(sum(results), len(results))
            finding.replay = FindingReplay(sum(results), len(results), line)
        else:
            finding.note = f"the replay proved nothing: {last}"

    async def _minimise(self, finding: HuntFinding, share_s: float) -> None:
        into = self._folder / finding.folder
        argv = ["minimise", str(into / "run"), "--failure", finding.failure.id]
        argv += ["--budget", f"{max(1, round(share_s - _LEAST_S))}s"]
        last = await self._command(argv, into, share_s + 4 * _END_S)
        finding.minimised = last or "the minimiser ended without a result"
        if readmes := sorted(into.glob("minimise-*/repro/README.md")):
            finding.repro = str(readmes[0].parent.relative_to(self._folder))

    async def _command(self, argv: Sequence[str], into: Path, limit_s: float) -> str:
        """Run a command of loadchaos. Returns its last line."""
        words = [*PYTHON_MODULE, "loadchaos", *argv, "--launch", self._launch, "--out", str(into), *self._extra]
        self._print(f"$ loadchaos {shlex.join(argv)}")
        log = into / f"{argv[0]}.log"
        with log.open("wb") as out:
            self._process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
            for number, wait_s in ((signal.SIGINT, limit_s), (signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._process.wait()
                    break
                self._process.send_signal(number)
        await self._process.wait()
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def _tries(into: Path) -> list[bool]:
    files = sorted(into.glob("replay-*/replay.json"))
    return proved(from_json(ReplayState, json.loads(files[-1].read_bytes())).tries) if files else []
