import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec

PROFILE = """\
name: bare
traffic: [{name: text, payload: {text: {tokens: 16..32}}, output: {max: 4}}]
load: [{users: 2, requests: 6}]
attacks: [{network: latency, at: 0s, for: 30s, params: {latency: 20}}]
"""


def test_run_without_a_target_in_the_profile_uses_the_proxy_to_an_external_server(tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text(PROFILE)
    server = subprocess.Popen(
        command(SimulatorSpec(era="0.18"), port=0),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with server:
        assert server.stdout is not None
        found = next(m for line in server.stdout if (m := re.search(r"running on (http://\S+)", line)))
        reader = threading.Thread(target=server.stdout.read, daemon=True)
        reader.start()
        argv = [sys.executable, "-m", "loadchaos", "run", "bare.yaml", "--target", found[1]]
        done = subprocess.run(
            [*argv, "--no-live", "--exporter-port", "0"], cwd=tmp_path, capture_output=True, text=True, timeout=90,
            env={k: v for k, v in os.environ.items() if k != "CI"}, check=False,
        )  # fmt: skip
        server.terminate()
        reader.join(10)
    verdict = json.loads(next(tmp_path.glob("runs/*/verdict.json")).read_text())
    assert verdict["verdict"] == "pass", done.stderr
    assert verdict["attacks"]["network_latency"]["ok"] == 1
    assert "go through a proxy" in done.stderr
