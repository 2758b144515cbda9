"""Start the measured clients (contenders) and read their output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.cost import ours, tools
from bench.cost.meter import Load, Metered
from bench.cost.truth import Seen, of_marks
from bench.server import HERE, build, has_openssl


@dataclass(frozen=True)
class Trial:
    """One load for one contender, with a folder of its own."""

    load: Load
    url: str
    folder: Path
    trust: Path | None
    python: Path

    @property
    def out(self) -> Path:
        """Path of the output of client programs."""
        return self.folder / "out.json"

    def options(self) -> list[str]:
        """Options for bench/clients/common.py."""
        load = self.load
        argv = [self.url, "--users", str(load.users), "--requests", str(load.requests), "--out", str(self.out)]
        argv += ["--stagger-s", f"{load.stagger_s:.6f}", "--body", str(body_file(load, self.folder))]
        argv += ["--stream"] if load.stream else []
        return [*argv, "--trust", str(self.trust)] if self.trust else argv

    def environment(self) -> dict[str, str]:
        """Environment of a Python client: module path and certificate."""
        found = {"PYTHONPATH": str(HERE.parent)}
        return {**found, "SSL_CERT_FILE": str(self.trust)} if self.trust else found


Start = Callable[[Trial], tuple[Sequence[str], Mapping[str, str]]]
Read = Callable[[Trial, Metered, NDArray[np.void]], Seen]


@dataclass(frozen=True)
class Contender:
    """One client to measure.

    `python` is the environment it needs (None: ours), `module` the module that must be in it.
    """

    title: str
    start: Start
    read: Read
    module: str | None = None
    pace: Literal["slow", "fast", ""] = ""
    """Gets fewer or more small requests, or a trial would take minutes or be over before it is seen."""
    processes: bool = False
    """Several processes or busy threads on one core must share it: they are never urgent, and their stamps not told."""


def body_file(load: Load, folder: Path) -> Path:
    """Write the request that every contender but ours sends."""
    path = folder / "body.json"
    path.write_bytes(ours.body(load, "http://127.0.0.1"))
    return path


def _read_marks(trial: Trial, metered: Metered, _: NDArray[np.void]) -> Seen:
    output = json.loads(trial.out.read_text())
    if not trial.load.stream:
        return Seen(output["ended"], output["failed"])
    first, gaps = of_marks(trial.out.with_suffix(".marks"), metered.first.at_ns, metered.last.at_ns)
    return Seen(output["ended"], output["failed"], first, gaps=gaps)


def _program(module: str) -> Start:
    def start(trial: Trial) -> tuple[Sequence[str], Mapping[str, str]]:
        return [str(trial.python), "-m", f"bench.clients.{module}", *trial.options()], trial.environment()

    return start


def _c(trial: Trial) -> tuple[Sequence[str], Mapping[str, str]]:
    program = build("client.c", "-DTLS", "-lssl", "-lcrypto") if has_openssl() else build("client.c")
    load, port = trial.load, trial.url.rpartition(":")[2]
    argv = ["127.0.0.1", port, load.users, load.requests, int(load.stream), int(load.stagger_s * 1e6)]
    argv += [body_file(load, trial.folder), trial.out, int(load.tls)]
    return [str(program), *map(str, argv)], {}


def _locust(user: str) -> Start:
    def start(trial: Trial) -> tuple[Sequence[str], Mapping[str, str]]:
        load = trial.load
        rate = 1 / load.stagger_s if load.stream else load.users
        file = str(HERE / "clients" / "locust_users.py")
        argv = [str(trial.python), "-m", "locust", "-f", file, "--headless", "--only-summary", "-u", str(load.users)]
        argv += ["-r", f"{rate:.3f}", "--exit-code-on-error", "0"]
        env = {**trial.environment(), "BENCH_USER": user, "BENCH_JOB": json.dumps(trial.options())}
        return argv, env

    return start


def _ours(trial: Trial) -> tuple[Sequence[str], Mapping[str, str]]:
    return ours.start(trial.load, trial.url, trial.folder), trial.environment() | ours.environment(trial.folder)


def _read_ours(trial: Trial, metered: Metered, stamps: NDArray[np.void]) -> Seen:
    return ours.read(trial.folder, stamps, metered.first.at_ns, metered.last.at_ns)


def _whole_run(trial: Trial) -> tuple[Sequence[str], Mapping[str, str]]:
    return ours.whole_run(trial.load, trial.url, trial.folder), trial.environment()


def _tool(name: str) -> tuple[Start, Read]:
    tool = tools.TOOLS[name]

    def start(trial: Trial) -> tuple[Sequence[str], Mapping[str, str]]:
        return tool.argv(trial.python.parent, trial.load, trial.url, trial.folder), tool.environment

    def read(trial: Trial, _: Metered, __: NDArray[np.void]) -> Seen:
        return tool.read(trial.folder)

    return start, read


CONTENDERS: dict[str, Contender] = {
    "c": Contender("C, epoll", _c, _read_marks, pace="fast"),
    "uvloop": Contender("uvloop, bare protocol", _program("uvloop_protocol"), _read_marks, pace="fast"),
    "gevent": Contender("gevent, bare socket", _program("gevent_socket"), _read_marks, pace="fast"),
    "loadchaos": Contender("**loadchaos**, complete", _ours, _read_ours),
    "aiohttp": Contender("aiohttp, raw chunks", _program("aiohttp_client"), _read_marks, "aiohttp"),
    "fast_raw": Contender("Locust FastHttpUser, `readline`", _locust("FastRaw"), _read_marks),
    "fast_lines": Contender("Locust FastHttpUser, `iter_lines`", _locust("FastLines"), _read_marks),
    "requests": Contender("Locust HttpUser, `iter_lines`", _locust("Requests"), _read_marks, pace="slow"),
    "httpx": Contender("httpx async, raw chunks", _program("httpx_client"), _read_marks, pace="slow"),
    "run": Contender("**`loadchaos run`**, all its processes", _whole_run, ours.read_run, processes=True),
    "vllm": Contender("`vllm bench serve`", *_tool("vllm"), "vllm"),
    "guidellm": Contender("GuideLLM", *_tool("guidellm"), "guidellm", processes=True),
    "aiperf": Contender("AIPerf", *_tool("aiperf"), "aiperf", processes=True),
}


@dataclass
class Environments:
    """Python of each contender: ours unless another is found.

    Another is given with `--with NAME=VENV` or found in the usual place.
    """

    given: Mapping[str, Path] = field(default_factory=dict)

    def python(self, name: str) -> Path | None:
        """Path of its Python; None where its module is not installed."""
        module = CONTENDERS[name].module
        if module is None:
            return Path(sys.executable)
        usual = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "loadchaos-bench" / name
        python = self.given.get(name, usual) / "bin" / "python"
        return python if python.exists() else None
