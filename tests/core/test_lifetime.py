"""Children that end with the process that started them, whatever they do."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from loadchaos.core.lifetime import guard
from tests.waiting import until

BLOCKED = {
    "spins": "while True: pass",
    "sleeps": "import time; time.sleep(1000)",
    "greenlet spins": "import gevent; gevent.spawn(lambda: [None for _ in iter(int, 1)]); gevent.sleep(1000)",
}


def parent_of(child: str) -> subprocess.Popen[str]:
    """A process that starts `python -c child` with its own pid as the argument, prints the child's pid, and waits."""
    code = textwrap.dedent("""
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
        child.stdout.readline()
        print(child.pid, flush=True)
        time.sleep(1000)
    """)
    return subprocess.Popen([sys.executable, "-c", code, child], stdout=subprocess.PIPE, text=True)


def killed(parent: subprocess.Popen[str]) -> int:
    """Kill it; return its child's pid."""
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    return pid


@pytest.mark.parametrize("doing", BLOCKED)
def test_child_ends_with_its_parent_though_its_loop_is_blocked(doing: str) -> None:
    patch = "from gevent import monkey; monkey.patch_all()\n" if "greenlet" in doing else ""
    pid = killed(
        parent_of(
            f"{patch}import sys\nfrom loadchaos.core.lifetime import end_with\n"
            f"end_with(int(sys.argv[1]), 0.2)\nprint(1, flush=True)\n{BLOCKED[doing]}"
        )
    )
    try:
        until(lambda: not psutil.pid_exists(pid), "the end of the child", 20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_child_of_a_parent_that_has_ended_already_ends() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    code = (
        "import sys, time\nfrom loadchaos.core.lifetime import end_with\nend_with(int(sys.argv[1]), 0)\ntime.sleep(60)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(gone.pid)], check=False, timeout=30).returncode == 1


def test_guard_undoes_when_its_starter_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "undone"
    code = (
        "import sys, time\nfrom loadchaos.core.lifetime import guard\n"
        f"guard('touch \"$1\"', {str(mark)!r})\nprint(1, flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1)
    assert not mark.exists()
    process.kill()
    process.communicate()
    until(mark.exists, "the undo", 10)


def test_guard_that_is_killed_undoes_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "undone"
    process = guard('touch "$1"', str(mark))
    process.kill()
    process.communicate()
    assert not mark.exists()
