"""docs/profile.md has every key of a profile, every name that may be expected, and an example that is one."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from loadchaos.profile.expectation import NAMES
from loadchaos.profile.profile import AcceptedFailure, Exposure, Limits, Profile
from loadchaos.profile.target import Target
from loadchaos.profile.traffic import Traffic

PAGE = (Path(__file__).parents[2] / "docs" / "profile.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]


def test_the_example_is_a_profile(write: Callable[..., Profile]) -> None:
    example = PAGE.split("\n\n")[1]
    profile = write(textwrap.dedent(example))
    assert profile.traffic_names() == ["text", "images"]


@pytest.mark.parametrize("part", [Profile, Target])
def test_every_key_has_a_row(part: type[BaseModel]) -> None:
    heads = " ".join(row.split("|")[1] for row in ROWS)
    assert [name for name in part.model_fields if f"`{name}`" not in heads] == []


@pytest.mark.parametrize("part", [Traffic, Limits, Exposure, AcceptedFailure])
def test_every_key_of_a_part_is_told_in_its_row(part: type[BaseModel]) -> None:
    assert [name for name in part.model_fields if f"`{name}`" not in PAGE and f"{name}:" not in PAGE] == []


def test_every_name_that_may_be_expected_is_told_with_its_meaning() -> None:
    assert [name for name, (_, meaning) in NAMES.items() if f"| `{name}` | {meaning} |" not in ROWS] == []
