"""Benchmark tools as strategies of bench/hunt.py: a real tool loads the embedded server over HTTP.

    python -m bench.hunt_tools STATE [options of loadchaos.simulator.server]    # a server that writes its first failure

A wrong answer counts when the engine makes it, as in bench/virtual_engine.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cost.contenders import Environments
from bench.cost.tools import TOKENIZER
from bench.record import free_port
from loadchaos.simulator import server
from loadchaos.simulator.engine.client import EngineClient, OutputSink
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, RequestOutput

_USERS, _PROMPT, _OUTPUT, _IMAGE = 32, 1024, 128, 448
_SWEEP = 10
_WRITE_S, _HANG_S, _SETTLE_S, _START_S = 0.1, 30.0, 1.0, 60.0
_LEAKED_BLOCKS = 3
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NO_COLOR": "1",
    "GUIDELLM__MAX_WORKER_PROCESSES": "1",
}


@dataclass
class WatchedState:
    """What a watched server has seen: requests, and its first failure with the time on the monotonic clock."""

    requests: int = 0
    failure: str = ""
    after_requests: int = 0
    failed_at_s: float = 0.0
    progress_at_s: float = 0.0
    in_flight: int = 0
    held: int = 0
    kv_blocks: int = 0

    def fail(self, failure: str) -> None:
        """Keep the first failure."""
        if not self.failure:
            self.failure, self.after_requests, self.failed_at_s = failure, self.requests, time.monotonic()


class WatchedEngineClient(EngineClient):
    """Client of the engine core that notes the first failure."""

    def __init__(self, config: EngineConfig, title: str) -> None:
        super().__init__(config, title)
        self.state = WatchedState(progress_at_s=time.monotonic())

    def add(self, request: EngineRequest, sink: OutputSink) -> None:
        """Count the request and send it."""
        self.state.requests += not self.dead
        if not self.in_flight:
            self.state.progress_at_s = time.monotonic()
        super().add(request, sink)

    def read(self) -> WatchedState:
        """State with the gauges of now."""
        state = self.state
        state.in_flight = self.in_flight
        state.held = self.stats.requests_running + self.stats.requests_waiting
        state.kv_blocks = round(self.stats.kv_usage * self.config.num_gpu_blocks)
        return state

    def _deliver(self, output: RequestOutput) -> None:
        self.state.progress_at_s = time.monotonic()
        if output.fault or output.swapped_with or output.seen_image:
            self.state.fail("wrong answer")
        if output.error and "cached item" in output.error.lower():
            self.state.fail("request failed: expected cached item")
        super()._deliver(output)

    def _engine_lost(self) -> None:
        if not self.dead and self._ready is not None and self._ready.done():
            self.state.fail("engine died")
        super()._engine_lost()


def serve(state_file: Path, argv: Sequence[str]) -> int:
    """Run the embedded server and write its state every 0.1 s, and at its end."""
    clients: list[WatchedEngineClient] = []

    def watched(config: EngineConfig, title: str) -> EngineClient:
        clients.append(WatchedEngineClient(config, title))
        return clients[0]

    def write() -> None:
        part = state_file.with_suffix(".part")
        part.write_text(json.dumps(asdict(clients[0].read())))
        part.replace(state_file)

    def write_often() -> None:
        while True:
            time.sleep(_WRITE_S)
            if clients:
                write()

    server.EngineClient = watched  # type: ignore[assignment, attr-defined]  # the server makes its client by this name
    threading.Thread(target=write_often, daemon=True).start()
    return server.main(argv)


# --- tools ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolRun:
    """What a tool is started with; `program` is its command, `prompt` the tokens of each prompt."""

    program: Path
    url: str
    seed: int
    requests: int
    folder: Path
    model: str = "sim"
    prompt: int = _PROMPT
    tokenizer: Path = TOKENIZER


def _vllm(run: ToolRun, dataset: str) -> list[str]:
    argv = [str(run.program), "bench", "serve", "--backend", "openai-chat", "--base-url", run.url, "--model", run.model]
    argv += ["--endpoint", "/v1/chat/completions", "--tokenizer", str(run.tokenizer), "--dataset-name", dataset]
    argv += ["--random-input-len", str(run.prompt), "--random-output-len", str(_OUTPUT), "--ignore-eos"]
    argv += ["--num-prompts", str(run.requests), "--max-concurrency", str(_USERS), "--seed", str(run.seed)]
    if dataset == "random-mm":
        argv += ["--random-mm-base-items-per-request", "1", "--random-mm-limit-mm-per-prompt", '{"image":1,"video":0}']
        argv += ["--random-mm-bucket-config", f"{{({_IMAGE},{_IMAGE},1):1.0}}"]
    return [*argv, "--disable-tqdm"]


def _guidellm_sweep(run: ToolRun) -> list[str]:
    each = max(1, run.requests // _SWEEP)
    argv = [str(run.program), "run", "--backend", f"kind=openai_http,target={run.url},model={run.model}"]
    argv += ["--profile", f"kind=sweep,sweep_size={_SWEEP},max_concurrency={_USERS}"]
    argv += ["--constraint", f"kind=max_requests,count={each}", "--seed", f"kind=static,value={run.seed}"]
    argv += ["--data", f"kind=synthetic_text,prompt_tokens={run.prompt},output_tokens={_OUTPUT}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={run.tokenizer}", "--disable-console"]
    return [*argv, "--output", f"kind=json,path={run.folder / 'guidellm.json'}"]


TOOLS: Mapping[str, tuple[str, Callable[[ToolRun], Sequence[str]]]] = {
    "vllm bench random": ("vllm", lambda run: _vllm(run, "random")),
    "vllm bench random-mm": ("vllm", lambda run: _vllm(run, "random-mm")),
    "guidellm sweep": ("guidellm", _guidellm_sweep),
}
"""Strategies: name of the tool's environment, and its command."""


@dataclass(frozen=True)
class ToolResult:
    """Requests and seconds of the tool to the first failure; not `found`: all requests were sent without one."""

    requests: int
    seconds: float
    failure: str

    @property
    def found(self) -> bool:
        """True if the server failed."""
        return bool(self.failure)


def run_tool(name: str, server_argv: Sequence[str], seed: int, requests: int, environments: Environments) -> ToolResult:
    """Load a fresh embedded server with a tool until its first failure or its last request.

    Raises:
        RuntimeError: the tool is not installed or failed by itself.
    """
    of, command = TOOLS[name]
    python = environments.python(of)
    if python is None:
        raise RuntimeError(f"{of} is not installed: give its environment with --with {of}=VENV")
    with tempfile.TemporaryDirectory(prefix="hunt-tools-") as place, contextlib.ExitStack() as started:
        folder, port = Path(place), free_port()
        state_file, url = folder / "state.json", f"http://127.0.0.1:{port}"
        words = [sys.executable, "-m", "bench.hunt_tools", str(state_file), "--port", str(port), *server_argv]
        _start(started, words, folder / "server.log")
        _wait_healthy(url)
        begin_s = time.monotonic()
        argv = command(ToolRun(python.with_name(of), url, seed, requests, folder))
        tool = _start(started, argv, folder / "tool.log")
        state = _watch(tool, state_file)
        if not state.failure and tool.poll() != 0:
            tail = (folder / "tool.log").read_text(errors="replace").strip().splitlines()[-5:]
            raise RuntimeError(f"{name} ended with {tool.poll()}: {' / '.join(tail)}")
        if not state.failure and state.requests < 0.9 * requests:
            raise RuntimeError(f"{name} sent {state.requests} of {requests} requests")
        if state.failure:
            return ToolResult(state.after_requests, state.failed_at_s - begin_s, state.failure)
        return ToolResult(state.requests, time.monotonic() - begin_s, "")


def _watch(tool: subprocess.Popen[bytes], state_file: Path) -> WatchedState:
    """State at the first failure, or when the tool has ended and the server is idle."""
    ended_s = 0.0
    while True:
        time.sleep(_WRITE_S)
        state = WatchedState(**json.loads(state_file.read_text()))
        now_s = time.monotonic()
        if not state.failure and state.in_flight and now_s - state.progress_at_s > _HANG_S:
            state.fail("hang")
        if state.failure:
            return state
        if tool.poll() is None:
            continue
        ended_s = ended_s or now_s
        if now_s - ended_s > _SETTLE_S and not state.in_flight:
            if state.held:
                state.fail("requests held")
            elif state.kv_blocks >= _LEAKED_BLOCKS:
                state.fail("kv leak")
            return state


def _start(started: contextlib.ExitStack, argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )  # fmt: skip

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    started.callback(end)
    return process


def _wait_healthy(url: str) -> None:
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(_WRITE_S)
    raise RuntimeError(f"the embedded server on {url} did not start")


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), sys.argv[2:]))
