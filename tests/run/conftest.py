"""Fixtures for real runs: start, watch and disturb `loadchaos run`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.embedded_server import EmbeddedServer
from tests.run.raw_server import Answer, RawServer
from tests.schemas import validate
from tests.waiting import gone, until
from tests.warm_command import ForkedCommand, outside_ci, run_command

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]

SMALL: Row = {
    "name": "small",
    "about": "short answers, ten a second",
    "target": {"embedded": {"dialect": "vllm", "era": "0.18"}},
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}}],
    "load": [{"rate": "10/s", "law": "constant", "for": "2s", "max_in_flight": 32}],
    "limits": {"first_byte": "10s", "between_bytes": "5s", "total": "20s"},
}


def embedded_target(*defects: str, **flags: Any) -> Row:
    return {"embedded": {"dialect": "vllm", "era": "0.18", "defects": list(defects), "flags": flags}}


LIMITED = """
import os, resource, sys
limit = int(sys.argv[2])
resource.setrlimit(getattr(resource, sys.argv[1]), (limit, limit))
os.execv(sys.argv[3], sys.argv[3:])
"""


def limited(what: str, most: int) -> tuple[str, ...]:
    """The begin of a command that may not use more of this: `RLIMIT_FSIZE` is what a full disk looks like."""
    return (sys.executable, "-c", LIMITED, what, str(most))


CHILD_MODULES = {"follower": "loadchaos.run.follower", "supervisor": "loadchaos.server.process.supervisor"}
FOR_LONG = [{"rate": "10/s", "law": "constant", "for": "5m", "max_in_flight": 64}]
"""A load that somebody has to end."""

SLOW_ANSWERS = [
    {"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"exact": 400}},
]
"""Some requests are always in flight."""


@dataclass
class Run:
    """One `loadchaos run` and what it leaves behind."""

    home: Path
    process: subprocess.Popen[bytes] | ForkedCommand
    begun: float = field(default_factory=time.monotonic)
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        found: Path = until(lambda: next(iter(self.home.glob("runs/*/events.jsonl")), None), "a run folder").parent
        return found

    @property
    def output(self) -> str:
        return (self.home / "stderr").read_text() + (self.home / "stdout").read_text()

    def rows(self, file: str = "events.jsonl", **like: Any) -> list[Row]:
        """The rows of one file (or several by a pattern) that have these values."""
        found = []
        for path in sorted(self.folder.glob(file)):
            for line in path.read_bytes().split(b"\n")[:-1]:
                with contextlib.suppress(ValueError):  # torn by what the test does
                    row = json.loads(line)
                    if all(row.get(k) == v for k, v in like.items()):
                        found.append(row)
        return found

    def wait_for(self, file: str = "events.jsonl", n: int = 1, limit_s: float = 60.0, **like: Any) -> list[Row]:
        def there() -> list[Row]:
            found = self.rows(file, **like)
            assert len(found) >= n or self.process.poll() is None, f"the run ended before {like}:\n{self.output}"
            return found if len(found) >= n else []

        found: list[Row] = until(there, f"{n} rows with {like}", limit_s)
        return found

    def loaded(self, answered: int = 5) -> Run:
        """Wait until requests are answered, and note who is who."""
        self.wait_for("requests-*.jsonl", answered, row="end")
        self.note_pids()
        return self

    def note_pids(self) -> None:
        """Note the pids of server, Locust, follower and supervisor."""
        launched = self.rows(row="launch", what="start")
        self.pids |= {"server": launched[-1]["pid"]} if launched else {}
        locust = self.rows(row="locust", what="start")
        self.pids |= {"locust": locust[-1]["pid"]} if locust else {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                line = " ".join(child.cmdline())
                for name, module in CHILD_MODULES.items():
                    if module in line:
                        self.pids[name] = child.pid

    def signal(self, number: int, to: str | None = None) -> None:
        """Send a signal to one of its processes, to the run itself by default."""
        os.kill(self.pids[to] if to else self.process.pid, number)

    def ends(self, limit_s: float = 60.0) -> int:
        """Wait for its end and return the exit code; no output may be a traceback."""
        code = self.process.wait(limit_s)
        assert "Traceback" not in self.output, self.output
        return code

    def verdict(self) -> Row:
        """verdict.json, which fits its schema."""
        verdict: Row = json.loads((self.folder / "verdict.json").read_text())
        validate(verdict)
        return verdict

    def check(self, name: str) -> Row:
        """One of the verdict's checks of the run itself."""
        (found,) = [c for c in self.verdict()["checks"] if c["name"] == name]
        return dict(found)

    def again(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """`loadchaos judge RUN` or another command that reads a run."""
        return run_command(command, self.folder, *options, cwd=self.home)

    def is_gone(self, name: str) -> bool:
        return gone(self.pids[name])

    def wait(self, condition: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
        return until(condition, what, limit_s)

    def all_gone(self, limit_s: float = 60.0) -> None:
        """Wait until nothing that it started is left."""
        for name, pid in self.pids.items():
            until(partial(gone, pid), f"the end of the {name}", limit_s)


Start = Callable[..., Run]


def _started(
    command: list[str], home: Path, env: dict[str, str], prefix: tuple[str, ...]
) -> subprocess.Popen[bytes] | ForkedCommand:
    """Start a command: as a fork, or as a new process with a prefix or a variable that a module reads when imported."""
    with (home / "stdout").open("wb") as stdout, (home / "stderr").open("wb") as stderr:
        if not prefix and "LOADCHAOS_HOUR_S" not in env:
            return ForkedCommand(*command, cwd=home, env=env, output=(stdout.name, stderr.name))
        # The installed script: with `-m`, CPython ends by SIGINT where Ctrl-C met an exec(), whatever sys.exit() asked for.
        script = str(Path(sys.executable).with_name("loadchaos"))
        return subprocess.Popen(
            [*prefix, script, *command], cwd=home, env=env, stdin=subprocess.DEVNULL,
            stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `loadchaos run` with a profile: SMALL with some parts changed."""
    runs: list[Run] = []

    def start_one(
        *args: str, env: Mapping[str, str] | None = None, out: str = "runs", prefix: tuple[str, ...] = (),
        profile: tuple[str, ...] = ("small.yaml",), **parts: Any,
    ) -> Run:  # fmt: skip
        home = tmp_path / f"user-{len(runs) + 1}"
        home.mkdir()
        (home / "small.yaml").write_text(json.dumps({**SMALL, **parts}))
        command = ["run", *profile, "--exporter-port", "0", "--out", out, *args]
        variables = {k: v for k, v in outside_ci().items() if k != "NO_COLOR"} | dict(env or {})
        runs.append(Run(home, _started(command, home, variables, prefix)))
        return runs[-1]

    yield start_one
    for run in runs:
        for name, pid in run.pids.items():
            if name != "server" and not gone(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
        run.all_gone(20)


Serve = Callable[[Answer], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts chat servers; gives their URLs."""
    with contextlib.ExitStack() as stack:
        yield lambda reply: stack.enter_context(contextlib.closing(RawServer(reply))).url


StartSim = Callable[..., EmbeddedServer]


@pytest.fixture
def sim() -> Iterator[StartSim]:
    """Starts embedded servers that no run owns."""
    with contextlib.ExitStack() as stack:
        yield lambda *flags, log=None: stack.enter_context(EmbeddedServer(*flags, log=log))


@pytest.fixture
def script() -> Iterator[Callable[..., str]]:
    """Runs a file of this folder until the test ends; gives the first line that it prints."""
    started: list[subprocess.Popen[str]] = []

    def start_one(name: str, *args: object) -> str:
        argv = [sys.executable, str(Path(__file__).with_name(name)), *map(str, args)]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        assert started[-1].stdout is not None
        return started[-1].stdout.readline().strip()

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def for_long() -> dict[str, Any]:
    """Parts of a profile whose load somebody has to end."""
    return {"load": FOR_LONG}


@pytest.fixture
def slow_answers() -> dict[str, Any]:
    """The same, with some requests always in flight."""
    return {"load": FOR_LONG, "traffic": SLOW_ANSWERS}


@dataclass
class Worker:
    """One `loadchaos worker` in a home of its own."""

    home: Path
    process: subprocess.Popen[bytes]

    @property
    def output(self) -> str:
        return (self.home / "output").read_text()

    def rows(self) -> Path:
        (found,) = self.home.glob("worker-runs/*/requests-*.jsonl")
        return found

    def load_process(self) -> int:
        """Pid of the driving process: the worker, or its namespaced child."""
        header = json.loads(self.rows().read_bytes().split(b"\n", 1)[0])
        return int(header["pid"])


StartWorker = Callable[..., Worker]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers as on other machines, by loopback addresses."""
    made: list[Worker] = []

    def start_one(
        port: int, *prefix: str, env: dict[str, str] | None = None, out: Path | None = None, host: str | None = None
    ) -> Worker:
        home = tmp_path / f"machine-{len(made) + 2}"
        home.mkdir()
        argv = [*prefix, sys.executable, "-m", "loadchaos", "worker", "--wait", "60s", "--master-port", str(port)]
        argv += ["--master-host", host or f"127.0.0.{len(made) + 2}", *(["--out", str(out)] if out else [])]
        with (home / "output").open("wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=home,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})},
            )
        made.append(Worker(home, process))
        return made[-1]

    yield start_one
    for it in made:
        if it.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(it.process.pid).children(recursive=True):
                    child.kill()
            it.process.send_signal(signal.SIGCONT)
            it.process.kill()
            it.process.wait()
