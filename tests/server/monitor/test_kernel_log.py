"""The kernel's log: a file of its records stands in for /dev/kmsg."""

import asyncio
from pathlib import Path
from typing import Any

from loadchaos.core.redact import Redactor
from loadchaos.server.monitor.log_follower import FollowedLog, LogFollower
from tests.rows import EmittedRows

OLD = "6,100,1000000,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=of another life\n"
NEW = """6,101,2000001,-;usb 1-1: new high-speed USB device number 2 using xhci_hcd
 SUBSYSTEM=usb
 DEVICE=c189:1
4,102,3000002,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
3,103,4000003,c;Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:1kB, anon-rss:1kB
"""


def followed(tmp_path: Path, kernel: Path, rows: EmittedRows, until: Any) -> str:
    async def story() -> None:
        follower = LogFollower(
            FollowedLog(f"kmsg:{kernel}", "", "kernel", "kernel"), tmp_path / "logs", rows.append, Redactor()
        )
        follower.start()
        await until()
        await follower.stop()

    asyncio.run(story())
    return (tmp_path / "logs" / "kernel.log").read_text()


def test_kernel_source_keeps_only_xids_and_oom_kills(tmp_path: Path, rows: EmittedRows) -> None:
    kernel = tmp_path / "kmsg"
    kernel.write_text(OLD)

    async def more() -> None:
        with kernel.open("a") as f:
            f.write(NEW[:150])
            f.flush()
            await asyncio.sleep(0)
            f.write(NEW[150:])

    assert followed(tmp_path, kernel, rows, more).splitlines() == [
        "[    3.000002] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "[    4.000003] Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:1kB, anon-rss:1kB",
    ]
    assert rows.of("gap") == []


def test_kernel_source_without_permission_writes_one_gap(tmp_path: Path, rows: EmittedRows) -> None:
    async def gap_written() -> None:
        await rows.until(lambda: rows.of("gap", source="kernel"))

    assert followed(tmp_path, tmp_path / "none", rows, gap_written) == ""
    [gap] = rows.of("gap")
    assert gap["seconds"] == 0.0
    assert gap["why"].startswith(f"{tmp_path}/none cannot be read: No such file or directory; Xid errors")
