from pathlib import Path
from typing import Any

import pytest

from loadchaos.load.disk_space import REQUEST_BYTES, SECOND_BYTES, DiskEstimate, estimate
from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import Profile, from_mapping

TEXT = {"name": "text", "payload": {"text": {"tokens": 16}}, "output": {"max": 8}}


def profile(*load: dict[str, Any]) -> Profile:
    return from_mapping({"name": "p", "traffic": [TEXT], "load": list(load)}, full_registry())


@pytest.mark.parametrize(
    ("load", "duration_s", "requests", "seconds"),
    [
        ({"rate": "10/s", "for": "1000s"}, None, 10_000, 1000),
        ({"rate": "10/s", "for": "1000s"}, 100.0, 1_000, 100),
        ({"users": 4, "requests": 50, "rounds": 2}, None, 100, 0),
        ({"users": 4, "for": "100s"}, None, 400, 100),
    ],
)
def test_disk_estimate_follows_from_requests_and_time(
    tmp_path: Path, load: dict[str, Any], duration_s: float | None, requests: int, seconds: int
) -> None:
    found = estimate(profile(load), 0, tmp_path, duration_s)
    assert found.needed == requests * REQUEST_BYTES + seconds * SECOND_BYTES
    assert found.free > 0


def test_disk_estimate_of_a_long_run_counts_parquet(tmp_path: Path) -> None:
    load = {"rate": "10/s", "for": "24h"}
    day, hours = (estimate(profile(load), 0, tmp_path, h * 3600.0).needed for h in (24, 2))
    assert day == pytest.approx(hours * (1 + 11 / 8), rel=0.01)


def test_disk_estimate_leaves_a_tenth_free() -> None:
    assert DiskEstimate(90, 100).fits
    assert not DiskEstimate(91, 100).fits
    assert DiskEstimate(3 << 30, 2 << 30).describe() == "the ledger will need about 3.0 GB, but only 2.0 GB are free"
