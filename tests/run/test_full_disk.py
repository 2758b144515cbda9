"""The disk fills in the middle of a run: it ends, says so, and passes nobody."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Files that may not grow beyond a size: what a full disk looks like without being root."""


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A file system of so many kilobytes; skips where this user may not mount one."""
    made: list[Path] = []

    def make(kilobytes: int) -> Path:
        place = tmp_path / f"tiny-{len(made)}"
        place.mkdir()
        mount = shutil.which("mount")
        if mount is None or os.geteuid() != 0:
            pytest.skip("mounting a tmpfs needs root")
        done = subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no tmpfs could be mounted: {done.stderr.decode().strip()}")
        made.append(place)
        return place

    yield make
    for place in made:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_file_that_cannot_grow_ends_the_run_as_unknown(start: Any, for_long: Any) -> None:
    run = start(**for_long, prefix=(sys.executable, "-c", LIMITED, "20000"))
    assert run.ends(100) == 3
    assert "could not be written" in run.told
    assert "PASS" not in run.told
    assert run.verdict()["verdict"] == "unknown"
    assert run.verdict()["failures"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [24, 64, 128])
def test_a_full_disk_ends_the_run_as_unknown(start: Any, for_long: Any, tiny_disk: Any, kilobytes: int) -> None:
    run = start(**for_long, out=str(tiny_disk(kilobytes)))
    assert run.ends(100) == 3
    assert "written" in run.told
    assert "PASS" not in run.told


@pytest.mark.slow
def test_a_full_disk_does_not_hide_a_failure_that_was_found(start: Any, for_long: Any, tiny_disk: Any) -> None:
    flags = {"max_model_len": 2048, "num_speculative_tokens": 0}
    embedded = {"dialect": "vllm", "era": "0.18", "defects": ["near_max_oob"], "flags": flags}
    traffic = [
        {"name": "text", "weight": 30, "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}},
        {"name": "killer", "weight": 1, "payload": {"text": {"tokens": "1500..1600"}}, "output": {"max": 8}},
    ]
    run = start(**for_long, target={"on_death": "restart", "embedded": embedded}, traffic=traffic,
                out=str(tiny_disk(350)))  # fmt: skip
    assert run.ends(100) == 1
    assert "index_oob_indexkernel" in run.told
