"""Render the result of a suite for a terminal."""

from __future__ import annotations

from pathlib import Path

from loadchaos.report.formatting import clean, duration, plural, wrapped
from loadchaos.report.html.suite_page import headline
from loadchaos.report.suite_result import ProfileRow, SuiteResult

_NAME_WIDTH = 22


def render(suite: SuiteResult, folder: Path, *, width: int = 80) -> str:
    server = " ".join(clean(part, 100) for part in suite.server.parts)
    lines = [f"{suite.shown_verdict.upper()}  suite  {headline(suite)} (exit code {suite.exit_code})"]
    lines += [f"      target: {clean(suite.target, 300)}: {server}", ""]
    for row in suite.in_state("finished"):
        spent = f"{plural(row.requests or 0, 'request')}, {duration(row.seconds)}"
        lines += _entry(row.shown_verdict, row.name, f"{_result(row)} ({spent})", width)
    for row in suite.in_state("waiting", "running"):
        lines += _entry("not finished", row.name, "", width)
    left_out = suite.in_state("left out")
    lines += ["", "Left out"] if left_out else []
    for row in left_out:
        lines += _entry("", row.name, "; ".join(row.why), width)
    return "\n".join([*lines, "", f"  page      {folder / 'suite.html'}", f"  json      {folder / 'suite.json'}"])


def _entry(word: str, name: str, text: str, width: int) -> list[str]:
    return wrapped(f"  {f'{word:7} ' if word else ''}{name:{_NAME_WIDTH}}", clean(text, 600), width)


def _result(row: ProfileRow) -> str:
    if row.failures:
        return "; ".join(f"{f.id}: {f.title}" for f in row.failures)
    return row.error or "; ".join((*row.broken, *row.unknown)) or row.worth
