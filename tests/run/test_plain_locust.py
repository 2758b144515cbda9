import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run.conftest import Serve, StartSim
from tests.run.raw_server import answer

ROOT = Path(__file__).parents[2]
PROFILE = {
    "name": "short_answers",
    "about": "short answers",
    "traffic": [{"name": "chat", "payload": {"text": {"tokens": "8..16"}}, "output": {"max": 4}}],
    "load": [{"users": 1, "requests": 1}],
}


def locust(folder: Path, host: str, *options: str, for_s: int = 10) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, statistics and output of `locust --headless`."""
    argv = [sys.executable, "-m", "locust", "--headless", "--host", host, "-t", f"{for_s}s", "--json", *options]
    done = subprocess.run(
        [*argv, "--exit-code-on-error", "1"], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    return done.returncode, list(every(done.stdout.strip())), done.stderr


def every(text: str) -> Iterator[dict[str, Any]]:
    """Rows of each process' statistics; with --processes all print theirs."""
    while text:
        figures, end = json.JSONDecoder().raw_decode(text)
        yield from figures
        text = text[end:].strip()


BOTH = """
import gevent
from locust import HttpUser, constant, events, task
from locust.runners import WorkerRunner
from loadchaos import from_profile

Chat = from_profile("short.json")


class Operator(HttpUser):
    fixed_count = 2
    wait_time = constant(0.1)

    @task
    def look(self):
        self.client.get("/health")


@events.init.add_listener
def until_both_were_heard(environment, **_):
    def watch():
        while min(environment.stats.get(*kind).num_requests for kind in (("chat", "TTFT"), ("/health", "GET"))) < 4:
            gevent.sleep(0.1)
        environment.runner.quit()

    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn(watch)
"""


@pytest.mark.slow
def test_own_locust_with_two_processes_and_another_user_class(sim: StartSim, tmp_path: Path) -> None:
    """Run until both kinds of users were answered, however long it takes."""
    (tmp_path / "short.json").write_text(json.dumps(PROFILE))
    (tmp_path / "both.py").write_text(BOTH)
    code, stats, output = locust(
        tmp_path, sim().url, "-f", "both.py", "-u", "6", "-r", "10", "--processes", "2", for_s=100
    )
    assert code == 0, output
    assert {("TTFT", "chat"), ("POST", "chat"), ("GET", "/health")} <= set(rows(stats)), output
    assert not any(row["num_failures"] for row in stats)


@pytest.mark.slow
def test_own_locust_with_two_profiles(sim: StartSim, tmp_path: Path) -> None:
    (tmp_path / "short.json").write_text(json.dumps(PROFILE))
    (tmp_path / "other.json").write_text(json.dumps({**PROFILE, "name": "other_answers"}))
    (tmp_path / "both.py").write_text(BOTH + '\nOther = from_profile("other.json")\n')
    code, stats, output = locust(
        tmp_path, sim().url, "-f", "both.py", "-u", "8", "-r", "10", "--processes", "2", for_s=100
    )
    assert code == 0, output
    assert ("TTFT", "chat") in rows(stats), output
    assert '"OtherAnswers"' in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_own_locust_reports_a_missing_server_once(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text('from loadchaos import from_profile\nChat = from_profile("smoke")\n')
    code, stats, output = locust(tmp_path, "http://127.0.0.1:1", "-f", "two.py", "-u", "2", "--processes", "2")
    assert code == 4, output
    assert "POST" not in {method for method, _ in rows(stats)}
    assert output.count("connection refused") == 1, output
    assert "Traceback" not in output


def rows(stats: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {(row["method"], row["name"]): row["num_requests"] for row in stats}


@pytest.mark.slow
def test_own_locust_sends_the_traffic_of_a_profile(sim: StartSim, tmp_path: Path) -> None:
    (tmp_path / "short.json").write_text(json.dumps(PROFILE))
    (tmp_path / "two.py").write_text('from loadchaos import from_profile\nChat = from_profile("short.json")\n')
    code, stats, output = locust(tmp_path, sim().url, "-f", "two.py", "-u", "2", "-r", "10")
    figures = rows(stats)
    assert code == 0, output
    assert figures["POST", "chat"] > 2
    assert figures["TTFT", "chat"] == figures["POST", "chat"]
    assert figures["ITL", "chat"] > figures["POST", "chat"]
    assert not any(row["num_failures"] for row in stats)


@pytest.mark.slow
def test_own_locust_example_runs(sim: StartSim, tmp_path: Path) -> None:
    code, stats, output = locust(
        tmp_path, sim().url, "-f", str(ROOT / "examples" / "locustfile.py"), "-u", "3", "-r", "10"
    )
    methods = {method for method, _ in rows(stats)}
    assert {"GET", "POST", "TTFT"} <= methods, output
    assert code == 0, output


@pytest.mark.slow
def test_own_locust_backs_off_after_instant_errors(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "short.json").write_text(json.dumps(PROFILE))
    (tmp_path / "locustfile.py").write_text('from loadchaos import from_profile\nChat = from_profile("short.json")\n')
    asked: list[float] = []

    def reply(_n: int, body: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        if not body.get("stream"):
            return 200, answer(1, prompt=8 + len(str(body["messages"])) // 4, finish="length")
        asked.append(time.monotonic())
        return 502, [{"error": {"message": "bad gateway", "code": 502}}]

    _, stats, errors = locust(tmp_path, serve(reply), "-u", "2", "-r", "2", for_s=3)
    assert stats, errors
    assert 4 <= len(asked) <= 20  # two users: at 0.0, 0.1, 0.3, 0.7, 1.5 s
