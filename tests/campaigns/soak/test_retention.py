from datetime import timedelta
from typing import Any

import pytest

from tests.campaigns.soak.conftest import Make


def there(w: Any) -> list[str]:
    return sorted(p.name for p in w.home.iterdir() if p.is_dir())


def test_retention_deletes_the_oldest_runs_completely(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 3})
    w.pass_time(soak, step_s=600, days=6)
    assert there(w) == ["night-104", "night-105", "night-106"]
    assert [n.deleted for n in soak.state.runs] == [True] * 3 + [False] * 3


def test_retention_keeps_days(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 30, "days": 2})
    w.pass_time(soak, step_s=600, days=6)
    assert there(w) == ["night-105", "night-106"]


@pytest.mark.parametrize("ahead", [timedelta(days=365), timedelta(days=-365)])
def test_retention_wrong_clock_deletes_no_run(world: Make, ahead: timedelta) -> None:
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


def test_retention_after_a_long_pause_waits_for_new_runs(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 30, "days": 4})
    w.pass_time(soak, step_s=600, days=3)
    w.clock.sleep(60 * 86400)
    w.pass_time(soak, step_s=600, days=5)
    assert there(w) == ["night-105", "night-106", "night-107", "night-108"]


def test_retention_keeps_the_last_passed_run(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 2})
    w.pass_time(soak, step_s=600, days=2)
    w.verdict = "fail"
    w.pass_time(soak, step_s=600, days=5)
    assert there(w) == ["night-102", "night-106", "night-107"]


@pytest.mark.parametrize("how", ["file", "incident", "json", "unreadable"])
def test_retention_keeps_marked_runs(world: Make, how: str) -> None:
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


def test_retention_ignores_runs_of_others(world: Make) -> None:
    w = world()
    mine = w.home / "night-by-hand"
    mine.mkdir(parents=True)
    (mine / "events.jsonl").touch()
    soak = w.soak(keep={"runs": 1})
    w.pass_time(soak, step_s=600, days=3)
    assert there(w) == ["night-103", "night-by-hand"]


def test_retention_finishes_an_interrupted_deletion(world: Make) -> None:
    w = world()
    half = w.home / ".deleted-night-7" / "watch"
    half.mkdir(parents=True)
    w.soak()
    assert not half.exists()
