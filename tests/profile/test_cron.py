from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest

from loadchaos.core.errors import ProfileError
from loadchaos.profile.cron import Schedule
from loadchaos.profile.profile import Profile

BEFORE_SPRING = datetime(2027, 3, 26, 12, tzinfo=UTC)  # the clocks go on in the night to 28 March
BEFORE_AUTUMN = datetime(2026, 10, 23, 12, tzinfo=UTC)  # and back in the night to 25 October


def berlin(cron: str, **more: object) -> Schedule:
    return Schedule.model_validate({"cron": cron, "timezone": "Europe/Berlin", **more})


def utc(schedule: Schedule, after: datetime, count: int) -> list[str]:
    return [f"{t:%m-%d %H:%M}" for t in islice(schedule.ticks(after), count)]


def test_schedule_starts_at_the_end_of_the_missing_spring_hour() -> None:
    assert utc(berlin("30 2 * * *"), BEFORE_SPRING, 3) == ["03-27 01:30", "03-28 01:00", "03-29 00:30"]


def test_schedule_starts_once_in_the_repeated_autumn_hour() -> None:
    assert utc(berlin("30 2 * * *"), BEFORE_AUTUMN, 3) == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]


def test_schedule_skips_the_first_repeated_hour_when_asked_in_the_second() -> None:
    between = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    assert utc(berlin("30 2 * * *"), between, 1) == ["10-26 01:30"]


def test_schedule_stays_hourly_across_clock_changes() -> None:
    for begin in (BEFORE_SPRING, BEFORE_AUTUMN):
        times = list(islice(berlin("0 * * * *").ticks(begin), 60))
        assert {b - a for a, b in pairwise(times)} == {timedelta(hours=1)}


def test_schedule_jitter_is_bounded_and_repeatable() -> None:
    schedule = berlin("0 2 * * *", jitter="10m")
    delays = [schedule.delay(t, "night") for t in islice(schedule.ticks(BEFORE_AUTUMN), 50)]
    assert delays == [schedule.delay(t, "night") for t in islice(schedule.ticks(BEFORE_AUTUMN), 50)]
    assert all(timedelta(0) <= d <= timedelta(minutes=10) for d in delays)
    assert len(set(delays)) == 50


def test_describe_next_mentions_clock_changes() -> None:
    lines = berlin("30 2 * * *").describe_next(BEFORE_AUTUMN, "night", 3)
    assert lines[0] == "Sat 2026-10-24 02:30:00 CEST  (2026-10-24 00:30:00 UTC), in 12 h 30 min"
    assert lines[1].endswith("the clocks go back that day (this hour repeats; the run starts in the first one)")
    assert "clocks" not in lines[2]


def test_schedule_describe_has_every_setting() -> None:
    words = berlin("0 2 * * 1-5", jitter="5m", overlap="queue", catch_up="once", max_duration="4h").describe()
    assert words.startswith("At 02:00 on Monday through Friday, Europe/Berlin, up to 5 min later. ")
    assert "A start during a run waits for the end of that run" in words
    assert "Missed starts are replaced by one run" in words
    assert "ends after 4 h" in words


def test_schedule_accepts_crontab_aliases() -> None:
    assert berlin("@daily").cron == "0 0 * * *"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('cron: "0 2 * *"', "minute, hour, day, month and weekday were expected"),
        ('cron: "61 2 * * *"', "not a cron line: Bad minute"),
        ('cron: "0 2 30 2 *"', "not a cron line: Bad day-of-month"),
        ('cron: "0 2 * * *", timezone: Europe/Berln', "a time zone such as Europe/Berlin"),
        ('cron: "0 2 * * *", overlap: wait', "must be 'skip' or 'queue'"),
        ('cron: "0 2 * * *", catchup: once', "did you mean catch_up?"),
        ('cron: "0 2 * * *", jitter: 10', "a duration needs a unit"),
        ('cron: "0 2 * * *", max_duration: 0s', "must be greater than 0"),
        ('cron: "0 2 * * *", keep: {runs: 0}', "must be greater than 0"),
    ],
)
def test_schedule_mistakes_have_their_place(write: Callable[[str], Profile], line: str, expected: str) -> None:
    with pytest.raises(ProfileError, match=r":\d+:\d+: schedule") as e:
        write(f"""
name: good
traffic:
  - {{name: text, payload: {{text: {{tokens: 32}}}}}}
load:
  - {{users: 4, requests: 10}}
schedule: {{{line}}}
""")
    assert expected in str(e.value)
