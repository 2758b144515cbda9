"""Write docs/compatibility.md from docs/compatibility.json: `python -m docs.compatibility`.

scripts/real/compatibility.py measures the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_HEAD = """# Compatibility

What loadchaos finds on real servers. `scripts/real/compatibility.py` starts each server, describes it with `loadchaos probe`
and runs the profile `smoke`; this page is generated from its results. "Stand-in" names the part that is not real, on a
machine without a GPU.

"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Render the page."""
    lines = [
        "| server | stand-in | found as | context | KV cache | token counts | metrics | development endpoints | `smoke` |",
        "|" + "---|" * 9,
    ]
    for result in results.values():
        facts = result["facts"]
        cells = (
            result["title"],
            result["stand_in"] or "none",
            " ".join(str(part) for part in (facts["dialect"], facts["version"]) if part),
            _value(facts["max_model_len"] or facts["input_limit"]),
            _value(facts["capacity_tokens"]),
            f"`{result['token_counts']}`" if result["token_counts"] else "unknown",
            _value(facts["metrics"]),
            _value(facts["development_endpoints"]),
            _verdict(result, "smoke"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    for result in results.values():
        fits = [f"`{p['name']}`" for p in result["profiles"] if p["applies"]]
        lines += ["", f"## {result['title']}", "", f"Measured {result['measured']}.", ""]
        lines += [f"- Profiles that fit: {', '.join(fits) or 'none'}"]
        lines += [
            f"- `{p['name']}` does not fit: {'; '.join(p['lacks'])}" for p in result["profiles"] if not p["applies"]
        ]
        lines += [f"- Unknown: {text}" for text in result["unknown"]]
    return _HEAD + "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _verdict(result: Mapping[str, Any], name: str) -> str:
    row = next((row for row in result["verdicts"] if row["name"] == name and row["verdict"]), None)
    if row is None:
        return "not run"
    found = [f["id"] for f in row["failures"] or ()] or row["unknown"] or ([row["error"]] if row["error"] else [])
    return f"{row['verdict']}, {row['requests'] or 0:,} requests" + (f": {'; '.join(found)}" if found else "")


def main() -> None:
    """Write the page."""
    results = json.loads((FOLDER / "compatibility.json").read_text())
    (FOLDER / "compatibility.md").write_text(page(results))


if __name__ == "__main__":
    main()
