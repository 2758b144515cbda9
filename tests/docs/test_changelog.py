"""CHANGELOG.md: the newest release is this version, and each change is one entry."""

import itertools
import re
from pathlib import Path

from loadchaos import __version__

LINES = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()


def test_newest_release_is_this_version() -> None:
    released = [m[1] for line in LINES if (m := re.match(r"## \[(\d[^\]]*)\]", line))]
    assert released[0] == __version__


def test_lines_of_one_change_are_one_entry() -> None:
    for before, line in itertools.pairwise(LINES):
        if line.startswith("  "):
            assert before.startswith(("- ", "  ")), f"a line without its entry: {line}"
    entries = [line for line in LINES if line.startswith("- ")]
    assert len(entries) == len(set(entries))
