"""A profile's traffic under `locust -f`, with nothing of ours around it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROFILE = {
    "name": "short_answers",
    "about": "short answers",
    "traffic": [{"name": "chat", "payload": {"text": {"tokens": "8..16"}}, "output": {"max": 4}}],
    "load": [{"users": 1, "requests": 1}],
}


def locust(folder: Path, host: str, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, statistics and output of `locust --headless`."""
    done = subprocess.run(
        [sys.executable, "-m", "locust", "--headless", "--host", host, "-t", "10s", "--json", "--exit-code-on-error", "1",
         *options],
        cwd=folder, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else [], done.stderr


def rows(stats: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {(row["method"], row["name"]): row["num_requests"] for row in stats}


@pytest.mark.slow
def test_a_locustfile_of_two_lines_sends_a_profile_s_traffic(sim: Any, tmp_path: Path) -> None:
    (tmp_path / "short.json").write_text(json.dumps(PROFILE))
    (tmp_path / "two.py").write_text('from loadchaos.users import from_profile\nChat = from_profile("short.json")\n')
    code, stats, said = locust(tmp_path, sim().url, "-f", "two.py", "-u", "2", "-r", "10")
    told = rows(stats)
    assert code == 0, said
    assert told["POST", "chat"] > 2
    assert told["TTFT", "chat"] == told["POST", "chat"]
    assert told["ITL", "chat"] > told["POST", "chat"]
    assert not any(row["num_failures"] for row in stats)


@pytest.mark.slow
def test_a_server_that_is_not_there_ends_it_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text('from loadchaos.users import from_profile\nChat = from_profile("smoke")\n')
    code, stats, said = locust(tmp_path, "http://127.0.0.1:1", "-f", "two.py", "-u", "1")
    assert code == 4
    assert "connection refused" in said
    assert "POST" not in {method for method, _ in rows(stats)}


@pytest.mark.slow
def test_the_example_runs_with_users_of_its_own_beside(sim: Any, tmp_path: Path) -> None:
    code, stats, said = locust(
        tmp_path, sim().url, "-f", str(ROOT / "examples" / "locustfile.py"), "-u", "3", "-r", "10"
    )
    methods = {method for method, _ in rows(stats)}
    assert {"GET", "POST", "TTFT"} <= methods, said
    assert code == 0, said
