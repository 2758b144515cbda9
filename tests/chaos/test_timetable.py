import asyncio
import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.chaos.conditions import ServerFigures, parse_conditions
from loadchaos.chaos.timetable import Timetable
from loadchaos.core.errors import OptionError
from loadchaos.core.typed_json import from_json
from loadchaos.server.dialects import DIALECTS

VLLM = DIALECTS["vllm"]


def first(times: Timetable, n: int, seed: int = 1) -> list[float]:
    return list(itertools.islice(times.moments(random.Random(seed)), n))


TIMES = {
    "every begins after one interval": (Timetable(every_s=2, jitter=0), [2, 4, 6, 8]),
    "after moves the first act": (Timetable(every_s=2, after_s=0.5, jitter=0), [0.5, 2.5, 4.5, 6.5]),
    "a window contains all acts": (Timetable(every_s=10, during_s=(30, 55), jitter=0), [30, 40, 50]),
    "a window alone begins with the act": (Timetable(during_s=(30, 55)), [30]),
    "at is the only act": (Timetable(at_s=9), [9]),
    "without times it acts once at the start": (Timetable(), [0]),
    "times limits the acts": (Timetable(every_s=1, times=2, jitter=0), [1, 2]),
}


@pytest.mark.parametrize(("times", "moments"), TIMES.values(), ids=TIMES)
def test_timetable_moments_follow_from_its_times(times: Timetable, moments: list[float]) -> None:
    assert first(times, 4) == moments


def test_timetable_hold_is_half_the_interval_and_at_most_five_seconds() -> None:
    assert Timetable(every_s=2).hold == 1
    assert Timetable(every_s=60).hold == 5
    assert Timetable(every_s=60, hold_s=20).hold == 20


def test_timetable_of_an_entry_takes_missing_and_none_values_for_the_default() -> None:
    entry = {"admin": "x", "every_s": 2.0, "at_s": 0.0, "for_s": 3, "jitter": None, "on": None, "params": None}
    assert from_json(Timetable, entry) == Timetable(every_s=2.0, at_s=0.0, hold_s=3)


@given(seed=st.integers(0, 1000), jitter=st.floats(0, 1), every=st.floats(0.01, 100))
def test_timetable_jitter_stays_within_its_share_and_repeats_with_its_seed(
    seed: int, jitter: float, every: float
) -> None:
    times = Timetable(every_s=every, jitter=jitter)
    moments = first(times, 20, seed)
    assert moments == first(times, 20, seed)
    for k, moment in enumerate(moments, 1):
        assert abs(moment - k * every) <= jitter * every * 1.0001 + 1e-6


# --- conditions on the server's figures ---------------------------------------------------------------------------------


def metrics(engine: str = "0", **values: float) -> dict[str, Any]:
    return {"row": "metrics", "replica": "a", "engine": engine, "values": values}


@pytest.mark.parametrize(
    ("fed", "holds"),
    [
        ([], False),
        ([metrics(requests_running=7)], False),
        ([metrics(requests_running=8)], True),
        ([metrics("0", requests_running=5), metrics("1", requests_running=3)], True),
        ([metrics(requests_running=9), metrics(requests_running=2)], False),
        ([{**metrics(requests_running=9), "replica": "b"}], False),
    ],
)
def test_conditions_wait_for_the_figures_of_their_own_replica(fed: list[dict[str, Any]], holds: bool) -> None:
    async def run() -> bool:
        figures = ServerFigures()
        for row in fed:
            figures.fold(row)
        waiting = asyncio.create_task(figures.until(parse_conditions({"requests_running": ">= 8"}, VLLM), "a"))
        await asyncio.sleep(0)
        done = waiting.done()
        waiting.cancel()
        return done

    assert asyncio.run(run()) is holds


async def test_conditions_that_become_true_end_the_wait() -> None:
    figures = ServerFigures()
    conditions = parse_conditions({"kv_usage_ratio": "> 80%", "in_flight": ">= 2"}, VLLM)
    waiting = asyncio.create_task(figures.until(conditions, "a"))
    await asyncio.sleep(0)
    figures.fold(metrics(kv_usage_ratio=0.9))
    await asyncio.sleep(0)
    assert not waiting.done()
    figures.fold({"row": "heartbeat", "file": "requests-0.jsonl", "in_flight": 1})
    figures.fold({"row": "heartbeat", "file": "requests-1.jsonl", "in_flight": 1})
    await asyncio.wait_for(waiting, 1)


@pytest.mark.parametrize("when", [{"requests_runing": ">= 8"}, {"requests_running": "8"}])
def test_parse_conditions_refuses_unknown_figures_and_bad_comparisons(when: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="requests_running"):
        parse_conditions(when, VLLM)


async def test_worker_figures_are_summed_and_aborts_count_for_one_second() -> None:
    figures = ServerFigures()

    def beat(file: str, at_s: float, pictured: int, aborted: int) -> None:
        row = {"row": "heartbeat", "file": file, "at_ns": int(at_s * 1e9), "in_flight": 9, "aborted": aborted}
        figures.fold({**row, "images_in_prefill": pictured})

    beat("0", 1.0, 2, 0)
    beat("1", 1.0, 3, 5)
    assert figures.value("images_in_prefill", "a") == 5
    assert figures.value("aborts_per_s", "a") == 0
    beat("0", 1.25, 1, 4)
    beat("1", 1.5, 0, 9)
    assert figures.value("aborts_per_s", "a") == 8
    waiting = asyncio.create_task(figures.until(parse_conditions({"images_in_prefill": ">= 4"}, VLLM), "a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    for n in range(1, 6):
        beat("0", 1.25 + n * 0.25, 4, 4)
    await asyncio.wait_for(waiting, 5)
    assert figures.value("aborts_per_s", "a") == 4  # worker 1 has sent no heartbeat since
