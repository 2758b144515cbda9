import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadchaos.cli.soak import _order
from tests.invoking import output_of
from tests.waiting import until

PROFILE = """
name: short
target: {embedded: {dialect: vllm, era: "0.18"}}
traffic:
  - {name: text, payload: {text: {tokens: 16}}, output: {max: 4}}
load:
  - {users: 1, for: 1s}
schedule: {cron: "0 2 * * *", timezone: Europe/Berlin, overlap: queue}
"""


def test_soak_next_prints_the_starts_of_the_shipped_profile() -> None:
    printed = output_of("soak", "soak_nightly", "--next", "2")
    assert "At 02:00 every day, Europe/Berlin" in printed
    assert len(printed.splitlines()) == 3


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["soak", "smoke"], "smoke has no schedule"),
        (["soak", "soak_nightly", "--once", "--next", "3"], "--once and --next exclude each other"),
        (["soak", "soak_nightly", "--usres", "3"], "No such option '--usres'"),
        (["soak", "soak_nightly", "--set", "schedule.cron=x"], "minute, hour, day, month and weekday"),
        (["soak", "soak_nightly", "--dry-run"], "--next prints when"),
    ],
)
def test_soak_reports_mistakes_before_the_first_run(args: list[str], text: str) -> None:
    assert text in output_of(*args, code=2)


# --- with real runs ---------------------------------------------------------------------------------------------------


def begin(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "loadchaos",
            "soak",
            "short.yaml",
            "--once",
            "--embedded",
            "--no-live",
            "--exporter-port",
            "0",
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_soak_killed_leaves_its_run_and_the_next_notes_both(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(PROFILE)
    first = begin(tmp_path)
    until(lambda: list(tmp_path.glob("runs/short-*/requests-*.jsonl")))
    running = json.loads((tmp_path / "runs" / "soak.json").read_text())["running"]
    refused = begin(tmp_path)
    assert f"short.yaml, pid {first.pid} on " in refused.communicate(timeout=60)[0]
    assert refused.returncode == 2
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()

    second = begin(tmp_path)
    text = second.communicate(timeout=100)[0]
    assert second.returncode == 0, text
    state = json.loads((tmp_path / "runs" / "soak.json").read_text())
    assert [(n["what"], n["verdict"], n["exit_code"]) for n in state["nights"]] == [("ran", "pass", 0)] * 2
    assert state["running"] is None
    header = json.loads((tmp_path / "runs" / state["nights"][0]["folder"] / "events.jsonl").read_text().splitlines()[0])
    assert header["pid"] == running["pid"]
    trend = json.loads((tmp_path / "runs" / "trend.json").read_text())
    assert [n["verdict"] for n in trend["nights"]] == ["pass", "pass"]
    assert "short: 2 runs" in (tmp_path / "runs" / "trend.html").read_text()


@pytest.mark.parametrize(
    "given", [["-t", "5s"], ["-t5s"], ["--duration", "5s"], ["--duration=5s"], ["--run-time", "5s"]]
)
def test_soak_passes_its_own_duration_in_place_of_the_given_one(given: list[str]) -> None:
    """`run` refuses one option by two names with different values."""
    _, order = _order("soak_nightly", ("--embedded", *given, "--set", "load.0.users=1"), once=True)
    assert order.duration_s == 5
    assert order.options == ("--embedded", "--set", "load.0.users=1")
