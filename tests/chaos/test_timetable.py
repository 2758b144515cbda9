"""When attacks are due: the same seed gives the same moments."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.chaos.conditions import ServerFigures, conditions
from loadchaos.chaos.timetable import Timetable, timetable
from loadchaos.core.errors import OptionError
from loadchaos.server.dialects import DIALECTS

VLLM = DIALECTS["vllm"]


def first(times: Timetable, n: int, seed: int = 1) -> list[float]:
    return list(itertools.islice(times.moments(random.Random(seed)), n))


def test_every_begins_one_interval_after_the_load() -> None:
    assert first(Timetable(every_s=2, jitter=0), 3) == [2, 4, 6]


def test_after_moves_the_first_one() -> None:
    assert first(Timetable(every_s=2, after_s=0.5, jitter=0), 3) == [0.5, 2.5, 4.5]


def test_a_window_holds_all_moments() -> None:
    assert list(Timetable(every_s=10, during_s=(30, 55), jitter=0).moments(random.Random(1))) == [30, 40, 50]
    assert list(Timetable(during_s=(30, 55)).moments(random.Random(1))) == [30]


def test_given_moments_are_kept_and_sorted() -> None:
    assert first(Timetable(at_s=(9, 3)), 5) == [3, 9]


def test_without_a_time_it_is_done_once_at_the_begin() -> None:
    assert first(Timetable(), 5) == [0]


def test_times_ends_it() -> None:
    assert len(first(Timetable(every_s=1, times=2), 5)) == 2


def test_a_hold_is_half_the_interval_and_at_most_five_seconds() -> None:
    assert Timetable(every_s=2).hold == 1
    assert Timetable(every_s=60).hold == 5
    assert Timetable(every_s=60, hold_s=20).hold == 20


def test_a_spec_may_be_sparse_or_hold_none() -> None:
    assert timetable({"admin": "x", "every_s": 2.0, "jitter": None, "on": None, "params": None}) == Timetable(
        every_s=2.0
    )


@given(seed=st.integers(0, 1000), jitter=st.floats(0, 1), every=st.floats(0.01, 100))
def test_jitter_stays_within_its_share_and_repeats_with_its_seed(seed: int, jitter: float, every: float) -> None:
    times = Timetable(every_s=every, jitter=jitter)
    moments = first(times, 20, seed)
    assert moments == first(times, 20, seed)
    for k, moment in enumerate(moments, 1):
        assert abs(moment - k * every) <= jitter * every * 1.0001 + 1e-6


# --- when the server is as an attack wants it ---------------------------------------------------------------------------


def metrics(engine: str = "0", **values: float) -> dict[str, Any]:
    return {"row": "metrics", "replica": "a", "engine": engine, "values": values}


@pytest.mark.parametrize(
    ("seen", "holds"),
    [
        ([], False),
        ([metrics(requests_running=7)], False),
        ([metrics(requests_running=8)], True),
        ([metrics("0", requests_running=5), metrics("1", requests_running=3)], True),
        ([metrics(requests_running=9), metrics(requests_running=2)], False),
        ([{**metrics(requests_running=9), "replica": "b"}], False),
    ],
)
def test_an_act_waits_for_the_figures_of_its_own_replica(seen: list[dict[str, Any]], holds: bool) -> None:
    async def story() -> bool:
        figures = ServerFigures()
        for row in seen:
            figures.see(row)
        waiting = asyncio.create_task(figures.until(conditions({"requests_running": ">= 8"}, VLLM), "a"))
        await asyncio.sleep(0)
        done = waiting.done()
        waiting.cancel()
        return done

    assert asyncio.run(story()) is holds


def test_a_figure_that_comes_true_later_is_seen_at_once() -> None:
    async def story() -> None:
        figures = ServerFigures()
        wanted = conditions({"kv_usage_ratio": "> 80%", "in_flight": ">= 2"}, VLLM)
        waiting = asyncio.create_task(figures.until(wanted, "a"))
        await asyncio.sleep(0)
        figures.see(metrics(kv_usage_ratio=0.9))
        await asyncio.sleep(0)
        assert not waiting.done()
        figures.see({"row": "heartbeat", "file": "requests-0.jsonl", "in_flight": 1})
        figures.see({"row": "heartbeat", "file": "requests-1.jsonl", "in_flight": 1})
        await asyncio.wait_for(waiting, 1)

    asyncio.run(story())


@pytest.mark.parametrize("when", [{"requests_runing": ">= 8"}, {"requests_running": "8"}])
def test_a_condition_nobody_can_judge_is_our_users_mistake(when: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="requests_running"):
        conditions(when, VLLM)


def test_our_own_figures_are_summed_over_workers_and_a_wave_of_aborts_lasts_a_second() -> None:
    async def story() -> None:
        figures = ServerFigures()

        def beat(file: str, at_s: float, pictured: int, aborted: int) -> None:
            row = {"row": "heartbeat", "file": file, "at_ns": int(at_s * 1e9), "in_flight": 9, "aborted": aborted}
            figures.see({**row, "images_in_prefill": pictured})

        beat("0", 1.0, 2, 0)
        beat("1", 1.0, 3, 5)
        assert figures.value("images_in_prefill", "a") == 5
        assert figures.value("aborts_per_s", "a") == 0
        beat("0", 1.25, 1, 4)
        beat("1", 1.5, 0, 9)
        assert figures.value("aborts_per_s", "a") == 8
        waiting = asyncio.create_task(figures.until(conditions({"images_in_prefill": ">= 4"}, VLLM), "a"))
        await asyncio.sleep(0)
        assert not waiting.done()
        for n in range(1, 6):
            beat("0", 1.25 + n * 0.25, 4, 4)
        await asyncio.wait_for(waiting, 5)
        assert figures.value("aborts_per_s", "a") == 4  # worker 1 has said nothing since

    asyncio.run(story())
