import json
from pathlib import Path

import pytest

from loadchaos.analysis.classify.rejoin import rejoin
from loadchaos.core.whole_lines import WholeLine
from tests.crash_logs import CRASHES, log_text
from tests.invoking import output_of

DEATH = log_text(CRASHES / "vllm/encoder-cache-miss-in-the-drafter.log").splitlines()
CAUSE = next(n for n, line in enumerate(DEATH) if "AssertionError: Encoder cache miss" in line)


def only_failure(tmp_path: Path, lines: list[str]) -> tuple[str, str, int, int]:
    (tmp_path / "x.log").write_text("\n".join(lines) + "\n")
    [failure] = json.loads(output_of("classify", "--json", tmp_path / "x.log", code=1))
    return failure["id"], failure["title"], failure["evidence"]["line"], len(failure["frames"])


@pytest.mark.parametrize("width", [80, 100, 121, 200])
def test_rejoin_unwraps_a_log_copied_from_a_terminal(tmp_path: Path, width: int) -> None:
    wrapped = [[line[i : i + width] for i in range(0, max(len(line), 1), width)] for line in DEATH]
    id_, title, line, frames = only_failure(tmp_path, [piece for pieces in wrapped for piece in pieces])
    assert (id_, title, frames) == (*only_failure(tmp_path, DEATH)[:2], only_failure(tmp_path, DEATH)[3])
    assert line == sum(map(len, wrapped[:CAUSE])) + 1


@pytest.mark.parametrize("path", sorted(CRASHES.rglob("*.log")), ids=lambda p: p.stem)
def test_rejoin_leaves_an_ordinary_log_alone(path: Path) -> None:
    lines = log_text(path).splitlines()
    assert list(rejoin(lines)) == [WholeLine(line, n) for n, line in enumerate(lines, 1)]


def test_rejoin_leaves_lines_of_equal_length_alone() -> None:
    lines = [f"INFO 11-20 15:53:{n:02d} [loggers.py:123] Engine 000: Running: {n:02d} reqs" for n in range(60)]
    assert list(rejoin(lines)) == [WholeLine(line, n) for n, line in enumerate(lines, 1)]


def test_rejoin_gives_a_part_without_an_end() -> None:
    half = "2026-01-01T00:00:00Z stderr P half"
    assert list(rejoin([half])) == [WholeLine(half, 1)]
