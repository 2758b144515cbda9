import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loadchaos.core.errors import OptionError
from loadchaos.server.process.launcher import parse_command_line

NO_MEMORY = (
    "ValueError: Free memory on device (3.12/79.19 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


@pytest.mark.parametrize(
    ("words", "argv", "env", "url"),
    [
        ("vllm serve m", ("vllm", "serve", "m"), {}, "http://127.0.0.1:8000"),
        ("A=1 B='x y' vllm serve m --port 9", ("vllm", "serve", "m", "--port", "9"), {"A": "1", "B": "x y"}, "http://127.0.0.1:9"),
        (["vllm", "serve", "--host=::1", "--port=9"], ("vllm", "serve", "--host=::1", "--port=9"), {}, "http://[::1]:9"),
        ("H=~/h ~/bin/vllm", (f"{Path.home()}/bin/vllm",), {"H": f"{Path.home()}/h"}, "http://127.0.0.1:8000"),
        ("lmdeploy serve api_server m", ("lmdeploy", "serve", "api_server", "m"), {}, "http://127.0.0.1:23333"),
        ("lmdeploy serve api_server m --server-port 7", ("lmdeploy", "serve", "api_server", "m", "--server-port", "7"), {},
         "http://127.0.0.1:7"),
        ("vllm serve m --ssl-certfile=c --ssl-keyfile k", ("vllm", "serve", "m", "--ssl-certfile=c", "--ssl-keyfile", "k"),
         {}, "https://127.0.0.1:8000"),
        ("lmdeploy serve api_server m --ssl", ("lmdeploy", "serve", "api_server", "m", "--ssl"), {}, "https://127.0.0.1:23333"),
        ("python -m sglang.launch_server --host 0.0.0.0",
         ("python", "-m", "sglang.launch_server", "--host", "0.0.0.0"), {}, "http://127.0.0.1:30000"),
    ],
)  # fmt: skip
def test_launch_command_is_parsed_like_a_shell_with_its_address(
    words: str | list[str], argv: tuple[str, ...], env: dict[str, str], url: str
) -> None:
    what = parse_command_line(words)
    assert (what.argv, what.env, what.url) == (argv, env, url)


@pytest.mark.parametrize("words", ["", "A=1", "vllm 'serve", "vllm --port eight", "vllm --port 70000"])
def test_launch_refuses_a_malformed_command(words: str) -> None:
    with pytest.raises(OptionError):
        parse_command_line(words)


def launch(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "loadchaos", "launch", "--out", str(tmp_path / "l"), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()  # its supervisor ends the server
    assert "Traceback" not in output, output
    return process.returncode, output


def embedded(port: int) -> list[str]:
    return [sys.executable, "-m", "loadchaos.simulator.server", "--port", str(port)]


def test_launch_classifies_the_log_of_a_server_that_does_not_start(tmp_path: Path, unused_port: int) -> None:
    fails = f"print({NO_MEMORY!r}); raise SystemExit(1)"
    code, output = finished(launch(tmp_path, sys.executable, "-c", fails, "--port", str(unused_port)))
    assert code == 4
    assert "did not become healthy: it exited with code 1" in output
    (said,) = [line for line in output.splitlines() if line.startswith("loadchaos: ")]
    assert "Cause: Less GPU memory is free than gpu_memory_utilization requests (gpu_budget_startup)" in said
    assert "To do: End leftover processes, wait, and start again." in said


def test_launch_reports_a_missing_command(tmp_path: Path, unused_port: int) -> None:
    code, output = finished(launch(tmp_path, f"/no/such/server --port {unused_port}"))
    assert code == 4
    assert "could not be started: /no/such/server: No such file or directory" in output


def test_launch_stops_a_server_that_does_not_become_ready(tmp_path: Path, unused_port: int) -> None:
    sleeps = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    code, output = finished(
        launch(tmp_path, "--ready-within", "1s", sys.executable, "-c", sleeps, "--port", str(unused_port))
    )
    assert code == 4
    assert "was not healthy within 1 s" in output
    log = next(tmp_path.glob("l/*/server.log")).read_text()
    assert not psutil.pid_exists(int(log.split()[-1]))


def test_launch_check_stops_a_ready_server(tmp_path: Path, unused_port: int) -> None:
    code, output = finished(launch(tmp_path, "--check", *embedded(unused_port)))
    assert code == 0, output
    assert f"at http://127.0.0.1:{unused_port}: vllm 0.18" in output


@pytest.mark.slow
def test_launch_ctrl_c_stops_the_server_and_a_taken_port_is_refused(tmp_path: Path, unused_port: int) -> None:
    first = launch(tmp_path, *embedded(unused_port))
    assert first.stdout is not None
    output = ""
    while "Ctrl-C stops the server" not in output:
        line = first.stdout.readline()
        assert line, output
        output += line
    code, output = finished(launch(tmp_path, *embedded(unused_port)))
    assert (code, "another server already listens on" in output) == (2, True), output
    begin = time.monotonic()
    first.send_signal(signal.SIGINT)
    assert finished(first)[0] == 130
    assert time.monotonic() - begin < 30
    code, output = finished(launch(tmp_path, "--check", *embedded(unused_port)))
    assert code == 0, output


@pytest.mark.slow
def test_launch_reports_a_server_that_exits_later(tmp_path: Path, unused_port: int) -> None:
    process = launch(tmp_path, *embedded(unused_port))
    assert process.stdout is not None
    while "Ctrl-C stops the server" not in process.stdout.readline():
        pass
    (supervisor,) = psutil.Process(process.pid).children()
    supervisor.children()[0].kill()
    code, output = finished(process)
    assert code == 1
    assert "exited unexpectedly: it was killed by signal 9" in output
