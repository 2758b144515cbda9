import errno
import json
import os
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.errors import OptionError
from tests.campaigns.soak.conftest import Make


def whats(soak: Any) -> list[tuple[str, str, int]]:
    return [(n.what, n.why, n.times) for n in soak.state.runs]


def test_soak_sends_other_prompts_in_each_run(world: Make) -> None:
    w = world(datetime(2026, 11, 20, 12, tzinfo=UTC))
    soak = w.soak()
    w.pass_time(soak, days=2)
    assert whats(soak) == [("ran", "schedule", 1)] * 2
    seeds = [arguments[arguments.index("--seed") + 1] for _, arguments in w.begun]
    assert seeds == ["1795222800", "1795309200"], "the start times"


def test_soak_restarted_in_the_repeated_hour_runs_once(world: Make) -> None:
    w = world(datetime(2026, 10, 24, 12, tzinfo=UTC))
    w.lasts = timedelta(minutes=10)
    for hours in (12.75, 0.75, 0.5, 2.0):  # killed at 02:45, at 02:30 for the second time, at 03:00
        soak = w.soak("30 2 * * *", catch_up="once")
        w.pass_time(soak, hours=hours)
        w.kill()
    assert w.when_begun() == ["10-25 00:30"]


def test_soak_catches_up_missed_starts_with_one_run(world: Make) -> None:
    w = world()
    soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=1)
    w.kill()
    w.clock.sleep(3.2 * 86400)  # a long weekend without power
    soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=2)
    assert whats(soak) == [("missed", "schedule", 3), ("ran", "catch_up", 1)]
    assert w.when_begun() == ["11-23 17:48"]


def test_soak_starts_by_systemd_are_not_missed(world: Make) -> None:
    w = world(datetime(2026, 11, 20, 1, tzinfo=UTC))
    for _ in range(5):
        soak = w.soak(catch_up="once")
        assert soak.once() == 0
        w.kill()
        w.clock.sleep(23 * 3600)
    w.clock.sleep(-12 * 3600)
    soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=2)
    assert whats(soak) == [("ran", "once", 1)] * 5


def test_soak_start_during_a_manual_run_is_not_missed(world: Make) -> None:
    w = world(datetime(2026, 11, 20, 0, 30, tzinfo=UTC))
    soak = w.soak(catch_up="once")
    soak.once()
    w.pass_time(soak, hours=2)
    assert whats(soak) == [("ran", "once", 1)]


def test_soak_without_catch_up_only_notes_missed_starts(world: Make) -> None:
    w = world()
    soak = w.soak()
    w.clock.sleep(3.2 * 86400)
    w.pass_time(soak, hours=2)
    assert whats(soak) == [("missed", "schedule", 3)]
    assert w.begun == []


def test_soak_ignores_times_before_its_first_start(world: Make) -> None:
    w = world()
    soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=12)
    assert soak.state.runs == ()


def test_soak_catches_up_after_a_suspend(world: Make) -> None:
    w = world()
    soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=4)
    w.clock.sleep(14 * 3600)  # the lid was closed from 16:00 to 06:00
    w.pass_time(soak, hours=3)
    assert w.when_begun() == ["11-21 06:00"]
    assert [n.why for n in soak.state.runs if n.what == "ran"] == ["catch_up"]


def test_soak_suspended_during_a_run_starts_no_second_one(world: Make) -> None:
    w = world()
    soak = w.soak("0 * * * *", overlap="skip", catch_up="once")
    w.lasts = timedelta(hours=9)
    w.pass_time(soak, hours=1.5)
    w.clock.sleep(5 * 3600)
    w.pass_time(soak, hours=0.4)
    assert len(w.begun) == 1
    assert ("missed", "schedule", 5) in whats(soak)
    assert any(n.what == "skipped" and "a run was going on" in n.text for n in soak.state.runs)


def test_soak_overlap_skip_skips_a_start_during_a_run(world: Make) -> None:
    w = world()
    w.lasts = timedelta(minutes=90)
    soak = w.soak("0 * * * *", overlap="skip")
    w.pass_time(soak, hours=5)
    assert w.when_begun() == ["11-20 13:00", "11-20 15:00"]
    assert Counter(n.what for n in soak.state.runs) == {"skipped": 2, "ran": 2}


def test_soak_overlap_queue_queues_one_start_at_most(world: Make) -> None:
    w = world()
    w.lasts = timedelta(minutes=150)
    soak = w.soak("0 * * * *", overlap="queue")
    w.pass_time(soak, hours=7)
    assert w.when_begun() == ["11-20 13:00", "11-20 15:30", "11-20 18:00"]
    assert [n.why for n in soak.state.runs if n.what == "ran"] == ["schedule", "queued"]
    assert any("another was queued" in n.text for n in soak.state.runs)


def test_soak_killed_finds_its_run_again(world: Make) -> None:
    w = world()
    soak = w.soak()
    w.pass_time(soak, hours=13.2)  # 01:12 UTC: the run of 02:00 goes on
    w.kill()
    ends = w.ends
    w.clock.sleep(7200)
    soak = w.soak()
    w.pass_time(soak, hours=2)
    assert len(w.begun) == 1
    (run,) = soak.state.runs
    assert (run.what, run.verdict, run.exit_code, run.folder) == ("ran", "pass", 0, "night-101")
    assert run.ended is not None
    assert datetime.fromisoformat(run.ended) == ends, "not when it was found"


def test_soak_killed_before_the_run_began_starts_it_next_time(world: Make) -> None:
    w = world()
    soak = w.soak(catch_up="once")
    real = w.start

    def killed(*_: object, **__: object) -> int:
        raise SystemExit

    w.start = killed
    with pytest.raises(SystemExit):
        w.pass_time(soak, hours=14)
    w.kill()
    w.start = real
    soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=2)
    assert whats(soak) == [("not_begun", "schedule", 1), ("ran", "queued", 1)]


@pytest.mark.parametrize("at_write", range(1, 7))
def test_soak_killed_at_any_write_loses_and_repeats_no_run(
    world: Make, monkeypatch: pytest.MonkeyPatch, at_write: int
) -> None:
    """Kill at each write of soak.json, before and after the replacement."""
    w = world()
    writes = 0
    fsynced = os.fsync

    def fsync(fd: int) -> None:
        nonlocal writes
        fsynced(fd)
        writes += 1
        if writes == at_write * 2 + 1:
            raise SystemExit

    soak = w.soak(catch_up="once")
    monkeypatch.setattr(os, "fsync", fsync)
    try:
        w.pass_time(soak, hours=16)
    except SystemExit:
        w.kill()
        soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=6)
    ran = [n for n in soak.state.runs if n.what == "ran"]
    assert len(ran) == len(w.begun) == 1
    assert json.loads((w.home / "soak.json").read_text())["running"] is None


def test_soak_judges_a_killed_run(world: Make) -> None:
    w = world()
    w.verdict = None
    soak = w.soak()
    w.pass_time(soak, hours=16)
    assert w.judged == ["night-101"]
    assert soak.state.runs[0].verdict == "unknown"


def test_soak_retries_a_run_without_a_folder_once(world: Make) -> None:
    w = world()
    w.makes_folder = False
    w.lasts = timedelta(seconds=1)
    soak = w.soak(catch_up="once")
    w.pass_time(soak, hours=20)
    assert len(w.begun) == 2
    assert [n.what for n in soak.state.runs] == ["not_begun"] * 2


def test_soak_terminates_then_kills_a_run_over_max_duration(world: Make) -> None:
    w = world()
    w.lasts = timedelta(hours=9)
    soak = w.soak(max_duration="2h")
    w.pass_time(soak, hours=17)
    assert w.signals == [signal.SIGTERM, signal.SIGKILL]
    assert w.begun[0][1][-3:] == ["--duration", "2h", "--no-live"]


def test_soak_survives_a_full_disk(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    w = world()
    soak = w.soak(catch_up="once")
    replace = Path.replace
    full = True

    def maybe(self: Path, target: Path) -> Path:
        if full and self.name == "soak.json.part":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", maybe)
    sleep = w.clock.sleep

    def until_noon(seconds: float) -> None:
        nonlocal full
        sleep(60)
        full = w.clock.time < datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
        if w.clock.time > datetime(2026, 11, 21, 5, tzinfo=UTC):
            soak._interrupts.receive(signal.SIGTERM)

    w.clock.sleep = until_noon
    assert soak.forever() == 143
    assert sum("No space left" in line for line in w.lines) >= 1
    assert [n.what for n in soak.state.runs].count("ran") == 1
    assert json.loads((w.home / "soak.json").read_text())["nights"][-1]["what"] == "ran"


def test_soak_continues_after_a_clock_years_ahead(world: Make) -> None:
    w = world(datetime(2033, 1, 1, 12, tzinfo=UTC))
    w.lasts = timedelta(minutes=10)
    soak = w.soak("0 * * * *")
    w.pass_time(soak, hours=1.5)
    w.clock.time = datetime(2026, 11, 20, 12, tzinfo=UTC)
    w.pass_time(soak, hours=3.5)
    assert w.when_begun()[-1].startswith("11-20 1")


def test_soak_clock_set_back_starts_nothing_twice(world: Make) -> None:
    w = world()
    w.lasts = timedelta(minutes=10)
    soak = w.soak()
    w.pass_time(soak, hours=13.5)
    w.clock.sleep(-3600)
    w.pass_time(soak, hours=5)
    assert len(w.begun) == 1


def test_soak_refuses_a_folder_in_use_and_names_its_owner(world: Make) -> None:
    w = world()
    w.soak()
    with pytest.raises(OptionError, match=rf"in use by the soak of night.yaml, pid {os.getpid()} on "):
        w.soak()
    w.kill()
    w.soak()


def test_soak_refuses_the_folder_of_another_profile(world: Make) -> None:
    w = world()
    soak = w.soak()
    soak.state.name = "other"
    soak.state.queued = "2026-11-20T12:00:00+00:00"
    soak._save()
    w.kill()
    with pytest.raises(OptionError, match="has the soak of other"):
        w.soak()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "handled_to": "x"}'])
def test_soak_refuses_an_unreadable_state_and_keeps_it(world: Make, text: str) -> None:
    w = world()
    w.home.mkdir(parents=True)
    (w.home / "soak.json").write_text(text)
    with pytest.raises(OptionError, match="move it away to start over"):
        w.soak()
    assert (w.home / "soak.json").read_text() == text
