"""Differences between expected and actual outputs."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.archive import HERE
from tests.golden.outputs import outputs

EXPECTED = HERE / "expected"
_MOST_CHARACTERS = 160
_ABSENT = "(absent)"


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Describe each difference: path, expected and actual value."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}):
            yield from differences(
                expected.get(key, _ABSENT), actual.get(key, _ABSENT), f"{path}.{key}" if path else key
            )
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for i, pair in enumerate(zip(expected, actual, strict=True)):
            yield from differences(*pair, f"{path}[{i}]")
    elif expected != actual or type(expected) is not type(actual):
        yield f"{path}: expected {_cut(expected)}, actual {_cut(actual)}"


def _cut(value: Any) -> str:
    text = value if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"


def settle() -> None:
    """Make the outputs of this process independent of its terminal, time zone and variables."""
    for name in ("CI", "GITHUB_STEP_SUMMARY", "FORCE_COLOR"):
        os.environ.pop(name, None)
    os.environ |= {"TZ": "UTC", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "100", "LINES": "40", "TERM": "dumb"}
    time.tzset()


def compared(name: str, home: Path = EXPECTED) -> tuple[str, dict[str, Any], list[str]]:
    """Name, outputs and differences of a ledger or group; `home` has the expected files."""
    found, file = outputs(name), home / f"{name}.json"
    expected = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return name, found, list(differences(expected, found))
