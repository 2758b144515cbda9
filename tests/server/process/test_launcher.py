"""A server's process group, its output and its end, with real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import LogTail
from loadchaos.server.process.launcher import LaunchCommand, LaunchedServer
from tests.waiting import gone, until, until_async

TALKS = "import sys,time\nprint('ready to serve', flush=True)\nfor i in range(600): time.sleep(0.1)"
HAS_A_CHILD = f"""
import subprocess, sys, time
p = subprocess.Popen([sys.executable, "-c", {TALKS!r}], start_new_session=True)
print("child", p.pid, flush=True)
for i in range(600): time.sleep(0.1)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def log_lines(folder: Path) -> list[dict[str, Any]]:
    run = RunFolder(folder)
    return [{**row} for row in LogTail(run.server_log, run.server_index).rows(final=True)]


async def launched(folder: Path, command: LaunchCommand) -> tuple[LaunchedServer, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    server = LaunchedServer(command, folder, lambda row: rows.append(dict(row)), command.argv)
    await server.start()
    return server, rows


async def test_launched_server_output_has_arrival_times_and_stop_ends_it(tmp_path: Path) -> None:
    begin = time.monotonic_ns()
    server, rows = await launched(tmp_path, LaunchCommand(python(TALKS)))
    await until_async(lambda: log_lines(tmp_path))
    assert server.pid is not None
    await server.stop(grace_s=2.0)
    assert gone(server.pid)
    line = log_lines(tmp_path)[0]
    assert line["text"] == "ready to serve"
    assert begin < line["at_ns"] < time.monotonic_ns()
    assert [r["what"] for r in rows] == ["start", "exit"]
    assert rows[1]["signal"] == signal.SIGTERM
    assert rows[1]["asked"] is True


async def test_launched_server_exit_has_its_code(tmp_path: Path) -> None:
    server, rows = await launched(tmp_path, LaunchCommand(python("print('bye'); raise SystemExit(3)")))
    ended = await asyncio.wait_for(server.exit, 10)
    assert (ended.code, ended.signal, ended.asked) == (3, None, False)
    await server.stop(grace_s=10.0)
    assert rows[-1]["reason"] == "exited with code 3"


async def test_launched_server_missing_command_is_an_exit_with_reason(tmp_path: Path) -> None:
    server, _ = await launched(tmp_path, LaunchCommand(["/no/such/server"]))
    assert "No such file" in server.exit.result().reason
    await server.stop(grace_s=10.0)


async def test_launched_server_stop_ends_children_in_other_sessions(tmp_path: Path) -> None:
    server, _ = await launched(tmp_path, LaunchCommand(python(HAS_A_CHILD)))
    await until_async(lambda: any("child" in r["text"] for r in log_lines(tmp_path)))
    child = int(next(r["text"] for r in log_lines(tmp_path) if "child" in r["text"]).split()[1])
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)  # the server dies and leaves its engine behind
    await asyncio.wait_for(server.exit, 10)
    await server.stop(grace_s=10.0)
    assert gone(child)


async def test_launched_server_redacts_a_secret_cut_in_two(tmp_path: Path) -> None:
    code = """
import os, time
os.write(1, b"token is hunter2-hun"); time.sleep(0.3); os.write(1, b"ter2-secret and more\\n")
"""

    env = {"MY_API_KEY": "hunter2-hunter2-secret"}
    server, _ = await launched(tmp_path, LaunchCommand(python(code), env))
    await asyncio.wait_for(server.exit, 10)
    await server.stop(grace_s=10.0)
    assert "hunter2" not in (tmp_path / "server.log").read_text()
    assert "and more" in (tmp_path / "server.log").read_text()


def test_supervisor_stops_the_server_when_its_starter_is_killed(tmp_path: Path) -> None:
    """kill -9 of `run` leaves no server behind: the keeper sees its stdin end."""
    script = f"""
import asyncio, sys
from pathlib import Path
from loadchaos.server.process.launcher import LaunchCommand, LaunchedServer
async def main():
    s = LaunchedServer(LaunchCommand([sys.executable, "-u", "-c", {TALKS!r}]), Path({str(tmp_path)!r}), lambda r: None, [])
    await s.start()
    print(s.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: gone(pid), "the end of the server")


@pytest.mark.parametrize("bad", ["not json\n", json.dumps({"what": "nonsense"}) + "\n"])
def test_supervisor_ignores_unknown_orders(tmp_path: Path, bad: str) -> None:
    keeper = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "loadchaos.server.process.supervisor",
            "--folder",
            str(tmp_path),
            "--",
            *python("print('ok')"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = keeper.communicate(bad, timeout=20)
    assert [json.loads(line)["what"] for line in out.splitlines()] == ["start", "exit"]


async def test_launched_server_has_its_limits(tmp_path: Path) -> None:
    code = (
        "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_DATA)[0]); bytearray(1 << 30)"
    )

    limits = {"open_files": 64, "memory": 512 << 20}
    server, _ = await launched(tmp_path, LaunchCommand(python(code), limits=limits))
    ended = await asyncio.wait_for(server.exit, 20)
    await server.stop(grace_s=10.0)
    assert ended.code == 1
    texts = [row["text"] for row in log_lines(tmp_path)]
    assert texts[0] == f"(64, 64) {512 << 20}"
    assert texts[-1] == "MemoryError"
