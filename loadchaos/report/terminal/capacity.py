"""Render the result of a capacity search for a terminal."""

from __future__ import annotations

import textwrap
from pathlib import Path

from loadchaos.analysis.capacity.result import CapacityResult, CapacityStep, Unit
from loadchaos.core.units import figure
from loadchaos.report.capacity_text import (
    STEP_HEADS,
    facts,
    goal_text,
    headline,
    load_text,
    phase_text,
    status_text,
    step_cells,
)
from loadchaos.report.formatting import clean, duration, short_path

_HEAD_WIDTH = 14


def render(data: CapacityResult, folder: Path, *, width: int = 100) -> str:
    verdict = (data.verdict or "not finished").upper()
    lines = _wrapped(f"{verdict}  ", f"{headline(data)} (exit code {data.exit_code})", width)
    server = " ".join(clean(part, 100) for part in data.server.parts)
    lines += [f"      target: {clean(data.target, 300)}{f': {server}' if server else ''}"]
    phase = phase_text(data)
    lines += _wrapped("      traffic: ", phase, width) if phase is not None else []
    lines += [f"      goal: {goal_text(data)}", ""]
    for name, text in facts(data):
        lines += _wrapped(f"  {name:{_HEAD_WIDTH - 2}}", text, width)
    if data.failures:
        names = ", ".join(f"{f.id} ({f.steps} steps)" for f in data.failures)
        lines += _wrapped(f"  {'failures':{_HEAD_WIDTH - 2}}", names, width)
    steps = ["", *table(data)] if data.steps else []
    return "\n".join([*lines, *steps, "", *_files(data, folder)])


def table(data: CapacityResult) -> list[str]:
    """One row for each step, in the order of the load."""
    heads = ("requests/s" if data.by == "rate" else "users", "status", *STEP_HEADS)
    rows = [[figure(float(f"{step.load:.4g}")), status_text(step), *step_cells(step)] for step in data.by_load]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = []
    for row in [heads, *rows]:
        cells = zip(row, widths, strict=True)
        lines.append("  " + "  ".join(c.ljust(w) if i == 1 else c.rjust(w) for i, (c, w) in enumerate(cells)))
    return lines


def step_line(by: Unit, step: CapacityStep) -> str:
    requests, goodput = step_cells(step)[:2]
    text = f"{load_text(by, step.load)}: {status_text(step)}, goodput {goodput}, {requests} requests"
    return f"{text}, {duration(step.seconds)}: {clean(step.why, 300)}"


def _files(data: CapacityResult, folder: Path) -> list[str]:
    shown = short_path(folder, "")
    lines = [f"  {name:10}{shown}/{file}" for name, file in (
        ("report", "report.html"), ("json", "capacity.json"), ("csv", "capacity.csv"))]  # fmt: skip
    if not data.ended:
        lines.append(f"  continue  loadchaos capacity --resume {shown}")
    return lines


def _wrapped(head: str, text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, max(30, width - len(head))) or [""]
    return [head + lines[0], *(" " * len(head) + line for line in lines[1:])]
