import os
import subprocess
import sys

import pytest

from loadchaos.core import progress


def test_progress_rows_pass_through_with_a_count_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    assert list(progress.rows(range(5000), "judging", lines.append)) == list(range(5000))
    assert [text.split(",")[0] for text in lines[-1:]] == ["judging: 4"]
    assert len(lines) < 6


def test_progress_of_quick_work_prints_nothing() -> None:
    lines: list[str] = []
    assert list(progress.rows(range(5000), "judging", lines.append)) == list(range(5000))
    assert lines == []


_WORK = """
import sys
from loadchaos.core import progress
progress.EVERY_S = 0.0
say = progress.on_terminal()
print(sum(1 for _ in progress.rows(range(3000), "judging", say)))
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_prints_on_a_terminal_only(terminal: bool) -> None:
    ours, theirs = os.openpty() if terminal else os.pipe()
    argv = [sys.executable, "-c", _WORK]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=60, check=True)
    if terminal:
        assert b"judging: 1,024 rows so far" in os.read(ours, 4096)
    os.close(theirs)
    if not terminal:
        assert os.read(ours, 4096) == b""
    os.close(ours)
    assert done.stdout == "3000\n"
