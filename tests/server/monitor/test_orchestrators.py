"""Orchestrators: docker, Kubernetes and systemd as stand-ins on the PATH."""

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.redact import Redactor
from loadchaos.server.monitor import orchestrators as asking
from loadchaos.server.monitor.log_follower import FollowedLog, LogFollower
from loadchaos.server.monitor.orchestrators import OrchestratorMonitor, StatusCommand, status_command
from tests.rows import EmittedRows
from tests.waiting import beside

# Each prints what lies in a file, as the real command would for the same question, and fails as the real one does.
DOCKER = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
  "inspect --type container vllm") cat inspect.json ;;
  inspect*) echo "[]"; echo "Error: No such container: $4" >&2; exit 1 ;;
  events*--filter\\ container=vllm*--since*--until*) cat events.jsonl ;;
  *) echo "docker: unknown command: $*" >&2; exit 125 ;;
esac
"""
KUBECTL = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
  "get pod -n ml vllm-0 -o json") cat pod.json ;;
  "get pod"*) echo 'Error from server (NotFound): pods "'$5'" not found' >&2; exit 1 ;;
  "logs -n ml vllm-0 --previous"*) cat previous.log 2>/dev/null ||
    { echo 'Error from server (BadRequest): previous terminated container "x" in pod "vllm-0" not found' >&2; exit 1; } ;;
  "logs -n ml vllm-0 --follow --tail=0") cat first.log; while [ ! -e dead ]; do sleep 0.05; done ;;
  "logs -n ml vllm-0 --follow --since-time="*) [ -e second.log ] || {
    echo 'Error from server (BadRequest): container "x" in pod "vllm-0" is waiting to start: CrashLoopBackOff' >&2
    exit 1; }; cat second.log; exec sleep 1000 ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
cd "$(dirname "$0")"
cat show.txt
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the stand-ins and their files."""
    home = tmp_path / "bin"
    home.mkdir()
    for name, script in (("docker", DOCKER), ("kubectl", KUBECTL), ("systemctl", SYSTEMCTL)):
        (home / name).write_text(script)
        (home / name).chmod(0o755 | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setattr(asking, "EVERY_S", 0.05)
    return home


def put(path: Path, text: str) -> None:
    """Written whole at once, as a reader may come at any time."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def command_of(spec: str) -> StatusCommand:
    command = status_command(spec)
    assert command is not None
    return command


def asked(spec: str, rows: EmittedRows) -> contextlib.AbstractAsyncContextManager[None]:
    return beside(OrchestratorMonitor("a", spec, command_of(spec), rows.append).run())


def docker(running: bool, *, code: int = 0, oom: bool = False, began: str = "10:00", restarts: int = 0) -> str:
    state = {
        "Status": "running" if running else "exited", "Running": running, "Restarting": False, "OOMKilled": oom,
        "ExitCode": code, "Error": "", "StartedAt": f"2026-11-20T{began}:00Z", "FinishedAt": "0001-01-01T00:00:00Z",
    }  # fmt: skip
    return json.dumps([{"Id": "1f", "Name": "/vllm", "RestartCount": restarts, "State": state}])


def pod(restarts: int, state: Mapping[str, Any], last: Mapping[str, Any] | None = None, number: str = "1") -> str:
    mine = {"name": "server", "restartCount": restarts, "state": state, "containerID": f"containerd://{number}"}
    sidecar = {"name": "istio-proxy", "restartCount": 9, "state": {"running": {}}, "containerID": "containerd://x"}
    return json.dumps(
        {"status": {"phase": "Running", "containerStatuses": [sidecar, {**mine, "lastState": last or {}}]}}
    )


def systemd(active: str, pid: int, **more: object) -> str:
    shown = {"LoadState": "loaded", "ActiveState": active, "MainPID": pid, "Result": "success", "ExecMainCode": 0}
    shown |= {"ExecMainStatus": 0, "NRestarts": 0, "InvocationID": "aa"} | more
    return "".join(f"{k}={v}\n" for k, v in shown.items())


async def test_orchestrator_docker_reads_exit_code_and_oom_kill(place: Path, rows: EmittedRows) -> None:
    put(place / "inspect.json", docker(True))
    async with asked("docker:vllm", rows):
        await rows.until(lambda: rows.of("supervisor", what="seen", running=True))
        put(place / "inspect.json", docker(False, code=137, oom=True))
        await rows.until(lambda: rows.of("supervisor", what="ended"))
    ended = rows.of("supervisor", what="ended")[0]
    assert (ended["exit_code"], ended["oom_killed"], ended["running"]) == (137, True, False)
    assert ended["reason"] == "OOMKilled, exited with code 137"
    assert ended["source"] == "docker:vllm"


async def test_orchestrator_docker_reads_a_past_end_from_events(place: Path, rows: EmittedRows) -> None:
    put(place / "inspect.json", docker(True))
    attributes = {"exitCode": "137", "name": "vllm"}
    died = [{"Action": action, "Actor": {"Attributes": attributes}} for action in ("oom", "die")]
    (place / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in died))
    async with asked("docker:vllm", rows):
        await rows.until(lambda: rows.of("supervisor", what="seen"))
        put(place / "inspect.json", docker(True, began="10:05", restarts=1))
        await rows.until(lambda: rows.of("supervisor", what="started"))
    events = [(r["what"], r["exit_code"], r["restarts"], r["running"]) for r in rows.of("supervisor")]
    assert events == [("seen", None, 0, True), ("ended", 137, 1, True), ("started", None, 1, True)]
    assert rows.of("supervisor", what="ended")[0]["reason"] == "OOMKilled, exited with code 137"


async def test_orchestrator_kubernetes_reads_the_last_end(place: Path, rows: EmittedRows) -> None:
    put(place / "pod.json", pod(2, {"running": {"startedAt": "x"}}))
    async with asked("k8s:ml/vllm-0/server", rows):
        await rows.until(lambda: rows.of("supervisor", what="seen", running=True, restarts=2))
        killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        put(place / "pod.json", pod(3, {"running": {"startedAt": "y"}}, killed, "2"))
        await rows.until(lambda: rows.of("supervisor", what="started"))
    ended = rows.of("supervisor", what="ended")[0]
    assert (ended["reason"], ended["oom_killed"], ended["restarts"]) == ("OOMKilled, exited with code 137", True, 3)


async def test_orchestrator_kubernetes_reads_the_eviction_reason(place: Path, rows: EmittedRows) -> None:
    put(place / "pod.json", pod(0, {"running": {}}))
    async with asked("k8s:ml/vllm-0/server", rows):
        await rows.until(lambda: rows.of("supervisor", what="seen"))
        gone = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        put(place / "pod.json", json.dumps({"status": gone}))
        await rows.until(lambda: rows.of("supervisor", what="ended"))
    assert rows.of("supervisor", what="ended")[0]["reason"] == "Evicted: The node was low on resource: memory."


async def test_orchestrator_systemd_reads_signal_and_oom_kill(place: Path, rows: EmittedRows) -> None:
    put(place / "show.txt", systemd("active", 4711))
    async with asked("journal:vllm.service", rows):
        await rows.until(lambda: rows.of("supervisor", what="seen", running=True))
        put(place / "show.txt", systemd("failed", 0, Result="oom-kill", ExecMainCode=2, ExecMainStatus=9))
        await rows.until(lambda: rows.of("supervisor", what="ended"))
    ended = rows.of("supervisor", what="ended")[0]
    assert (ended["signal"], ended["oom_killed"]) == (9, True)
    assert ended["reason"] == "killed by the OOM killer, was ended by signal 9"


@pytest.mark.parametrize(
    ("spec", "why"),
    [("docker:other", "No such container: other"), ("k8s:ml/other", 'pods "other" not found')],
)
async def test_orchestrator_without_the_server_writes_one_gap(
    spec: str, why: str, place: Path, rows: EmittedRows
) -> None:
    supervisor = OrchestratorMonitor("a", spec, command_of(spec), rows.append)
    for _ in range(3):
        await supervisor._poll()
    gaps = rows.of("gap", source="supervisor")
    assert [g["seconds"] for g in gaps] == [0.0]
    assert why in gaps[0]["why"]


def test_orchestrator_does_not_exist_for_a_plain_file() -> None:
    assert status_command("/var/log/vllm.log") is None


async def test_kubernetes_log_of_the_previous_container_is_read_once(
    place: Path, tmp_path: Path, rows: EmittedRows
) -> None:
    opening = "".join(f"(EngineCore pid=1) INFO step {n} of the first life\n" for n in range(5))
    (place / "first.log").write_text(opening)

    follower = LogFollower(FollowedLog("k8s:ml/vllm-0", "a", "a"), tmp_path / "logs", rows.append, Redactor())
    follower.start()
    kept = follower.path
    try:
        await rows.until(lambda: kept.exists() and kept.read_text() == opening)
        (place / "dead").touch()
        await rows.until(lambda: any("waiting to start" in str(row["why"]) for row in rows.of("gap")))
        put(place / "previous.log", opening + "(EngineCore pid=1) ERROR AssertionError: the cause\n")
        await rows.until(lambda: "the cause" in kept.read_text())
        put(place / "second.log", "(EngineCore pid=1) INFO step 0 of the second life\n")
        await rows.until(lambda: "second life" in kept.read_text(), 20)
    finally:
        await follower.stop()
    assert kept.read_text().count("the cause") == 1
    assert kept.read_text().count("step 4 of the first life") == 1
