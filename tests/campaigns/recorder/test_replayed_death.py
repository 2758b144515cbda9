import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadchaos.run.ports import free_port
from tests.waiting import until

LOADCHAOS = [sys.executable, "-m", "loadchaos"]
DEFECT = ["--defect", "encoder_free_on_speculated", "--flag", "max_num_batched_tokens=2048"]


def wait_for(url: str) -> None:
    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/v1/models").status_code == 200
        return False

    until(answers, f"an answer of {url}")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_recorded_shapes_reproduce_the_death(tmp_path: Path) -> None:
    server_port, proxy_port = free_port(), free_port()
    front = f"http://127.0.0.1:{proxy_port}"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    server = subprocess.Popen([*LOADCHAOS, "sim", "--port", str(server_port), *DEFECT], **quiet)
    argv = [*LOADCHAOS, "record", "--upstream", f"http://127.0.0.1:{server_port}", "--out", "out"]
    recorder = subprocess.Popen([*argv, "--listen", f"127.0.0.1:{proxy_port}"], **quiet)
    try:
        wait_for(front)
        run = [*LOADCHAOS, "run", "mtp_mm", "--target", front, "--authorize", f"127.0.0.1:{proxy_port}"]
        subprocess.run([*run, "--set", "target.on_death=stop"], **quiet, check=False, timeout=120)
        time.sleep(2)
    finally:
        recorder.send_signal(signal.SIGTERM)
        recorder.wait(70)
        server.kill()
        server.wait()
    assert [p.name[-12:] for p in (tmp_path / "out").glob("frozen-*")] == ["-engine-died"]
    launch = shlex.join([*LOADCHAOS, "sim", "--port", str(free_port()), *DEFECT])
    argv = [*LOADCHAOS, "replay", "out", "--launch", launch, "--any-death", "--times", "1"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200, env=os.environ)
    assert "REPRODUCED 1 of 1" in done.stdout
    assert "encoder_cache_miss" in done.stdout + done.stderr
