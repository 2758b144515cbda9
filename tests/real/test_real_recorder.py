"""The recorder as middleware of a real vLLM: its recording is replayed, and kept when the engine is killed."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from loadchaos.recorder.from_recording import trace_of_recording
from loadchaos.recorder.ring import segments_of
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.real import servers
from tests.real.conftest import PROJECT, Server, running, skipping

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
PROMPT = "Inconceivable secrets of the Guilder frontier"
WAIT_S = 60.0


def recorded_vllm(plugin: Path, out: Path) -> servers.Command:
    env = {
        "PYTHONPATH": str(plugin), "LOADCHAOS_RECORD": shlex.join(["--out", str(out)]),
        "LOADCHAOS_COMMAND": shlex.join(["env", f"PYTHONPATH={PROJECT}", sys.executable, "-m", "loadchaos"]),
    }  # fmt: skip
    flags = ("--limit-mm-per-prompt", '{"image":2,"video":0}', "--middleware", "loadchaos_vllm.Recorder")
    return servers.vllm("0.32.0", *flags, env=env)


def chat(server: Server, text: str, **more: Any) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": text}], **more}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found
    return found


def abort(server: Server) -> None:
    body = {"model": "tiny", "max_tokens": 2000, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=120, trust_env=False) as answer:
        lines = answer.iter_lines()
        for _ in range(12):
            next(lines)


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for s in segments_of(folder) for line in s.read_bytes().splitlines()]
    return [r for r in found if r["row"] == kind]


def engine_of(log: Path) -> int:
    """Process id of the engine core, from the server's own log."""
    for process in psutil.process_iter(["cmdline", "name"]):
        if "EngineCore" in " ".join(process.info["cmdline"] or [process.info["name"]]) and any(
            str(log) == f.path for f in process.open_files()
        ):
            return process.pid
    text = log.read_text(errors="replace")
    return int(text.partition("(EngineCore pid=")[2].partition(")")[0])


def test_recorder_in_vllm_is_replayed_and_keeps_the_death_of_the_engine(plugin: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running(skipping(recorded_vllm)(plugin, out), tmp_path / "vllm.log") as server:
        until(lambda: f"recording shapes of requests, no content in {out / 'ring'}" in server.log.read_text())
        assert chat(server, PROMPT).status_code == 200
        assert chat(server, PROMPT, stream=True, stream_options={"include_usage": True}).status_code == 200
        assert chat(server, PROMPT, max_tokens=100_000).status_code == 400
        abort(server)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert {
                r.status_code for r in pool.map(lambda n: chat(server, f"{PROMPT} {n}", stream=True), range(16))
            } == {200}
        until(lambda: len(rows(out / "ring", "end")) >= 20)
        ends = rows(out / "ring", "end")
        assert [e["outcome"] for e in ends[:4]] == ["ok", "ok", "rejected", "aborted"]
        assert ends[1]["usage"]["completion_tokens"] == 12
        assert [e["outcome"] for e in ends[4:]] == ["ok"] * 16
        os.kill(engine_of(server.log), signal.SIGKILL)
        with pytest.raises((httpx.HTTPError, AssertionError)):
            assert chat(server, PROMPT).status_code == 200
        kept = until(lambda: list(out.glob("frozen-*")))
        assert [k.name.endswith(("-engine-died", "-server-ended")) for k in kept] == [True]
    text = b"".join(p.read_bytes() for p in out.rglob("*") if p.is_file()).decode()
    assert [word for word in PROMPT.split() if word in text and word not in ("of", "the")] == []
    trace = trace_of_recording(kept[0], tmp_path / "scratch")
    assert len(trace.sends) >= 20
    assert dict(trace.header.server)["version"].startswith("0.32.0")
    assert "NOT REPRODUCED 0 of 1" in (said := replay(kept[0], tmp_path)), said
    assert "error of the recorder" not in server.log.read_text(errors="replace")


def replay(kept: Path, cwd: Path) -> str:
    """Send the recorded requests to the embedded server."""
    simulator = SimulatorSpec("vllm", "0.18", (), {"max_model_len": 4096, "speed": 4})
    launch = shlex.join(command(simulator, servers.free_port()))
    argv = [sys.executable, "-m", "loadchaos", "replay", str(kept), "--launch", launch, "--any-death", "--times", "1"]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr
