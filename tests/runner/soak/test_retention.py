"""What `keep` leaves of the nights: the newest, the last good one, what a person marked, and whatever is not the soak's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

Make = Callable[..., Any]  # World, of this folder's conftest


def there(w: Any) -> list[str]:
    return sorted(p.name for p in w.home.iterdir() if p.is_dir())


def test_the_oldest_runs_go_whole(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 3})
    w.pass_time(soak, step_s=600, days=6)
    assert there(w) == ["night-104", "night-105", "night-106"]
    assert [n.deleted for n in soak.state.runs] == [True] * 3 + [False] * 3


def test_days_are_obeyed_too(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 30, "days": 2})
    w.pass_time(soak, step_s=600, days=6)
    assert there(w) == ["night-105", "night-106"]


@pytest.mark.parametrize("ahead", [timedelta(days=365), timedelta(days=-365)])
def test_a_clock_that_is_wrong_takes_no_run_away(world: Make, ahead: timedelta) -> None:
    w = world()
    soak = w.soak(keep={"runs": 30, "days": 90})
    w.pass_time(soak, step_s=600, days=2)
    w.verdict = "fail"
    w.pass_time(soak, step_s=600, days=1)
    w.verdict = "pass"
    w.pass_time(soak, step_s=600, days=2.58)  # a run goes on: the clock leaps in its midst, and stays wrong
    w.clock.time, w.ends = w.clock.time + ahead, w.ends + ahead
    w.pass_time(soak, step_s=600, days=5)
    assert len(there(w)) == len(w.begun) >= 10


def test_after_a_long_pause_the_old_runs_go_once_new_ones_show_the_time(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 30, "days": 4})
    w.pass_time(soak, step_s=600, days=3)
    w.clock.sleep(60 * 86400)
    w.pass_time(soak, step_s=600, days=5)
    assert there(w) == ["night-105", "night-106", "night-107", "night-108"]


def test_the_last_good_run_stays_however_old(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 2})
    w.pass_time(soak, step_s=600, days=2)
    w.verdict = "fail"
    w.pass_time(soak, step_s=600, days=5)
    assert there(w) == ["night-102", "night-106", "night-107"]


@pytest.mark.parametrize("how", ["file", "incident", "json", "unreadable"])
def test_a_run_that_a_person_marked_stays(world: Make, how: str) -> None:
    w = world()
    soak = w.soak(keep={"runs": 2})
    w.pass_time(soak, step_s=600, days=1)
    run = w.home / "night-101"
    incident = run / "incidents" / "001-oom"
    incident.mkdir(parents=True)
    if how == "file":
        (run / "KEEP").touch()
    elif how == "incident":
        (incident / "KEEP").touch()
    else:
        (incident / "incident.json").write_text('{"keep": true}' if how == "json" else "{")
    w.pass_time(soak, step_s=600, days=4)
    assert there(w) == ["night-101", "night-104", "night-105"]


def test_runs_that_are_not_the_soaks_are_never_touched(world: Make) -> None:
    w = world()
    mine = w.home / "night-by-hand"
    mine.mkdir(parents=True)
    (mine / "events.jsonl").touch()
    soak = w.soak(keep={"runs": 1})
    w.pass_time(soak, step_s=600, days=3)
    assert there(w) == ["night-103", "night-by-hand"]


def test_a_deletion_that_a_kill_cut_short_is_finished(world: Make) -> None:
    w = world()
    half = w.home / ".deleted-night-7" / "watch"
    half.mkdir(parents=True)
    w.soak()
    assert not half.exists()
