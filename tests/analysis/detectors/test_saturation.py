import random
from collections.abc import Sequence
from typing import Any

import pytest

from loadchaos.analysis.detectors.saturation import SaturationDetector, disk_full, files_exhausted, throttled
from tests.analysis.conftest import History
from tests.rows import S

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
def test_throttled_needs_30_seconds_of_heat_or_power_limits(reasons: Any, found: Any) -> None:
    assert throttled(every_five_s(*reasons)) == found


def test_throttled_needs_three_readings() -> None:
    assert throttled([(0.0, HOT), (60.0, HOT)]) is None


@pytest.mark.parametrize(
    ("free", "size", "full"),
    [
        (0.5 * GB, 1000 * GB, True),
        (5 * GB, 1000 * GB, False),  # half a per cent of much is room enough
        (0.2 * GB, 1 * GB, False),  # a small one
        (0, 1000 * GB, True),
    ],
)
def test_disk_is_full_under_one_per_cent_and_one_gib(free: float, size: float, full: bool) -> None:
    assert disk_full(free, size) is full


def test_files_exhausted_at_95_percent_of_the_limit() -> None:
    assert files_exhausted(980, 1024)
    assert not files_exhausted(900, 1024)


def readings(history: History, source: str, name: str, *values: dict[str, float]) -> Any:
    for one in values:
        history.add("device", source=source, host="node-7:9100", device=name, values=one).work(5)
    return history


def names(history: History) -> list[tuple[str, str]]:
    return [(f["id"], f["severity"]) for f in history.end().verdict()["failures"]]


def test_saturation_is_reported_once_as_a_failure_of_the_node(history: History) -> None:
    readings(history.begin(), "dcgm", "gpu0", *[{"gpu_throttle_reasons": float(HOT)}] * 9)
    disk = [{"disk_free_bytes": free * GB, "disk_size_bytes": 1000 * GB} for free in (9.0, 0.1, 0.1)]
    readings(history, "node", "disk /models", *disk)
    readings(history, "node", "host", *[{"host_files_open": n, "host_files_limit": 1000.0} for n in (10.0, 990.0)])
    assert sorted(names(history)) == [
        ("fd_exhausted", "node"),
        ("gpu_throttled", "node"),
        ("no_space_left", "node"),
    ]


def test_saturation_before_the_run_is_not_reported(history: History) -> None:
    full = {"disk_free_bytes": 0.1 * GB, "disk_size_bytes": 1000.0 * GB}
    readings(history.begin(), "node", "disk /models", full, full)
    readings(history, "node", "host", *[{"host_files_open": n, "host_files_limit": 1024.0} for n in (1000.0, 1024.0)])
    assert names(history) == []


def test_saturation_of_a_process_file_limit_is_reported(history: History) -> None:
    history.begin()
    for n in (20, 700, 1010):
        sample = {"what": "sample", "state": "S", "cpu_s": 1.0, "rss_bytes": 1, "name": "vllm serve"}
        history.add("process", replica="server", pid=10, role="api_server", fds=n, fd_limit=1024, **sample)
        history.work(2)
    assert names(history) == [("fd_exhausted", "node")]


def test_saturation_is_no_cause_of_a_death(history: History) -> None:
    readings(history.begin(), "dcgm", "gpu0", *[{"gpu_throttle_reasons": float(HOT)}] * 9)
    history.die(history.send(3), code=1).run(5)
    deaths = [f["id"] for f in history.end().verdict()["failures"] if f["severity"] == "engine_death"]
    assert "gpu_throttled" not in deaths


def leaks(values: Sequence[float]) -> list[str]:
    devices = SaturationDetector()
    for n, value in enumerate(values):
        row = {"row": "device", "at_ns": n * 5 * S, "source": "dcgm", "host": "h", "device": "gpu0"}
        devices.fold({**row, "values": {"gpu_memory_used_bytes": value}})
    return [failure.id for failure in devices.poll(len(values) * 5 * S)]


def test_gpu_memory_leak_is_reported() -> None:
    rng = random.Random(1)
    grows = [60 * GB + n * 0.05 * GB + rng.uniform(0, 0.01) * GB for n in range(200)]
    assert leaks(grows) == ["gpu_memory_leak"]
    assert leaks(grows[:20]) == [], "too short to tell"


def test_gpu_memory_taken_at_start_is_no_leak() -> None:
    assert leaks([70 * GB] * 200) == []
    assert leaks([60 * GB] * 60 + [70 * GB] * 140) == []
    assert leaks([70 * GB * (1 - 0.5 ** (n / 8)) for n in range(200)]) == []
