"""Run `loadchaos run` with a steady load, bring in a fault, read the rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.states.faults import Fault, NotHereError, post
from bench.states.places import Place, place

Row = dict[str, Any]
READY_S, _LIMIT_S = 600.0, 90.0
_ROLL_S = 120.0
_STEADY = {
    "name": "states", "about": "a steady load into which a fault is brought",
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"exact": 24}}],
    "load": [{"users": 4, "for": "12h"}],
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Result of one run with a fault.

    It has the seconds from the fault to each state (None: it never came), the kinds of incident, and states that must
    not occur.
    """

    took: dict[str, float | None]
    kinds: tuple[str, ...]
    wrong: tuple[str, ...]


class Run:
    """One `loadchaos run`; `healthy_s` is the length of a run without a fault."""

    def __init__(self, home: Path, fault: Fault, where: Place, healthy_s: float) -> None:
        self.home, self.place, self.healthy_s = home, where, healthy_s
        self.stopped: list[int] = []
        self.rolled = threading.Event()
        self.trigger = home / "trigger"
        profile = {**_STEADY, "target": where.target, **fault.profile}
        (home / "states.yaml").write_text(json.dumps(profile))
        argv = [sys.executable, "-m", "loadchaos", "run", "states.yaml", "--no-live", "--exporter-port", "0"]
        with (home / "output").open("wb") as log:
            self.process = subprocess.Popen([*argv, "--out", "runs", *where.options], cwd=home, stdout=log, stderr=log)

    def rows(self, pattern: str = "events.jsonl") -> Iterator[Row]:
        """Read all rows of some files so far."""
        for path in self.home.glob(f"runs/*/{pattern}"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                yield json.loads(line)

    def wait(self, found: Callable[[], Any], limit_s: float) -> Any:
        """Wait for a true value; None on timeout or when the run has ended."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            value = found()
            if value or ended:
                return value
            time.sleep(0.05)
        return None

    def under_load(self) -> bool:
        """Wait until the server answers steadily."""
        answered = bool(self.wait(self._answered, READY_S))
        time.sleep(2.0 if answered else 0.0)
        return answered

    def _answered(self) -> bool:
        return len([r for r in self.rows("requests-*.jsonl") if r.get("outcome") == "ok"]) > 8

    def pid_of(self, role: str) -> int | None:
        """Find the newest living process of a role."""
        alive: dict[int, str] = {}
        for row in self.rows():
            if row.get("row") == "process":
                alive.pop(row["pid"], None)
                if row["what"] != "gone":
                    alive[row["pid"]] = row["role"]
        return next((pid for pid, has in reversed(alive.items()) if has == role), None)

    def log_says(self, word: str, limit_s: float = READY_S) -> int:
        """Wait for a text in the log of the launched server; give its time.

        Raises NotHereError if it does not come.
        """
        found = self.wait(partial(self._in_log, word.encode()), limit_s) or self._in_log(word.encode())
        if found is None:
            raise NotHereError(f"the log never showed {word!r}")
        return int(found)

    def _in_log(self, word: bytes) -> int | None:
        for log in self.home.glob("runs/*/server.log"):
            at = log.read_bytes().find(word)
            if at >= 0:
                reads = [r for r in self.rows("server.index.jsonl") if r.get("row") == "lines" and r["offset"] <= at]
                return int(reads[-1]["at_ns"])
        return None

    def changes(self, after_ns: int) -> list[Row]:
        """List changes of state after a time."""
        rows = (r for r in self.rows() if r.get("row") == "state" and r["at_ns"] > after_ns)
        return [r for r in rows if r["from"] != r["to"]]

    def first(self, state: str, after_ns: int) -> Row | None:
        """Find the first change to a state after a time."""
        return next((r for r in self.changes(after_ns) if r["to"] == state), None)

    def address(self) -> str:
        """Address of the server."""
        return str(self._facts()["admin_url"])

    def model(self) -> str:
        """Model of the server."""
        return str(self._facts()["model"])

    def _facts(self) -> Row:
        return dict(next(r["facts"] for r in self.rows() if r.get("row") == "facts"))

    def end(self) -> None:
        """Continue stopped processes and end the run in order."""
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.trigger.unlink(missing_ok=True)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(90)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def kinds(self) -> tuple[str, ...]:
        """Kinds of incident in the verdict."""
        verdict = next(self.home.glob("runs/*/verdict.json"), None)
        incidents = json.loads(verdict.read_text())["incidents"] if verdict else []
        return tuple(i["kind"] for i in incidents if i["kind"] != "failure")


def measure(fault: Fault, server: str, home: Path, healthy_s: float, there: Place | None = None) -> Measured:
    """Run once with one fault, on a new server or the one given as `there`.

    Raises NotHereError.
    """
    with contextlib.nullcontext(there) if there is not None else place(fault.place, server, home) as where:
        run = Run(home, fault, where, healthy_s)
        try:
            took, before_ns = _bring(fault, run)
        finally:
            run.end()
            if fault.undo is not None:
                post(fault.undo, wait_s=30)(run)
        wrong = tuple(f"{r['to']} ({'; '.join(r['signs'])})" for r in run.changes(before_ns) if r["to"] in fault.never)
        return Measured(took, run.kinds(), wrong)


def _bring(fault: Fault, run: Run) -> tuple[dict[str, float | None], int]:
    if not fault.before_load and not run.under_load():
        raise NotHereError(f"no answers: {(run.home / 'output').read_text()[-300:]}")
    before_ns = fault.act(run)
    took: dict[str, float | None] = {}
    after_ns = before_ns
    for state in fault.states:
        row = run.wait(partial(run.first, state, after_ns), _LIMIT_S)
        took[state] = None if row is None else (row["at_ns"] - before_ns) / 1e9
        after_ns = after_ns if row is None else row["at_ns"] - 1
    if fault.place == "balanced" and len(fault.kinds) > 1:
        run.rolled.wait(_ROLL_S)
    return took, before_ns
