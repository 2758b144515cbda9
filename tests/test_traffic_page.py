"""docs/traffic.md names every payload and every behaviour with all of its options."""

from pathlib import Path

import pytest

from loadchaos.behaviours import BEHAVIOURS
from loadchaos.payloads import PAYLOADS

PAGE = (Path(__file__).parent.parent / "docs" / "traffic.md").read_text(encoding="utf-8")
SHELVES = [*PAYLOADS.items(), *BEHAVIOURS.items()]


@pytest.mark.parametrize(("name", "entry"), SHELVES, ids=[name for name, _ in SHELVES])
def test_every_entry_is_told_with_its_options(name: str, entry: object) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    fields = entry.Options.model_fields  # type: ignore[attr-defined]  # payloads and behaviours share this by two protocols
    for option, field in fields.items():
        if not field.exclude:
            assert (field.alias or option) in row, option
