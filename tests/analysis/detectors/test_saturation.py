"""A GPU that slows itself down, a full disk, no more files to open: pure functions over hand-made readings."""

from __future__ import annotations

from typing import Any

import pytest

from loadchaos.analysis.detectors.saturation import exhausted, filled, slowed

GB = 2**30
IDLE, CAP, HOT, BRAKE = 0x1, 0x4, 0x40, 0x80


def every_five_s(*reasons: int) -> list[tuple[float, int]]:
    return [(5.0 * n, r) for n, r in enumerate(reasons)]


@pytest.mark.parametrize(
    ("reasons", "found"),
    [
        ([IDLE] * 20, None),
        ([CAP] * 100, None),  # how a GPU runs at full load
        ([CAP | HOT] * 6, None),
        ([CAP, *[CAP | HOT] * 7], (30.0, "too hot (hardware)")),
        ([*[HOT] * 7, CAP], None),  # over by now
        ([HOT, BRAKE, HOT, BRAKE, HOT, BRAKE, HOT], (30.0, "too hot (hardware), power brake")),
        ([HOT, HOT, 0, HOT, HOT, 0, HOT, HOT], None),
    ],
)
def test_a_gpu_slows_itself_down_when_heat_or_power_hold_it_for_half_a_minute(reasons: Any, found: Any) -> None:
    assert slowed(every_five_s(*reasons)) == found


def test_two_readings_far_apart_are_no_stretch() -> None:
    assert slowed([(0.0, HOT), (60.0, HOT)]) is None


@pytest.mark.parametrize(
    ("readings", "full"),
    [
        ([(500 * GB, 1000 * GB), (0.5 * GB, 1000 * GB)], True),
        ([(500 * GB, 1000 * GB), (5 * GB, 1000 * GB)], False),  # half a per cent of much is room enough
        ([(0.4 * GB, 1 * GB), (0.2 * GB, 1 * GB)], False),  # a small one
        ([(0.1 * GB, 1000 * GB), (0, 1000 * GB)], False),  # it was full before we came
        ([(0, 1000 * GB)], False),
        ([(1, 0), (0, 0)], False),
    ],
)
def test_a_disk_is_full_that_was_not_at_first(readings: Any, full: bool) -> None:
    assert filled(readings) is full


@pytest.mark.parametrize(
    ("readings", "near"),
    [
        ([(100, 1024), (980, 1024)], True), ([(100, 1024), (900, 1024)], False), ([(1000, 1024), (1024, 1024)], False),
        ([(5, 0), (5, 0)], False),
    ],
)  # fmt: skip
def test_files_run_out_when_nearly_all_that_may_be_open_are(readings: Any, near: bool) -> None:
    assert exhausted(readings) is near


def readings(history: Any, source: str, name: str, *values: dict[str, float]) -> Any:
    for one in values:
        history.add("device", source=source, host="node-7:9100", device=name, values=one)
        history.work(5)
    return history


def names(history: Any) -> list[tuple[str, str]]:
    return [(f["id"], f["severity"]) for f in history.end().verdict()["failures"]]


def test_each_strain_is_told_once_and_is_a_trouble_of_the_node(history: Any) -> None:
    readings(history.begin(), "dcgm", "gpu0", *[{"gpu_throttle_reasons": float(HOT)}] * 9)
    disk = [{"disk_free_bytes": free * GB, "disk_size_bytes": 1000 * GB} for free in (9.0, 0.1, 0.1)]
    readings(history, "node", "disk /models", *disk)
    readings(history, "node", "host", *[{"host_files_open": n, "host_files_limit": 1000.0} for n in (10.0, 990.0)])
    assert sorted(names(history)) == [
        ("fd_exhausted", "node"),
        ("gpu_throttled", "node"),
        ("no_space_left", "node"),
    ]


def test_a_process_of_the_server_that_may_open_no_more_files_is_told(history: Any) -> None:
    history.begin()
    for n in (20, 700, 1010):
        sample = {"what": "sample", "state": "S", "cpu_s": 1.0, "rss_bytes": 1, "name": "vllm serve"}
        history.add("process", replica="server", pid=10, role="api_server", fds=n, fd_limit=1024, **sample)
        history.work(2)
    assert names(history) == [("fd_exhausted", "node")]


def test_what_strains_a_machine_is_no_cause_of_a_death(history: Any) -> None:
    readings(history.begin(), "dcgm", "gpu0", *[{"gpu_throttle_reasons": float(HOT)}] * 9)
    history.die(history.send(3), code=1).run(5)
    deaths = [f["id"] for f in history.end().verdict()["failures"] if f["severity"] == "engine_death"]
    assert "gpu_throttled" not in deaths
