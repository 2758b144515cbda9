"""Run repro.py on fresh servers and count how often it reproduces."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.runner.held_server import HeldServer
from loadchaos.runner.replay.expected import ExpectedFailure
from loadchaos.runner.replay.servers import ServerChoice

_ENOUGH_SUCCESSES = 3
_MOST = 8
_LAST_LINES_S = 8.0


@dataclass(frozen=True)
class ScriptRuns:
    """Runs of a script.

    How many reproduced the failure, and what the script and the log said.
    """

    reproduced: int
    runs: int
    output: str = ""
    line: str = ""
    seconds: float = 0.0


async def run_script(
    script: Path, server: ServerChoice, expected: ExpectedFailure, folder: Path, print_line: Callable[[str], None]
) -> ScriptRuns:
    """Run a script on a fresh server each time.

    Three times, or up to eight where it does not always reproduce.
    """
    reproduced = runs = 0
    output = line = ""
    begin_s = time.monotonic()
    while runs < _MOST and not (reproduced >= _ENOUGH_SUCCESSES and reproduced == runs):
        runs += 1
        found, said = await _once(script, server, expected, folder / f"{runs:02}")
        if found is not None:
            reproduced, output, line = reproduced + 1, said, found
        print_line(f"repro.py, run {runs} on a fresh server: {'reproduced' if found is not None else 'not reproduced'}")
        if runs >= 4 and not reproduced:
            break
    return ScriptRuns(reproduced, runs, output, line, time.monotonic() - begin_s)


async def _once(script: Path, server: ServerChoice, expected: ExpectedFailure, folder: Path) -> tuple[str | None, str]:
    """(log line of the failure, or None; output of the script)."""
    assert server.launch is not None
    held = HeldServer(server.launch, folder)
    try:
        await held.start(server.ready_within_s)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            server.launch.url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode == 1:
            await asyncio.wait([held.launched.exit], timeout=_LAST_LINES_S)
    finally:
        await held.stop()
    text = said.decode("utf-8", "replace")
    (folder / "repro.txt").write_text(text)
    if process.returncode != 1:
        return None, text
    log = held.log.read_text("utf-8", "replace") if held.log.exists() else ""
    for failure in classify_text(log):
        data = failure.to_json()
        if expected.matches(data):
            return str((data.get("evidence") or {}).get("text") or ""), text
    return None, text
