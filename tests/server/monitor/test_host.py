"""What takes CPU time from loadchaos on its own machine."""

import asyncio
import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadchaos.server.monitor import host
from loadchaos.server.monitor.host import HostCounters, row_between
from tests.waiting import until


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


def test_cpu_time_of_others_is_what_neither_we_nor_the_server_used() -> None:
    before = HostCounters(100.0, 800.0, 600.0, 10.0, 40, 4, 2**20)
    now = HostCounters(105.0, 820.0, 605.0, 14.0, 90, 29, 3 * 2**20)
    assert row_between(before, now, host.used_s({7: 1.0, 8: 5.0}, {7: 3.0, 9: 8.0})).get("others") == 0.25
    assert "others" not in row_between(before, now, host.used_s(None, {7: 3.0}))


def test_cpu_time_of_a_server_is_known_where_its_processes_are_seen() -> None:
    spin = f"{shlex.quote(sys.executable)} -c 'while True: pass' >&2 & echo $!"
    done = subprocess.run(["sh", "-c", spin], stdout=subprocess.PIPE, text=True, check=True)
    orphan = psutil.Process(int(done.stdout))
    try:
        before = host.known_cpu_s([orphan.pid])
        assert before is not None
        assert {os.getpid(), orphan.pid} <= set(before)
        until(lambda: (host.used_s(before, host.known_cpu_s([orphan.pid])) or 0.0) > 0.3, "its CPU time")
        assert orphan.pid not in (host.known_cpu_s([os.getpid()]) or {})
    finally:
        orphan.kill()
    assert host.known_cpu_s([None]) is None
    assert host.known_cpu_s([]) is None


async def test_rows_follow_each_other_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Mapping[str, Any]] = []
    monkeypatch.setattr(host, "EVERY_S", 0.05)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(host.watch_host(rows.append), 1.0)
    assert len(rows) >= 2
    assert sum(row["seconds"] for row in rows[1:]) == pytest.approx(
        (rows[-1]["at_ns"] - rows[0]["at_ns"]) / 1e9, abs=0.05
    )
