"""What takes CPU time from loadchaos on its own machine."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadchaos.server.monitor import host
from loadchaos.server.monitor.host import HostCounters, row_between


def test_shares_are_of_all_cpus_and_of_the_time_between() -> None:
    before = HostCounters(100.0, 800.0, 600.0, 10.0, 40, 4, 2**20)
    row = row_between(before, HostCounters(105.0, 820.0, 605.0, 14.0, 90, 29, 3 * 2**20))
    assert (row["seconds"], row["busy"], row["steal"]) == (5.0, 0.75, 0.2)
    assert (row["periods"], row["throttled"], row["swapped_bytes"]) == (50, 25, 2 * 2**20)


@pytest.mark.parametrize(
    ("own", "stat"),
    [
        ("0::/box/a\n", "box/a"),
        ("0::/box/a\n", "."),  # a container that sees its own cgroup as the root
        ("3:cpuset:/\n4:cpuacct,cpu:/box\n0::/\n", "cpuacct,cpu/box"),
        ("3:cpuset:/\n1:cpu:/gone\n", "cpu"),
    ],
)
def test_throttling_is_read_from_our_own_cgroup(
    own: str, stat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / stat).mkdir(parents=True, exist_ok=True)
    (tmp_path / stat / "cpu.stat").write_text("nr_periods 12\nnr_throttled 5\nthrottled_usec 100\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_OWN_CGROUPS", tmp_path / "own")
    found = host.counters()
    assert (found.periods, found.throttled) == (12, 5)
    assert found.all_s > found.idle_s >= 0.0


async def test_rows_follow_each_other_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Mapping[str, Any]] = []
    monkeypatch.setattr(host, "EVERY_S", 0.05)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(host.watch_host(rows.append), 1.0)
    assert len(rows) >= 2
    assert sum(row["seconds"] for row in rows[1:]) == pytest.approx(
        (rows[-1]["at_ns"] - rows[0]["at_ns"]) / 1e9, abs=0.05
    )
