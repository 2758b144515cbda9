"""Work that takes long shows that it goes on, to whoever watches and to nobody else."""

import os
import subprocess
import sys

import pytest

from loadchaos.core import progress


def test_rows_pass_and_how_many_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    assert list(progress.rows(range(5000), "judging", said.append)) == list(range(5000))
    assert [text.split(",")[0] for text in said[-1:]] == ["judging: 4"]
    assert len(said) < 6


def test_work_that_is_quick_says_nothing() -> None:
    said: list[str] = []
    assert list(progress.rows(range(5000), "judging", said.append)) == list(range(5000))
    assert said == []


_WORK = """
import sys
from loadchaos.core import progress
progress.EVERY_S = 0.0
say = progress.on_terminal()
print(sum(1 for _ in progress.rows(range(3000), "judging", say)))
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_sees_it_and_a_pipe_does_not(terminal: bool) -> None:
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
