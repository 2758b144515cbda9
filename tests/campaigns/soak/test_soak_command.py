import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from loadchaos.campaigns.soak.unit_files import Job, emit, on_calendar
from loadchaos.cli.soak import _order
from loadchaos.core.errors import OptionError
from loadchaos.profile.cron import Schedule
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


def job(
    cron: str = "0 2 * * *", command: tuple[str, ...] = ("loadchaos", "soak", "x.yaml", "--once"), **more: object
) -> Job:
    schedule = Schedule.model_validate({"cron": cron, "timezone": "Europe/Berlin", **more})
    return Job("soak_nightly", schedule, command, Path("/home/me"), Path("/home/me/runs"), PROFILE, "x.yaml", "1.0")


@pytest.mark.parametrize(
    ("cron", "calendar"),
    [
        ("0 2 * * *", ["*-*-* 02:00:00 Europe/Berlin"]),
        ("*/20 22-23 * * *", ["*-*-* 22,23:00,20,40:00 Europe/Berlin"]),
        ("30 2 * * 1-5", ["Mon,Tue,Wed,Thu,Fri *-*-* 02:30:00 Europe/Berlin"]),
        ("30 2 * * 7", ["Sun *-*-* 02:30:00 Europe/Berlin"]),
        ("0 0 1,15 jan-mar *", ["*-01,02,03-01,15 00:00:00 Europe/Berlin"]),
        ("0 0 1 * sat", ["*-*-01 00:00:00 Europe/Berlin", "Sat *-*-* 00:00:00 Europe/Berlin"]),
        ("0 */6 * * *", ["*-*-* 00,06,12,18:00:00 Europe/Berlin"]),
        ("5/20 1 * * *", ["*-*-* 01:05,25,45:00 Europe/Berlin"]),
    ],
)
def test_emit_systemd_calendar_equals_the_cron_line(cron: str, calendar: list[str]) -> None:
    schedule = Schedule.model_validate({"cron": cron, "timezone": "Europe/Berlin"})
    assert on_calendar(schedule) == calendar
    if shutil.which("systemd-analyze") is None:
        return
    from itertools import islice

    ours = [f"{t:%Y-%m-%d %H:%M}" for t in islice(schedule.ticks(datetime(2026, 11, 20, 12, tzinfo=UTC)), 4)]
    done = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=4", "--base-time=2026-11-20 12:00:00 UTC", *calendar],
        capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"},
    )  # fmt: skip
    theirs = sorted({" ".join(line.split()[-3:-1])[:16] for line in done.stdout.splitlines() if line.endswith(" UTC")})
    assert theirs[:4] == ours


@pytest.mark.parametrize("kind", ["systemd", "cron", "k8s"])
@pytest.mark.parametrize("cron", ["0 2 L * *", "0 2 * * MON#2", "0 2 * * 5L"])
def test_emit_refuses_cron_extensions(kind: str, cron: str) -> None:
    with pytest.raises(OptionError, match=r"L, W or #"):
        emit(job(cron), kind)


@pytest.mark.parametrize(
    ("cron", "zone", "skips"),
    [
        ("0 2 * * *", "Europe/Berlin", True),
        ("30 1 * * *", "Europe/London", True),
        ("0 3 * * *", "Europe/Berlin", False),
        ("*/30 * * * *", "Europe/Berlin", False),
        ("0 2 * * 1", "Europe/Berlin", False),
        ("0 2 * * *", "UTC", False),
    ],
)
def test_emit_comments_on_a_start_skipped_by_a_clock_change(cron: str, zone: str, skips: bool) -> None:
    for kind in ("systemd", "k8s"):
        assert ("skips the run, `loadchaos soak` starts it at 0" in emit(job(cron, timezone=zone), kind)) == skips


def test_emit_systemd_units_are_valid(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "loadchaos", "soak", "a b.yaml", "--header", 'X=50% "$HOME"')
    text = emit(job(command=command, jitter="5m", catch_up="once", max_duration="4h"), "systemd")
    assert "Persistent=true\n" in text
    assert "RandomizedDelaySec=300\n" in text
    assert '"a b.yaml" --header "X=50%% \\"$$HOME\\""' in text
    if shutil.which("systemd-analyze") is None:
        return
    service, timer = text.replace("/home/me", "/tmp").split("\n# ~/.config/systemd/user/loadchaos-soak-nightly.timer\n")
    (tmp_path / "loadchaos-soak-nightly.service").write_text(service)
    (tmp_path / "loadchaos-soak-nightly.timer").write_text(timer)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--recursive-errors=no", str(tmp_path / "loadchaos-soak-nightly.timer"),
         str(tmp_path / "loadchaos-soak-nightly.service")],
        capture_output=True, text=True, check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "loadchaos-soak-nightly" in line]
    assert ours == []


def test_emit_cron_skips_or_queues_and_escapes_percent_signs() -> None:
    skip = emit(job(command=("loadchaos", "--header", "X=5%")), "cron").splitlines()[-1]
    assert "flock -n -E 0 /home/me/runs/.soak.cron loadchaos" in skip
    assert r"X=5\%" in skip
    assert " flock /home/me/runs" in emit(job(overlap="queue"), "cron")
    assert "missed starts are lost" in emit(job(catch_up="once"), "cron")


def test_emit_k8s_cronjob_is_valid() -> None:
    text = emit(job("0 2 * * 5-7", jitter="5m", max_duration="1h"), "k8s")
    config, claim, cronjob = YAML(typ="safe").load_all(text)
    assert config["data"]["x.yaml"].strip() == PROFILE.strip()
    spec = cronjob["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("0 2 * * 0,5,6", "Europe/Berlin")
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["startingDeadlineSeconds"] == 120
    job_spec = spec["jobTemplate"]["spec"]
    assert (job_spec["backoffLimit"], job_spec["activeDeadlineSeconds"]) == (0, 3600 + 300 + 900)
    container = job_spec["template"]["spec"]["containers"][0]
    assert container["command"][-4:] == ["loadchaos", "soak", "x.yaml", "--once"]
    assert claim["kind"] == "PersistentVolumeClaim"
    assert "*id" not in text
    pod = job_spec["template"]["spec"]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (10001, 10001)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("systemd", "# Write KEY=... into this file"),
        ("cron", "# Write KEY=... above the line"),
        ("k8s", 'kubectl create secret generic loadchaos-keys --from-literal=KEY="$KEY" --from-literal=HOOK'),
    ],
)
def test_emit_takes_keys_from_the_right_place(kind: str, text: str) -> None:
    args = ["soak", "soak_nightly", "--emit", kind, "--target", "http://127.0.0.1:1"]
    printed = output_of(*args, "--api-key-env", "KEY", "--header", "X=y", "--notify", "env:HOOK")
    assert text in printed
    if kind == "k8s":
        *_, cronjob = YAML(typ="safe").load_all(printed)
        pod = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["key"] == "KEY"


def test_soak_next_prints_the_starts_of_the_shipped_profile() -> None:
    printed = output_of("soak", "soak_nightly", "--next", "2")
    assert "At 02:00 every day, Europe/Berlin" in printed
    assert len(printed.splitlines()) == 3


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["soak", "smoke"], "smoke has no schedule"),
        (["soak", "soak_nightly", "--once", "--next", "3"], "--once, --next and --emit exclude each other"),
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
