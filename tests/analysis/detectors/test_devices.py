"""What the machines under a server tell, as hand-made readings: Xids, kills for want of memory, GPU memory that leaks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from loadchaos.analysis.detectors.devices import DeviceFaultDetector, oom_kills, xids

S = 1_000_000_000
GB = 2**30


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"gpu_xid_last": 0}, {"gpu_xid_last": 79}, [79]),
        ({"gpu_xid_last": 31}, {"gpu_xid_last": 31}, []),
        ({"gpu_xid_last": 31}, {"gpu_xid_last": 0}, []),
        ({"gpu_xid_last": 31, "gpu_xids_total": 1}, {"gpu_xid_last": 31, "gpu_xids_total": 2}, [31]),
        ({"gpu_xids_total": 1}, {"gpu_xids_total": 2}, [0]),
        ({}, {"gpu_xid_last": 31, "gpu_xids_total": 4}, []),
        ({"gpu_xids_total": 4}, {"gpu_xids_total": 0}, []),
    ],
)
def test_an_xid_is_one_that_was_not_there_in_the_reading_before(before: Any, now: Any, found: list[int]) -> None:
    assert xids(before, now) == found


@pytest.mark.parametrize(("before", "now", "found"), [(3, 5, 2), (3, 3, 0), (5, 0, 0), (None, 7, 0)])
def test_kills_for_want_of_memory_are_counted_from_the_first_reading(before: Any, now: int, found: int) -> None:
    known = {} if before is None else {"host_oom_kills_total": before}
    assert oom_kills(known, {"host_oom_kills_total": now}) == found


def device(history: Any, source: str, name: str, **values: float) -> None:
    history.add("device", source=source, host="gpu-node-7:9400", device=name, values=values)


def test_an_xid_that_moved_is_a_trouble_of_the_node_under_nvidias_name(history: Any) -> None:
    device(history.begin(), "dcgm", "gpu3", gpu_xid_last=31)
    history.work(5)
    device(history, "dcgm", "gpu3", gpu_xid_last=79)
    verdict = history.work(20).end().verdict()
    failure = verdict["failures"][0]
    assert (failure["id"], failure["severity"], failure["count"]) == ("xid_79", "node", 1)
    assert failure["evidence"] == {"source": "dcgm gpu-node-7:9400 gpu3", "line": None, "text": "Xid 79 is the newest"}


def test_a_death_beside_an_xid_is_named_by_it_and_counted_once(history: Any) -> None:
    device(history.begin(), "dcgm", "gpu0", gpu_xid_last=0)
    ids = history.work(5).send(3)
    history.die(ids, code=1)
    device(history, "dcgm", "gpu0", gpu_xid_last=79)
    verdict = history.run(15).end().verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("xid_79", "engine_death")]


def test_a_kill_for_want_of_memory_on_the_host_explains_a_death_and_alone_is_the_nodes(history: Any) -> None:
    device(history.begin(), "node", "host", host_oom_kills_total=3)
    history.work(5)
    device(history, "node", "host", host_oom_kills_total=4)
    verdict = history.work(20).end().verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("oom_killer", "node")]


def test_a_death_beside_an_oom_kill_of_the_host_is_named_so(history: Any) -> None:
    device(history.begin(), "node", "host", host_oom_kills_total=3)
    ids = history.work(5).send(3)
    history.die(ids, signal=9)
    device(history, "node", "host", host_oom_kills_total=4)
    verdict = history.run(15).end().verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("oom_killer", "engine_death")]


def leaks(values: Sequence[float]) -> list[str]:
    devices = DeviceFaultDetector()
    for n, value in enumerate(values):
        row = {"row": "device", "at_ns": n * 5 * S, "source": "dcgm", "host": "h", "device": "gpu0"}
        devices.feed({**row, "values": {"gpu_memory_used_bytes": value}})
    return [seen.id for seen in devices.leaks(len(values) * 5 * S)]


def test_gpu_memory_that_grows_and_does_not_level_off_is_a_leak_told_once() -> None:
    rng = random.Random(1)
    grows = [60 * GB + n * 0.05 * GB + rng.uniform(0, 0.01) * GB for n in range(200)]
    assert leaks(grows) == ["gpu_memory_leak"]
    assert leaks(grows[:20]) == [], "too short to tell"


def test_gpu_memory_that_is_taken_at_start_or_steps_once_is_none() -> None:
    assert leaks([70 * GB] * 200) == []
    assert leaks([60 * GB] * 60 + [70 * GB] * 140) == []
    assert leaks([70 * GB * (1 - 0.5 ** (n / 8)) for n in range(200)]) == []
