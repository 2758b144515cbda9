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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadchaos.campaigns.hunt.corpus import DEADLY, finding_key, findings_of
from loadchaos.campaigns.hunt.journal import FINDINGS
from loadchaos.campaigns.replay.estimate import result_line
from loadchaos.core.stats import wilson
from loadchaos.core.whole_file import write_json
from loadchaos.report.formatting import plural

FILE = "finding.json"
REPLAY_TRIES = 3
_LEAST_S = 10.0
_END_S = 30.0


_NO_TIME = "the budget was spent"


@dataclass
class HuntFinding:
    """A failure by id and guilty frame, and the workloads that showed it.

    Attributes:
        after_requests: requests of the load of the hunt before it showed first.
        after_others: questions, and requests that identified the server, until the end of its workload.
        at_s: time of the hunt when it showed first.
        workloads: numbers of all workloads that showed it.
        replay: result of the replay: `reproduced`, `tries`, `line`; empty: not replayed, and `note` says why.
        repro: folder of the reproducer; empty: none.
        out_of_time: the budget was spent before it could be replayed or minimised; a resumed hunt has time again.
    """

    key: str
    number: int
    failure: Mapping[str, Any]
    workload: int
    at_s: float
    after_requests: int
    folder: str
    workloads: list[int] = field(default_factory=list)
    replay: dict[str, Any] = field(default_factory=dict)
    minimised: str = ""
    repro: str = ""
    note: str = ""
    after_others: int = 0
    out_of_time: bool = False

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def describe(self) -> str:
        failure, replay = self.failure, self.replay
        frame = f" in {failure['frame']}" if failure.get("frame") else ""
        shown = f"{len(self.workloads)} of the workloads" if len(self.workloads) > 1 else f"workload {self.workload}"
        after = f"after {plural(self.after_requests, 'request')}"
        after += f" and {self.after_others:,} beside the load" if self.after_others else ""
        parts = [f"{failure['id']}{frame}: {failure['title']} ({shown}, first {after})"]
        if replay.get("tries"):
            low, high = wilson(replay["reproduced"], replay["tries"])
            p = replay["reproduced"] / replay["tries"]
            interval = f"p = {p:.2f}, 95 % CI {low:.2f} to {high:.2f}"
            parts.append(f"replay: {replay['reproduced']} of {replay['tries']} ({interval})")
        parts += [self.minimised] if self.minimised else []
        parts += [self.note] if self.note else []
        return "; ".join(parts)


def collect(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[HuntFinding]:
    found: dict[str, HuntFinding] = {}
    requests = others = 0
    for row in rows:
        for failure in findings_of(row):
            key = finding_key(failure)
            if key not in found:
                number = len(found) + 1
                name = re.sub(r"[^A-Za-z0-9_]+", "-", str(failure["id"]))
                found[key] = HuntFinding(
                    key, number, failure, int(row["n"]), float(row["at_s"]),
                    requests + int(failure.get("after_requests") or 0), f"{FINDINGS}/{number:02}-{name}",
                    after_others=others + others_of(row),
                )  # fmt: skip
            if int(row["n"]) not in found[key].workloads:
                found[key].workloads.append(int(row["n"]))
        requests += int(row.get("requests") or 0)
        others += others_of(row)
    for finding in found.values():
        _read_back(finding, folder)
    return list(found.values())


def others_of(row: Mapping[str, Any]) -> int:
    """Count the requests of a workload that are not of its load. They are questions, and those that identify the
    server.
    """
    return int(row.get("questions") or 0) + int((row.get("asked") or {}).get("discovery") or 0)


def _read_back(finding: HuntFinding, folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        data = json.loads((folder / finding.folder / FILE).read_bytes())
        finding.replay, finding.minimised = dict(data["replay"]), str(data["minimised"])
        finding.repro, finding.note = str(data["repro"]), str(data["note"])
        # Older files have the reason as a text alone.
        finding.out_of_time = bool(data.get("out_of_time", finding.note.startswith(_NO_TIME)))


def keep_run(finding: HuntFinding, folder: Path, run: Path) -> None:
    """Move the run of a finding into its folder, with its incident beside it."""
    into = folder / finding.folder
    into.mkdir(parents=True, exist_ok=True)
    kept = into / "run"
    if run.is_dir() and not kept.exists():
        shutil.copytree(run, kept, symlinks=True)
    incident = kept / "incidents" / str(finding.failure.get("incident") or "")
    if (incident / "incident.md").is_file():
        shutil.copyfile(incident / "incident.md", into / "incident.md")
    write_json(into / FILE, finding.to_json())


class Reproduction:
    """Replays and minimises findings within a time limit."""

    def __init__(self, folder: Path, launch: str, extra: Sequence[str], print_line: Callable[[str], None]) -> None:
        self._folder, self._launch, self._extra, self._print = folder, launch, tuple(extra), print_line
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the command that is running; no other one follows."""
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def run(self, findings: Sequence[HuntFinding], budget_s: float) -> None:
        order = sorted(findings, key=lambda f: (f.failure.get("severity") not in DEADLY, f.number))
        deadline_s = time.monotonic() + budget_s
        for finding in order:
            if finding.out_of_time:
                finding.note, finding.out_of_time = "", False
        waiting = [f for f in order if not f.replay and not f.note]
        for i, finding in enumerate(waiting):
            share_s = (deadline_s - time.monotonic()) / (2 * (len(waiting) - i))
            await self._step(finding, self._replay, share_s)
        waiting = [f for f in order if f.replay.get("reproduced") and not f.minimised]
        for i, finding in enumerate(waiting):
            share_s = (deadline_s - time.monotonic()) / (len(waiting) - i)
            await self._step(finding, self._minimise, share_s)

    async def _step(self, finding: HuntFinding, step: Callable[..., Any], share_s: float) -> None:
        if share_s < _LEAST_S:
            if not finding.note:
                missing = "minimised" if finding.replay else "replayed"
                finding.note, finding.out_of_time = f"{_NO_TIME} before it could be {missing}", True
        elif not self._stopped:
            await step(finding, share_s)
        if not self._stopped:
            write_json(self._folder / finding.folder / FILE, finding.to_json())
            self._print(finding.describe())

    async def _replay(self, finding: HuntFinding, share_s: float) -> None:
        failure, into = finding.failure, self._folder / finding.folder
        if failure.get("before_load"):
            finding.note = "it showed before the load, so no request of the load can be replayed"
            return
        argv = ["replay", str(into / "run"), "--times", str(REPLAY_TRIES), "--failure", str(failure["id"])]
        last = await self._command(argv, into, share_s)
        results = [t["reproduced"] for t in _tries(into) if t["reproduced"] is not None]
        if results:
            line = result_line(sum(results), len(results))
            finding.replay = {"reproduced": sum(results), "tries": len(results), "line": line}
        else:
            finding.note = f"the replay proved nothing: {last}"

    async def _minimise(self, finding: HuntFinding, share_s: float) -> None:
        into = self._folder / finding.folder
        argv = ["minimise", str(into / "run"), "--failure", str(finding.failure["id"])]
        argv += ["--budget", f"{max(1, round(share_s - _LEAST_S))}s"]
        last = await self._command(argv, into, share_s + 4 * _END_S)
        repro = next(iter(sorted(into.glob("minimise-*/repro/repro.py"))), None)
        readme = repro.with_name("README.md") if repro is not None else None
        finding.minimised = last or "the minimiser ended without a result"
        if repro is not None and readme is not None and readme.is_file():
            finding.repro = str(repro.parent.relative_to(self._folder))

    async def _command(self, argv: Sequence[str], into: Path, limit_s: float) -> str:
        """Run a command of loadchaos. Returns its last line."""
        words = [sys.executable, "-m", "loadchaos", *argv, "--launch", self._launch, "--out", str(into), *self._extra]
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


def _tries(into: Path) -> list[Mapping[str, Any]]:
    files = sorted(into.glob("replay-*/replay.json"))
    if not files:
        return []
    return list(json.loads(files[-1].read_bytes())["tries"])
