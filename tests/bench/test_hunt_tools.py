import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import hunt_tools
from bench.hunt_tools import TOOLS, ToolRun, WatchedEngineClient, WatchedState
from loadchaos.simulator.engine import pipe as frames
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, EngineStats, RequestOutput


class _Sink:
    answer = None

    def output(self, output: RequestOutput) -> None:
        """Ignore it."""

    def engine_died(self) -> None:
        """Ignore it."""


def _step(*outputs: RequestOutput, kv_usage: float = 0.0) -> list[object]:
    return [
        "step",
        [frames.values_of(output) for output in outputs],
        0,
        frames.values_of(EngineStats(0, 0, kv_usage)),
    ]


@pytest.mark.parametrize(
    ("output", "failure"),
    [
        (RequestOutput("a", 1), ""),
        (RequestOutput("a", 1, finish_reason="length"), ""),
        (RequestOutput("a", 1, fault="derailed"), "wrong answer"),
        (RequestOutput("a", 1, fault="lost"), "wrong answer"),
        (RequestOutput("a", 0, "error", "Expected a cached item for x"), "request failed: expected cached item"),
    ],
)
def test_watched_engine_notes_what_the_engine_gets_wrong(output: RequestOutput, failure: str) -> None:
    client = WatchedEngineClient(EngineConfig(num_gpu_blocks=100), "core")
    for name in ("a", "b"):
        client.add(EngineRequest(name, 8, 8), _Sink())  # type: ignore[arg-type]  # no text is made
    client._received(_step(output, kv_usage=0.04))
    state = client.read()
    assert (state.failure, state.requests, state.after_requests) == (failure, 2, 2 if failure else 0)
    assert state.kv_blocks == 4


def test_first_failure_is_kept() -> None:
    state = WatchedState(requests=3)
    state.fail("wrong answer")
    state.requests = 9
    state.fail("engine died")
    assert (state.failure, state.after_requests) == ("wrong answer", 3)


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        (WatchedState(5), ""),
        (WatchedState(5, held=1), "requests held"),
        (WatchedState(5, kv_blocks=3), "kv leak"),
        (WatchedState(5, in_flight=2, progress_at_s=-1e6), "hang"),
    ],
)
def test_what_stays_behind_a_tool_is_a_failure(
    state: WatchedState, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hunt_tools, "_SETTLE_S", 0.0)
    monkeypatch.setattr(hunt_tools, "_WRITE_S", 0.0)
    file = tmp_path / "state.json"
    file.write_text(json.dumps(asdict(replace(state, progress_at_s=state.progress_at_s or time.monotonic()))))
    with subprocess.Popen(["true"]) as tool:
        assert hunt_tools._watch(tool, file).failure == failure


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_tools_get_the_same_load_and_the_seed(name: str, tmp_path: Path) -> None:
    words = " ".join(TOOLS[name][1](ToolRun(tmp_path / "tool", "http://127.0.0.1:1", 7, 2000, tmp_path)))
    assert "1024" in words and "128" in words and "7" in words and "32" in words


@pytest.mark.slow
def test_watched_server_sees_a_planted_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool of ours takes the place of a real one, which needs an environment of its own."""
    script = (
        "import json, sys, threading, urllib.request as r\n"
        "body = {'model': 'sim', 'messages': [{'role': 'user', 'content': 'tell me more'}], 'max_tokens': 64}\n"
        "post = r.Request(sys.argv[1], json.dumps(body).encode(), {'Content-Type': 'application/json'})\n"
        "threads = [threading.Thread(target=lambda: r.urlopen(post).read()) for _ in range(40)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )

    class Here:
        def python(self, _: str) -> Path:
            return Path(sys.executable)

    def command(run: ToolRun) -> list[str]:
        return [sys.executable, "-c", script, f"{run.url}/v1/chat/completions"]

    monkeypatch.setitem(hunt_tools.TOOLS, "asks", ("python", command))
    argv = ["--speed", "10"]
    assert hunt_tools.run_tool("asks", argv, 1, 40, Here()).failure == ""  # type: ignore[arg-type]
    found = hunt_tools.run_tool("asks", [*argv, "--defect", "streams_swapped"], 1, 40, Here())  # type: ignore[arg-type]
    assert found.failure == "wrong answer"
    assert 2 <= found.requests <= 40
