import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from loadchaos.core.ledger.recorder import create_folder
from tests.warm_command import outside_ci

SERVER = """
import http.server, pathlib, sys
pathlib.Path(sys.argv[2]).write_text("made by the server")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404); self.send_header("Content-Length", "0"); self.end_headers()
    do_POST = do_GET
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    return [f"{oct(mode(p))} {p.relative_to(folder)}" for p in [folder, *folder.rglob("*")] if mode(p) & 0o077]


def test_run_folder_is_private_and_a_launched_server_keeps_its_umask(tmp_path: Path, unused_port: int) -> None:
    script, made = tmp_path / "server.py", tmp_path / "made"
    script.write_text(SERVER)
    url = f"http://127.0.0.1:{unused_port}"
    command = [sys.executable, str(script), str(unused_port), str(made)]
    profile = {
        "name": "small",
        "target": {"launch": {"command": command, "url": url, "ready_within": "2s"}},
        "traffic": [{"name": "t", "payload": {"text": {"tokens": "16..32"}}, "output": {"exact": 1}}],
        "load": [{"users": 1, "requests": 1}],
    }
    (tmp_path / "p.yaml").write_text(json.dumps(profile))
    argv = [sys.executable, "-m", "loadchaos", "run", "p.yaml", "--exporter-port", "0", "--no-live", "--out", "runs"]
    done = subprocess.run(argv, cwd=tmp_path, umask=0o022, check=False, capture_output=True, timeout=60)
    assert (tmp_path / "runs").is_dir(), done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "verdict.json").exists() or (run / "events.jsonl").exists()
    assert open_to_others(run) == []
    assert mode(made) == 0o644
    subprocess.run(
        [sys.executable, "-m", "loadchaos", "judge", str(run)],
        umask=0o022,
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert open_to_others(run) == []


def test_run_folder_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        assert mode(create_folder(tmp_path / "runs", "p").path) == 0o700
    finally:
        os.umask(before)


@pytest.mark.slow  # a whole soak; the folder of its run: the test above
def test_soak_folder_is_private(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "loadchaos", "soak", "smoke", "--once", "--out", "nights", "--embedded", "-t", "1"]
    subprocess.run(
        [*argv, "--no-live", "--exporter-port", "0"], cwd=tmp_path, umask=0o022, check=False, capture_output=True,
        timeout=120, env=outside_ci(),
    )  # fmt: skip
    assert any((tmp_path / "nights").glob("*/events.jsonl"))
    assert open_to_others(tmp_path / "nights") == []
