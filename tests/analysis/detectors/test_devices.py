from typing import Any

import pytest

from loadchaos.analysis.detectors.devices import new_oom_kills, new_xids
from tests.analysis.conftest import History


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
def test_new_xids_compare_two_readings(before: Any, now: Any, found: list[int]) -> None:
    assert new_xids(before, now) == found


@pytest.mark.parametrize(("before", "now", "found"), [(3, 5, 2), (3, 3, 0), (5, 0, 0), (None, 7, 0)])
def test_new_oom_kills_count_from_the_first_reading(before: Any, now: int, found: int) -> None:
    known = {} if before is None else {"host_oom_kills_total": before}
    assert new_oom_kills(known, {"host_oom_kills_total": now}) == found


def device(history: History, source: str, name: str, **values: float) -> None:
    history.add("device", source=source, host="gpu-node-7:9400", device=name, values=values)


def test_xid_alone_is_a_failure_of_the_node(history: History) -> None:
    device(history.begin(), "dcgm", "gpu3", gpu_xid_last=31)
    history.work(5)
    device(history, "dcgm", "gpu3", gpu_xid_last=79)
    verdict = history.work(20).end().verdict()
    failure = verdict["failures"][0]
    assert (failure["id"], failure["severity"], failure["count"]) == ("xid_79", "node", 1)
    assert failure["evidence"] == {"source": "dcgm gpu-node-7:9400 gpu3", "line": None, "text": "new Xid 79"}


def test_oom_kill_alone_is_a_failure_of_the_node(history: History) -> None:
    device(history.begin(), "node", "host", host_oom_kills_total=3)
    history.work(5)
    device(history, "node", "host", host_oom_kills_total=4)
    verdict = history.work(20).end().verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("oom_killer", "node")]


@pytest.mark.parametrize(
    ("name", "place", "series", "death", "known"),
    [
        ("dcgm", "gpu0", ("gpu_xid_last", 0, 79), {"code": 1}, "xid_79"),
        ("node", "host", ("host_oom_kills_total", 3, 4), {"signal": 9}, "oom_killer"),
    ],
    ids=["Xid", "OOM kill"],
)
def test_device_explains_a_death_and_counts_once(
    name: str, place: str, series: tuple[str, int, int], death: dict[str, int], known: str, history: History
) -> None:
    metric, before, after = series
    device(history.begin(), name, place, **{metric: before})
    ids = history.work(5).send(3)
    history.die(ids, **death)
    device(history, name, place, **{metric: after})
    verdict = history.run(15).end().verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [(known, "engine_death")]
