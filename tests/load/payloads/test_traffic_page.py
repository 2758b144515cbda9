import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from loadchaos.load.behaviours import BEHAVIOURS
from loadchaos.load.payloads import PAYLOADS
from loadchaos.profile.base import ProfilePart

LIVE_ONLY = ("question", "think", "system", "branches", "tool_rounds", "tool_result")
PAGE = (Path(__file__).parents[3] / "docs" / "traffic.md").read_text(encoding="utf-8")
SHELVES = [*PAYLOADS.items(), *BEHAVIOURS.items()]


def row_of(name: str) -> str:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    return row


def values(row: str) -> Iterator[tuple[str, str]]:
    """Yield (option, value as YAML) of a row, each choice by itself."""
    options = row.split("|")[2]
    for name, value in re.findall(r"`(\w+)` \(((?:\[[^]]*\]|\{[^}]*\}|[^()\s:]+))", options):
        yield name, value
    for name, choices in re.findall(r"`(\w+): ([^`]*)`", options):
        yield from ((name, choice) for choice in choices.split(", "))


@pytest.mark.parametrize(("name", "entry"), SHELVES, ids=[name for name, _ in SHELVES])
def test_traffic_page_values_are_valid(name: str, entry: type[ProfilePart], tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"prompt": "hello"}')
    needs: dict[str, dict[str, Any]] = {
        "abort": {"at_token": 1},
        "requests": {"file": str(tmp_path / "own.jsonl")},
    }
    shown = list(values(row_of(name)))
    assert len(shown) >= len(re.findall(r"` \(|`\w+: ", row_of(name).split("|")[2]))
    for option, text in shown:
        others = {} if option in ("before", "after") else needs.get(name, {})
        if name == "conversation" and option in LIVE_ONLY:
            others = {"answers": "live"}
        entry.model_validate({**others, option: YAML(typ="safe", pure=True).load(text)})


@pytest.mark.parametrize(("name", "entry"), SHELVES, ids=[name for name, _ in SHELVES])
def test_traffic_page_lists_every_entry_with_its_options(name: str, entry: type[ProfilePart]) -> None:
    row = row_of(name)
    for option, field in entry.model_fields.items():
        if not field.exclude:
            assert (field.alias or option) in row, option
