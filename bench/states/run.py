"""How long after a fault the right state is told, measured through `loadchaos run` itself; prints a table.

python bench/states.py [--times N] [--only NAME ...] [--command 'vllm serve ...' --url URL] [--keep FOLDER]

Each measurement is a run of its own with a steady load, into which the fault is brought from outside: a signal to a
process that the run has seen (engine core, worker, API server), or a call of an admin endpoint. Without --command it
is the embedded server. A median under 1 s is wanted for deaths, `degraded` within 5 s and `hung` as soon as it is sure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Measured = tuple[dict[str, float | None], list[str]] | str
"""Seconds from the fault to each state and what the verdict calls it; or why nothing was measured."""

_READY_S, _LIMIT_S = 400.0, 90.0
_HANG = ("degraded", "hung")


@dataclass(frozen=True)
class Fault:
    """What is done (to the process of a role, or by a POST), which states have to follow, and what the verdict calls it."""

    about: str
    states: tuple[str, ...]
    kind: str
    role: str = ""
    number: int = 0
    post: str = ""


FAULTS = {
    "kill_engine": Fault("kill -9 of the engine core", ("dead",), "death", "engine_core", signal.SIGKILL),
    "kill_worker": Fault("kill -9 of a worker", ("dead",), "death", "worker", signal.SIGKILL),
    "kill_api": Fault("kill -9 of the API server", ("dead",), "death", "api_server", signal.SIGKILL),
    # While it ends it loses its engine core as a dead one does: what it is, its log tells.
    "term_api": Fault("SIGTERM of the API server", ("terminated",), "terminated", "api_server", signal.SIGTERM),
    "stop_engine": Fault("SIGSTOP of the engine core", _HANG, "hang", "engine_core", signal.SIGSTOP),
    "stop_worker": Fault("SIGSTOP of a worker", _HANG, "hang", "worker", signal.SIGSTOP),
    "stop_api": Fault("SIGSTOP of the API server", _HANG, "hang", "api_server", signal.SIGSTOP),
    "pause_abort": Fault("/pause?mode=abort by somebody else", _HANG, "hang", post="/pause?mode=abort"),
    "pause_wait": Fault("/pause?mode=wait by somebody else", _HANG, "hang", post="/pause?mode=wait"),
    "pause_keep": Fault("/pause?mode=keep by somebody else", _HANG, "hang", post="/pause?mode=keep"),
}


class Run:
    """One `loadchaos run` with a steady load."""

    def __init__(self, home: Path, command: str | None, url: str) -> None:
        profile: Row = {
            "name": "states", "about": "a steady load into which a fault is brought",
            "target": {"embedded": {"dialect": "vllm", "era": "0.18"}, "on_death": "wait"},
            "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"exact": 24}}],
            "load": [{"users": 4, "for": "10m"}],
        }  # fmt: skip
        if command:
            launch = {"command": shlex.split(command), "url": url, "ready_within": f"{_READY_S:.0f}s"}
            profile["target"] = {"launch": launch, "on_death": "wait"}
        self.url, self.home = url, home
        self.stopped: list[int] = []
        (home / "states.yaml").write_text(json.dumps(profile))
        argv = [sys.executable, "-m", "loadchaos", "run", "states.yaml", "--no-live", "--exporter-port", "0"]
        argv += ["--out", "runs"] if command else ["--out", "runs", "--embedded"]
        with (home / "output").open("wb") as log:
            self.process = subprocess.Popen(argv, cwd=home, stdout=log, stderr=log)

    def rows(self, pattern: str = "events.jsonl") -> Iterator[Row]:
        """All rows of some files so far."""
        for path in self.home.glob(f"runs/*/{pattern}"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                yield json.loads(line)

    def wait(self, found: Callable[[], Any], limit_s: float) -> Any:
        """The first true value; None when it does not come in time, or the run has ended without it."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            over = self.process.poll() is not None
            value = found()
            if value or over:
                return value
            time.sleep(0.05)
        return None

    def under_load(self) -> bool:
        """Wait until the server answers, then a little, so that it is in its stride."""
        answered = bool(self.wait(self._answered, _READY_S))
        time.sleep(2.0 if answered else 0.0)
        return answered

    def _answered(self) -> bool:
        return len([r for r in self.rows("requests-*.jsonl") if r.get("outcome") == "ok"]) > 8

    def pid_of(self, role: str) -> int | None:
        """The newest living process of a role."""
        alive: dict[int, str] = {}
        for row in self.rows():
            if row.get("row") == "process":
                alive.pop(row["pid"], None)
                if row["what"] != "gone":
                    alive[row["pid"]] = row["role"]
        return next((pid for pid, has in reversed(alive.items()) if has == role), None)

    def first(self, state: str, after_ns: int) -> Row | None:
        """The first change to a state after a time."""
        changes = (r for r in self.rows() if r.get("row") == "state" and r["at_ns"] > after_ns)
        return next((r for r in changes if r["to"] == state and r["from"] != r["to"]), None)

    def address(self) -> str:
        """Where the server is."""
        return self.url or str(next(r["facts"]["admin_url"] for r in self.rows() if r.get("row") == "facts"))

    def end(self) -> None:
        """End it in order, and let go what was stopped."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if self.process.poll() is None:
            self.process.kill()

    def kinds(self) -> list[str]:
        """What the verdict calls what happened."""
        verdict = next(self.home.glob("runs/*/verdict.json"), None)
        incidents = json.loads(verdict.read_text())["incidents"] if verdict else []
        return [i["kind"] for i in incidents if i["kind"] != "failure"]


def measure(fault: Fault, home: Path, command: str | None, url: str) -> Measured:
    """One run with one fault."""
    run = Run(home, command, url)
    try:
        took = _bring(fault, run)
    finally:
        run.end()
    return took if isinstance(took, str) else (took, run.kinds())


def _bring(fault: Fault, run: Run) -> dict[str, float | None] | str:
    if not run.under_load():
        return f"no answers: {(run.home / 'output').read_text()[-300:]}"
    pid = run.pid_of(fault.role) if fault.role else None
    if fault.role and pid is None:
        return f"there is no {fault.role} process"
    before_ns = time.monotonic_ns()
    if pid is None:
        urllib.request.urlopen(urllib.request.Request(run.address() + fault.post, b""), timeout=20).read()
    else:
        if fault.number == signal.SIGSTOP:
            run.stopped.append(pid)
        os.kill(pid, fault.number)
    took: dict[str, float | None] = {}
    for state in fault.states:
        row = run.wait(partial(run.first, state, before_ns), _LIMIT_S)
        took[state] = None if row is None else (row["at_ns"] - before_ns) / 1e9
    return took


def _one(name: str, n: int, options: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory() as scratch:
        home = options.keep / f"{name}-{n}" if options.keep else Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        return measure(FAULTS[name], home, options.command, options.url)


def _print(fault: Fault, measured: list[Measured]) -> None:
    good = [m for m in measured if not isinstance(m, str)]
    why = next((m for m in measured if isinstance(m, str)), "")
    for state in fault.states:
        times = [took[state] for took, _ in good]
        known = [t for t in times if t is not None]
        missed = f"{len(times) - len(known)} never seen" if len(known) < len(times) else why
        told = f"{statistics.median(known):6.2f} s {max(known):6.2f} s" if known else f"{'-':>8} {'-':>8}"
        print(f"{fault.about:36} {state:16} {told}  {len(times)} {missed}", flush=True)
    if good:
        right = sum(kinds == [fault.kind] for _, kinds in good)
        others = "; ".join(sorted({", ".join(kinds) or "nothing" for _, kinds in good if kinds != [fault.kind]}))
        print(
            f"{'':36} verdict: {fault.kind} in {right} of {len(good)}" + (f", else {others}" if others else ""),
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--command", help="the server to launch; the embedded one otherwise")
    parser.add_argument("--url", default="", help="where --command serves")
    parser.add_argument("--keep", type=Path, help="keep the run folders there")
    options = parser.parse_args()
    print(f"{'fault':36} {'state':16} {'median':>8} {'worst':>8}  times", flush=True)
    for name in options.only:
        _print(FAULTS[name], [_one(name, n, options) for n in range(options.times)])


if __name__ == "__main__":
    main()
