"""Run repro.py, or the script of a candidate, on launched servers, and see if it reproduces."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadchaos.analysis.classify import signature_file
from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.script import CHECKS, WRONG, ScriptFacts, write
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan, TryResult
from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.core.limits import LAST_LINES_S
from loadchaos.run.held_server import HeldServer

_HANGS = ("hang", "startup")
"""Failures that a script cannot see: it knows a dead server, a failed request and an answer that breaks its schema."""
_OF_ANSWERS = "figures.toml"
"""File of the signatures of wrong answers."""
_FEWEST, _MOST = 3, 8
_FEWEST_QUICK = 10
"""Runs of a script whose server starts in seconds."""
QUICK_START_S = 10.0
"""A server that starts faster is started for each script, so that no earlier try has a part in its failure."""
_LAST_LINES_READ_S = LAST_LINES_S + 2.0
_LAST_LINE_OF_A_REQUEST_S = 1.0
_POLL_S = 0.1
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class ScriptRuns:
    """Runs of a script. How many reproduced the failure, and what the script and the log said. `searched` of the runs were
    made by the search.
    """

    reproduced: int
    runs: int
    searched: int = 0
    output: str = ""
    line: str = ""

    @property
    def share(self) -> float:
        return self.reproduced / self.runs if self.runs else 0.0


@dataclass(frozen=True)
class ScriptRun:
    """`line` of the log: None without the failure. `code`: None after the limit. `other`: id of another failure."""

    line: str | None
    output: str
    code: int | None
    other: str | None = None


def fewest_runs(ready_s: float | None) -> int:
    """Runs that a script gets at least, by the time that its server needs to start."""
    return _FEWEST if ready_s is None or ready_s >= QUICK_START_S else _FEWEST_QUICK


async def run_script(
    script: Path,
    plan: TryPlan,
    folder: Path,
    print_line: Callable[[str], None],
    searched: tuple[int, int] = (0, 0),
    until_s: float = math.inf,
) -> ScriptRuns:
    """Run a script on a fresh server each time: three times at least, and until it has ten runs, or eight of a server that
    starts slowly and does not always reproduce.

    Args:
        searched: (reproduced, runs) of the same script in the search, which count.
        until_s: monotonic time after which no run is made beyond the first three.
    """
    reproduced, runs = searched
    output = line = ""
    new, wanted = 0, _FEWEST
    while new < _FEWEST or (runs < wanted and time.monotonic() < until_s):
        found, ready_s = await on_fresh_server(script, plan.server, plan.expected, folder / f"{new + 1:02}")
        new, runs = new + 1, runs + 1
        if found.line is not None:
            reproduced, output, line = reproduced + 1, found.output, found.line
        wanted = max(fewest_runs(ready_s), _FEWEST if reproduced == runs else _MOST)
        answer = "reproduced" if found.line is not None else "not reproduced"
        print_line(f"repro.py, run {new} on a fresh server: {answer}")
        if new > _FEWEST and not reproduced:
            break
    return ScriptRuns(reproduced, runs, searched[1], output, line)


async def on_fresh_server(
    script: Path, server: ServerChoice, expected: ExpectedFailure | None, folder: Path, limit_s: float | None = None
) -> tuple[ScriptRun, float]:
    """(run, seconds that the server needed to start). Raises TargetError where it does not become healthy."""
    assert server.launch is not None
    held, begin_s = HeldServer(server.launch, folder), time.monotonic()
    try:
        await held.start(server.ready_within_s)
        ready_s = time.monotonic() - begin_s
        found = await run_once(script, held, expected, limit_s)
    finally:
        await held.stop()
    (folder / "repro.txt").write_text(found.output)
    return found, ready_s


async def run_once(
    script: Path, held: HeldServer, expected: ExpectedFailure | None, limit_s: float | None = None
) -> ScriptRun:
    """Run a script once against a healthy server. The failure came if the script exits with 1 and the log has it since
    the begin of the script, or its own output where it checks the answers. `expected` None: the exit code is enough.
    """
    log_begin = held.log.stat().st_size if held.log.exists() else 0
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), held.url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(limit_s):
            said, _ = await process.communicate()
    except TimeoutError:
        return ScriptRun(None, f"stopped after {limit_s:.0f} s", None)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = said.decode("utf-8", "replace")
    if process.returncode != 1:
        return ScriptRun(None, text, process.returncode)
    if expected is None:
        last = (text.strip().splitlines() or [""])[-1]
        return ScriptRun(None if _TRACEBACK in text else last, text, 1)  # Python ends with 1 for any error
    if expected.id in CHECKS:  # no log has it
        return ScriptRun(next((line for line in text.splitlines() if line.startswith(WRONG)), None), text, 1)
    deadline_s = time.monotonic() + (_LAST_LINES_READ_S if expected.deadly else _LAST_LINE_OF_A_REQUEST_S)
    while True:
        if ended := held.launched.exit.done():
            await held.launched.wait_recorded()
        line, other = _failure_in(held.log, log_begin, expected)
        if line is not None or ended or time.monotonic() > deadline_s:
            return ScriptRun(line, text, 1, other)
        await asyncio.wait([held.launched.exit], timeout=_POLL_S)


def _failure_in(log: Path, begin: int, expected: ExpectedFailure) -> tuple[str | None, str | None]:
    """(line of the expected failure, id of another one) from a log. What stands before `begin` does not count."""
    if not log.exists():
        return None, None
    with log.open("rb") as f:
        f.seek(begin)
        text = f.read().decode("utf-8", "replace")
    other = None
    for failure in classify_text(text):
        found = failure.result(None, None, None, None)
        if expected.matches(found):
            return found.evidence.text or "", None
        other = other or found.id
    return None, other


def can_try(expected: ExpectedFailure) -> bool:
    """True for a failure that a script can see."""
    if expected.id in CHECKS:
        return True
    signature = signature_file.load().get(expected.id)
    return expected.severity not in _HANGS and (signature is None or signature.file != _OF_ANSWERS)


def facts_of(server: ServerChoice, expected: ExpectedFailure, dialect: str) -> ScriptFacts:
    assert server.launch is not None
    return ScriptFacts(
        expected.title or expected.describe(),
        server.launch.url,
        dialect,
        expected.deadly,
        CHECKS.get(expected.id, ""),
    )


async def try_script(
    candidate: Reduction,
    facts: ScriptFacts,
    expected: ExpectedFailure,
    folder: Path,
    held: HeldServer,
    limit_s: float,
) -> TryResult:
    """Write the script of a candidate and run it once against a server. `folder` exists and is empty."""
    begin_s, fresh = time.monotonic(), held.runs == 0
    held.runs += 1
    found = await run_once(write(candidate, facts, folder), held, expected, limit_s)
    (folder / "repro.txt").write_text(found.output)
    seconds, reproduced = time.monotonic() - begin_s, found.line is not None
    died = not held.alive or found.code is None or (facts.deadly and found.code == 1)
    failure = expected.id if reproduced else found.other
    other = died and not reproduced
    return TryResult(reproduced, failure, other, candidate.requests, seconds, str(folder), fresh, died=died)
