"""Render the result of a capacity search for a terminal."""

from __future__ import annotations

from pathlib import Path

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.core.units import figure
from loadchaos.report import capacity_text
from loadchaos.report.formatting import clean, columns, short_path, wrapped

_HEAD_WIDTH = 14


_FILES = {"report": "report.html", "json": "capacity.json", "csv": "capacity.csv"}


def render(data: CapacityResult, folder: Path, *, width: int = 100) -> str:
    verdict = (data.verdict or "not finished").upper()
    lines = wrapped(f"{verdict}  ", f"{capacity_text.headline(data)} (exit code {data.exit_code})", width)
    server = " ".join(clean(part, 100) for part in data.server.parts)
    lines += [f"      target: {clean(data.target, 300)}{f': {server}' if server else ''}"]
    phase = capacity_text.phase_text(data)
    lines += wrapped("      traffic: ", phase, width) if phase is not None else []
    lines += [f"      goal: {capacity_text.goal_text(data)}", ""]
    for name, text in capacity_text.facts(data):
        lines += wrapped(f"  {name:{_HEAD_WIDTH - 2}}", text, width)
    if data.failures:
        names = ", ".join(f"{f.id} ({f.steps} steps)" for f in data.failures)
        lines += wrapped(f"  {'failures':{_HEAD_WIDTH - 2}}", names, width)
    steps = ["", *table(data)] if data.steps else []
    return "\n".join([*lines, *steps, "", *_files(data, folder)])


def table(data: CapacityResult) -> list[str]:
    """One row for each step, in the order of the load."""
    heads = ("requests/s" if data.by == "rate" else "users", "status", *capacity_text.STEP_HEADS.values())
    rows = [
        [figure(float(f"{step.load:.4g}")), capacity_text.status_text(step), *capacity_text.step_cells(step)]
        for step in data.by_load
    ]
    return columns([heads, *rows], (1,))


def _files(data: CapacityResult, folder: Path) -> list[str]:
    shown = short_path(folder, "")
    lines = [f"  {name:10}{shown}/{file}" for name, file in _FILES.items()]
    if not data.ended:
        lines.append(f"  continue  loadchaos capacity --resume {shown}")
    return lines
