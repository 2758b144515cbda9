"""Requests to the first failure of a real server: shipped profiles, benchmark tools and hunts.

    python -m bench.hunt_real --launch COMMAND --model NAME --tokenizer FOLDER --out FOLDER [STRATEGY...]
        [--seeds 3] [--budget 200] [--within 300] [--with TOOL=VENV] [--genes FILE]

COMMAND starts the server, as for `loadchaos run --launch`; each measurement starts it anew. A strategy is the name of a
shipped profile, `hunt` or a tool of bench/hunt_tools.py. Tools send through a relay that counts their requests. Their first
failure is a status of 500 or more, an error event with such a code, a server that is not healthy any more, or 60 s without
a byte of an answer. That of profiles and hunts is the first that counts as a finding of a hunt; the questions that they ask
before and beside the load are counted apart, and so are those that identify the server. Each measurement is a line
of FOLDER/measured.jsonl, and one that has a line is not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from bench.cost.contenders import Environments
from bench.hunt_tools import TOOLS, ToolRun
from bench.record import free_port
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.hunt.journal import read_settings, rows_of
from loadchaos.campaigns.hunt.slot import summary
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.run.finalize import Result
from loadchaos.server.process.launcher import CommandLine, parse_command_line

_HANG_S, _POLL_S, _SETTLE_S, _START_S, _END_S = 60.0, 0.25, 3.0, 900.0, 180.0
_PROMPT, _OUTPUT = 512, 128
_REQUEST = re.compile(rb"^POST /\S*completions ")
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3})")
_EVENT = re.compile(rb'data: \{"error".*?"code":\s*"?(\d{3})')
_POSTED = re.compile(r'"POST /v1/(?:chat/)?completions HTTP')
_END, _HEAD = b"0\r\n\r\n", 2000


@dataclass
class RelayState:
    """Requests that passed, those without their end, and the first failure that an answer told."""

    requests: int = 0
    in_flight: set[int] = field(default_factory=set)
    answered_at_s: float = 0.0
    failure: str = ""
    after_requests: int = 0
    failed_at_s: float = 0.0

    def fail(self, failure: str) -> None:
        """Keep the first failure."""
        if not self.failure:
            self.failure, self.after_requests, self.failed_at_s = failure, self.requests, time.monotonic()

    def sent(self, connection: int, data: bytes) -> None:
        """Count a request; clients send its head as the beginning of a write."""
        if _REQUEST.match(data):
            self.requests += 1
            if not self.in_flight:
                self.answered_at_s = time.monotonic()
            self.in_flight.add(connection)

    def answered(self, connection: int, data: bytes) -> None:
        """Read status and error events of an answer."""
        self.answered_at_s = time.monotonic()
        if connection not in self.in_flight:
            return
        status = _STATUS.match(data)
        for code in [status[1]] if status else _EVENT.findall(data):
            if int(code) >= 500:
                self.fail(f"{'status' if status else 'error event'} {int(code)}")
        whole = status and (int(status[1]) >= 400 or b"content-length:" in data[:_HEAD].lower())
        if whole or data.endswith(_END):
            self.in_flight.discard(connection)

    def closed(self, connection: int) -> None:
        """Forget a connection."""
        self.in_flight.discard(connection)


@contextlib.contextmanager
def relay(upstream: int) -> Iterator[tuple[int, RelayState]]:
    """Pass TCP connections on to a port of this machine; gives its own port, and what passes."""
    state, port, ready = RelayState(), free_port(), threading.Event()
    runs: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = id(writer)
        try:
            behind, to = await asyncio.open_connection("127.0.0.1", upstream)
        except OSError:
            writer.close()
            return

        async def copy(source: asyncio.StreamReader, into: asyncio.StreamWriter, *, answer: bool) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    (state.answered if answer else state.sent)(number, data)
                    into.write(data)
                    await into.drain()
            into.close()

        await asyncio.gather(copy(reader, to, answer=False), copy(behind, writer, answer=True))
        state.closed(number)

    async def listen() -> None:
        runs.append((asyncio.get_running_loop(), asyncio.Event()))
        listening = await asyncio.start_server(attend, "127.0.0.1", port)
        ready.set()
        await runs[0][1].wait()
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(listen()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield port, state
    finally:
        runs[0][0].call_soon_threadsafe(runs[0][1].set)
        thread.join()


@dataclass(frozen=True)
class RealSettings:
    """Settings of all measurements: launch command, requests and seconds of each, folder, tools."""

    launch: str
    budget: int
    within_s: float
    out: Path
    environments: Environments
    model: str = ""
    tokenizer: Path = Path()
    genes: Path | None = None


@dataclass(frozen=True)
class RealResult:
    """One measurement: requests sent and seconds until the first failure, or until it ended without one.

    `questions` are those that a profile or a hunt asked, and `discovery` its requests that ran the model to identify and
    measure the server, both until its run with the failure ended. `posted`: all requests for an answer that the log of
    the server of a hunt has by then; 0: its log has none.
    """

    strategy: str
    seed: int
    requests: int
    seconds: float
    failure: str
    load: float
    questions: int = 0
    discovery: int = 0
    posted: int = 0

    def describe(self) -> str:
        """Show requests, questions, those that identify the server, and seconds; `>`: without a failure."""
        asked = f" + {self.questions}" if self.questions else ""
        asked += f" + {self.discovery}" if self.discovery else ""
        return f"{'' if self.failure else '> '}{self.requests}{asked} ({self.seconds:.0f} s)"


def _start(argv: Sequence[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **env}, start_new_session=True
        )


def _end(process: subprocess.Popen[bytes], *, within_s: float = 0.0) -> None:
    """End a process group; with SIGINT first where it gets time."""
    if within_s:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _server(command: CommandLine, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    if _healthy(command.url):
        raise RuntimeError(f"another server answers at {command.url}: give another port")
    process = _start(command.argv, log, dict(command.env))
    try:
        until_s = time.monotonic() + _START_S
        while not _healthy(command.url):
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the server did not start: see {log}")
            time.sleep(_POLL_S)
        yield process
    finally:
        _end(process)


def _healthy(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=_HANG_S, trust_env=False).status_code == 200
    return False


def measure_tool(tool: str, seed: int, settings: RealSettings, folder: Path) -> RealResult:
    """Load a fresh server with a benchmark tool until its first failure or its last request.

    Raises:
        RuntimeError: the tool is not installed or failed by itself, or the server did not start.
    """
    of, make = TOOLS[tool]
    python, command = settings.environments.python(of), parse_command_line(settings.launch)
    if python is None:
        raise RuntimeError(f"{of} is not installed: give its environment with --with {of}=VENV")
    with _server(command, folder / "server.log") as server, relay(urlsplit(command.url).port or 0) as (port, state):
        run = ToolRun(
            python.with_name(of), f"http://127.0.0.1:{port}", seed, settings.budget, folder,
            settings.model, _PROMPT, settings.tokenizer,
        )  # fmt: skip
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1"}
        program = _start(make(run), folder / "tool.log", {**offline, "GUIDELLM__MAX_WORKER_PROCESSES": "1"})
        begin_s = 0.0
        try:
            while not state.failure and program.poll() is None:
                time.sleep(_POLL_S)
                begin_s = begin_s or (time.monotonic() if state.requests else 0.0)
                if state.in_flight and time.monotonic() - state.answered_at_s > _HANG_S:
                    state.fail("hang")
                if server.poll() is not None or not _healthy(command.url):
                    state.fail("the server is not healthy")
                if begin_s and time.monotonic() - begin_s > settings.within_s:
                    break
            if state.failure:
                time.sleep(_SETTLE_S)
        finally:
            _end(program)
        if state.failure:
            died = "" if _healthy(command.url) else "engine died: "
            return RealResult(tool, seed, state.after_requests, state.failed_at_s - begin_s, died + state.failure, 0.0)
        if program.returncode > 0:
            raise RuntimeError(f"{tool} ended with {program.returncode}: see {folder / 'tool.log'}")
        return RealResult(tool, seed, state.requests, time.monotonic() - begin_s, "", 0.0)


def measure_ours(strategy: str, seed: int, settings: RealSettings, folder: Path) -> RealResult:
    """Run a profile, or a hunt, on a fresh server until its first failure or the budget.

    Raises:
        RuntimeError: it ended without a run.
    """
    program = _start(command_of_ours(strategy, seed, settings, folder), folder / "loadchaos.log", {"CI": ""})
    begin_s, over = 0.0, False
    try:
        while not over:
            over = program.poll() is not None
            time.sleep(1.0)
            ended, at_s, found = _hunted(folder) if strategy == "hunt" else (_ended(folder), 0.0, "")
            begin_s = begin_s or (time.monotonic() - at_s if ended else 0.0)  # of the first workload, not its end
            took_s = time.monotonic() - begin_s
            late = bool(begin_s) and took_s > settings.within_s + _HANG_S
            over = over or bool(found) or ended >= settings.budget or late
    finally:
        _end(program, within_s=_END_S)
    requests, seconds, failure = _hunted(folder) if strategy == "hunt" else _judged(folder)
    if not requests:
        raise RuntimeError(f"{strategy} sent no request: see {folder / 'loadchaos.log'}")
    others = (*_asked(folder), _posted(folder))
    if failure:
        return RealResult(strategy, seed, requests, seconds, failure, 0.0, *others)
    return RealResult(strategy, seed, ended, took_s, "", 0.0, *others)


def command_of_ours(strategy: str, seed: int, settings: RealSettings, folder: Path) -> list[str]:
    """Command of a profile or a hunt."""
    argv = [sys.executable, "-m", "loadchaos", "hunt" if strategy == "hunt" else "run"]
    if strategy == "hunt":
        argv += ["--requests", "64", "--workload-time", "40s", "--findings", "1", "--budget", "1h"]
        argv += ["--genes", str(settings.genes)] if settings.genes else []
    else:
        argv += [strategy, "--set", "target.on_death=stop", "--no-live", "--exporter-port", "0"]
        argv += ["--duration", f"{settings.within_s:.0f}s"]
    return [*argv, "--launch", settings.launch, "--seed", str(seed), "--out", str(folder)]


def _runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/events*.jsonl"))


def _begins(run: Path) -> list[int]:
    rows = Reader(RunFolder(run)).new(final=True)
    return [int(row["at_ns"]) for row in rows if row["row"] == "begin"]


def _ended(folder: Path) -> int:
    """Requests that were answered or given up so far, without those of an interruption."""
    return sum(row.get("row") == "end" for run in _runs(folder) for row in Reader(RunFolder(run)).new(final=True))


def _judged(folder: Path) -> tuple[int, float, str]:
    """Requests, seconds and the first failure of the run in a folder; all of its requests if it has none."""
    run = next(iter(_runs(folder)), None)
    verdict = run and run / "verdict.json"
    if run is None or verdict is None or not verdict.exists():
        return 0, 0.0, ""
    data: dict[str, Any] = json.loads(verdict.read_text())
    made, begins = summary(Result(0, Verdict.from_json(data), RunFolder(run))), _begins(run)
    found = sorted(made.findings, key=lambda f: f.after_requests)
    if not found or not begins:
        return len(begins), 0.0, ""
    seen_ns = (f.get("first_seen_ns") for f in data["failures"] if f["id"] == found[0].id)
    first_ns = int(next(seen_ns) or max(begins))
    ids = dict.fromkeys(f.id for f in found)
    return found[0].after_requests, (first_ns - min(begins)) / 1e9, ", ".join(ids)


def _asked(folder: Path) -> tuple[int, int]:
    """Questions, and requests that identify the server, of a run or of a hunt until its first failure."""
    asked, discovery, hunts = 0, 0, [*folder.glob("*/workloads.jsonl")]
    for file in hunts:
        if file.with_name("hunt.json").exists():
            discovery += read_settings(file.parent).identified_with.get("generations", 0)
    for hunted in (row for file in hunts for row in rows_of(file.parent)):
        asked += hunted.questions
        discovery += hunted.asked.get("discovery", 0)
        if hunted.findings:
            return asked, discovery
    for row in (row for run in ([] if hunts else _runs(folder)) for row in Reader(RunFolder(run)).new(final=True)):
        asked += row.get("row") == "question"
        discovery += int(row["generations"]) if row["row"] == "discovery" else 0
    return asked, discovery


def _posted(folder: Path) -> int:
    """Requests for an answer in the logs of the servers of a hunt."""
    logs = folder.glob("*/servers/*/*/server.log")
    return sum(len(_POSTED.findall(log.read_text("utf-8", "replace"))) for log in logs)


def _hunted(folder: Path) -> tuple[int, float, str]:
    """Requests, seconds and the first failure of the hunt in a folder."""
    rows = [row for file in folder.glob("*/workloads.jsonl") for row in rows_of(file.parent)]
    requests = 0
    for row in rows:
        if found := row.findings:
            first = min(found, key=lambda f: f.after_requests)
            return requests + first.after_requests, row.at_s, first.id
        requests += row.requests
    return requests, rows[-1].at_s if rows else 0.0, ""


def measure(strategy: str, seed: int, settings: RealSettings) -> RealResult:
    """Measure one strategy once."""
    folder = settings.out / f"{strategy.replace(' ', '-')}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    one = measure_tool if strategy in TOOLS else measure_ours
    result = one(strategy, seed, settings, folder)
    return RealResult(**{**asdict(result), "seconds": round(result.seconds, 1), "load": round(os.getloadavg()[1], 1)})


def main() -> None:
    """Measure what has no line yet, and print a row for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategies", nargs="*", help="profiles, `hunt`, tools (default: all tools)")
    parser.add_argument("--launch", required=True)
    parser.add_argument("--model", required=True, help="name of the served model")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the model, for the tools")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--within", type=float, default=300.0, help="seconds of a measurement, without the start")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--genes", type=Path, help="genes of the hunts, as for `loadchaos hunt --genes`")
    parser.add_argument("--with", dest="given", action="append", default=[], metavar="NAME=VENV")
    options = parser.parse_args()
    given = {name: Path(path) for name, _, path in (text.partition("=") for text in options.given)}
    settings = RealSettings(
        options.launch, options.budget, options.within, options.out, Environments(given), options.model,
        options.tokenizer, options.genes,
    )  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "measured.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    known = {(r.strategy, r.seed): r for r in (RealResult(**json.loads(line)) for line in lines)}
    for seed in range(options.seeds):  # all strategies once, then again: what is cut off has fewer seeds
        for strategy in options.strategies or TOOLS:
            if (strategy, seed) in known:
                continue
            try:
                known[strategy, seed] = result = measure(strategy, seed, settings)
            except RuntimeError as e:
                print(f"<!-- {strategy}, seed {seed}: not measured: {e} -->", flush=True)
                continue
            print(f"<!-- {result} -->", flush=True)
            with file.open("a") as f:
                f.write(json.dumps(asdict(result)) + "\n")
    print("| strategy | requests (seconds) to the first failure, by seed | found |\n|---|---|---|")
    for strategy in options.strategies or TOOLS:
        results = [known[strategy, seed] for seed in range(options.seeds) if (strategy, seed) in known]
        if results:
            found = ", ".join(dict.fromkeys(r.failure for r in results if r.failure)) or "nothing"
            print(f"| `{strategy}` | {', '.join(r.describe() for r in results)} | {found} |")


if __name__ == "__main__":
    main()
