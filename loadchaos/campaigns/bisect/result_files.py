"""Write the result folder of a bisection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE = "bisect.json"
_LONGEST_REASON = 300


def short_reason(why: str) -> str:
    """Shorten the reason of something untried; the state has all of it."""
    cause = why.partition("; look at the log of the server")[0].partition(". To do: ")[0]
    return cause.replace("the server did not become healthy: ", "")[:_LONGEST_REASON]


def write_result(folder: Path, readme: str, data: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
