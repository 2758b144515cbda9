import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from loadchaos.core.expectation_names import NAMES
from loadchaos.core.units import duration_s
from loadchaos.profile.client_limits import ClientLimits
from loadchaos.profile.profile import AcceptedFailure, Exposure, Profile
from loadchaos.profile.target import Target
from loadchaos.profile.traffic import Traffic

PAGE = (Path(__file__).parents[2] / "docs" / "profile.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]


def test_profile_page_example_is_valid(write: Callable[..., Profile]) -> None:
    example = PAGE.split("\n\n")[1]
    profile = write(textwrap.dedent(example))
    assert profile.traffic_names() == ["text", "images"]


@pytest.mark.parametrize("part", [Profile, Target])
def test_profile_page_has_a_row_for_every_key(part: type[BaseModel]) -> None:
    heads = " ".join(row.split("|")[1] for row in ROWS)
    assert [name for name in part.model_fields if f"`{name}`" not in heads] == []


@pytest.mark.parametrize("part", [Traffic, ClientLimits, Exposure, AcceptedFailure])
def test_profile_page_has_every_nested_key(part: type[BaseModel]) -> None:
    names = [field.alias or name for name, field in part.model_fields.items()]
    assert [name for name in names if f"`{name}`" not in PAGE and f"{name}:" not in PAGE] == []


@pytest.mark.parametrize("name", ["first_byte", "between_bytes", "total", "retry_idle", "backoff", "backoff_max"])
def test_profile_page_has_the_default_of_each_client_limit(name: str) -> None:
    (row,) = (row for row in ROWS if row.startswith("| `limits` |"))
    shown = re.search(rf"`{name}` \(([^)]+)\)", row)
    assert shown is not None
    assert duration_s(shown[1]) == ClientLimits.model_fields[name].default


def test_profile_page_has_every_expectation_with_its_meaning() -> None:
    assert [name for name, (_, meaning) in NAMES.items() if f"| `{name}` | {meaning} |" not in ROWS] == []
