"""List the runs of a folder with their verdicts (`loadchaos runs`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.formatting import clean, duration, number, parse_time

_TARGET, _FAILURES = 14, 30  # columns they have at least on a narrow terminal


def found(home: Path) -> list[dict[str, Any]]:
    """Read the runs under `home`, oldest first, one mapping each."""
    runs = [_run(RunFolder(p)) for p in home.iterdir() if (p / "events.jsonl").is_file()] if home.is_dir() else []
    return sorted(runs, key=lambda r: (str(r["started"] or ""), r["folder"]))


def _run(folder: RunFolder) -> dict[str, Any]:
    try:
        verdict = orjson.loads(folder.verdict.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        verdict = {}
    started, ended = parse_time(verdict.get("started")), parse_time(verdict.get("ended"))
    target = verdict.get("target") or {}
    outcomes: Mapping[str, int] = verdict.get("outcomes") or {}
    return {
        "folder": str(folder.path),
        "profile": verdict.get("profile"),
        "started": verdict.get("started"),
        # Without a verdict the run is active or was killed; both can be judged.
        "verdict": verdict.get("verdict"),
        "exit_code": verdict.get("exit_code"),
        "lasted_s": (ended - started).total_seconds() if started and ended else None,
        "requests": sum(n for outcome, n in outcomes.items() if outcome != "missed"),
        "failures": [f.get("id") for f in verdict.get("failures") or []],
        "target": " ".join(str(target[k]) for k in ("kind", "dialect", "version") if target.get(k)),
    }


def text(runs: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """Format one line per run, in at most `width` columns.

    On a narrow terminal the failures get more space than the target.
    """
    cells = [("run", "verdict", "duration", "requests", "target", "failures")]
    for r in runs:
        verdict = str(r["verdict"]).upper() if r["verdict"] == "fail" else r["verdict"] or "none yet"
        names = ", ".join(clean(f, 40) for f in r["failures"][:3]) + (" ..." if len(r["failures"]) > 3 else "")
        cells.append(
            (
                Path(r["folder"]).name,
                str(verdict),
                duration(r["lasted_s"]),
                number(r["requests"]),
                clean(r["target"], 34),
                names,
            )
        )
    widths = [max(len(c[i]) for c in cells) for i in range(5)]
    if width is not None:
        left = width - sum(widths[:4]) - 2 * 5 - min(_FAILURES, max(len(c[5]) for c in cells))
        widths[4] = min(widths[4], max(_TARGET, left))
    rows = ([*(_cut(x, w).ljust(w) for x, w in zip(c[:5], widths, strict=True)), c[5]] for c in cells)
    return "\n".join(_cut("  ".join(row).rstrip(), width) for row in rows)


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"
