"""Format numbers, durations, times and foreign text for people: one format for each, used by every report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadchaos.analysis.verdict.model import Verdict

# Terminal escape sequences, then other control characters, what turns the direction of text, what no XML may hold.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_CONTROL = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]+"
)
_NO_LINE = re.compile(_CONTROL.pattern.replace("\\x00-\\x1f", "\\x00-\\x08\\x0b-\\x1f"))


def clean(text: object, limit: int = 2000) -> str:
    """Put foreign text on one line, without control characters, cut to `limit` with an ellipsis."""
    plain = _CONTROL.sub(" ", _ESCAPES.sub("", str(text))).strip()
    return cut(plain, limit)


def exact(text: str) -> str:
    """Show the whole of a text that a user has to agree to: what a terminal would obey or hide is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def clean_line(text: str, limit: int = 2000) -> str:
    """Clean a line of a log or a file and keep its indentation."""
    return text[: len(text) - len(text.lstrip(" "))] + clean(text, limit)


def printable(text: str, *, color: bool = False) -> str:
    """Clean text of several lines for a terminal or a page; with `color`, its own colours stay."""
    parts = re.split(r"(\x1b\[[0-9;]*m)", text) if color else [text]
    parts[::2] = [_NO_LINE.sub(" ", _ESCAPES.sub("", part)) for part in parts[::2]]
    return "".join(parts)


def duration(seconds: float | None) -> str:
    """Format seconds: `650 ms`, `4.0 s`, `2 min 5 s`, `1 h 5 min`, or a dash."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.9995:
        return f"{_milliseconds(seconds * 1000)} ms"
    if seconds < 119.5:
        return f"{seconds:.0f} s" if seconds >= 99.95 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = whole // 60
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def tick_duration(seconds: float) -> str:
    """Format a round number of seconds for an axis: `50 ms`, `1.5 s`."""
    if seconds >= 1 or seconds == 0:
        return f"{seconds:g} s"
    return f"{seconds * 1000:g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:g} µs"


def _milliseconds(ms: float) -> str:
    if ms >= 99.95:
        return f"{ms:.0f}"
    return f"{ms:.1f}" if ms >= 0.95 else f"{ms:.2f}" if ms >= 0.005 else "0"


def number(value: float | None) -> str:
    """Format `1234567` as `1,234,567`, a fraction with three digits. None is a dash."""
    if value is None:
        return "–"
    if float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def plural(n: float, noun: str, several: str = "") -> str:
    """Format a count with its noun: `1 request`, `2 requests`; `several` where the plural is not one with -s."""
    return f"{number(n)} {noun if n == 1 else several or f'{noun}s'}"


def percent(share: float, decimals: int = 0) -> str:
    """Format a share as `29 %`, or with decimals as `29.8 %`."""
    return f"{100 * share:.{decimals}f} %"


_PERCENT = re.compile(r"(?<=\d)%")
_DURATION = re.compile(r"(?<![\w.-])(?:(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+|\d+us)(?![\w-])")


def unify_units(text: str) -> str:
    """Rewrite values in a text: `29.8%` as `29.8 %`, `1m30s` as `1 min 30 s`."""
    return _DURATION.sub(_unify_duration, _PERCENT.sub(" %", text))


def _unify_duration(match: re.Match[str]) -> str:
    text = match[0]
    from loadchaos.core.units import duration_s  # here, as it imports pydantic, which takes 50 ms

    return duration(int(text[:-2]) / 1e6 if text.endswith("us") else duration_s(text))


def parse_time(text: str | None) -> datetime | None:
    """Parse an ISO 8601 time as UTC; None for anything else."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def utc_text(started: str | None, ended: str | None = None) -> str:
    """Format `2026-11-21 15:08:32 UTC`, with the time until `ended` if that is known."""
    began, over = parse_time(started), parse_time(ended)
    if began is None:
        return "at an unknown time"
    return f"{began:%Y-%m-%d %H:%M:%S} UTC" + (f", {duration((over - began).total_seconds())}" if over else "")


def since_load(verdict: Verdict, at: str | None, at_s: float | None) -> str:
    """Format a time relative to the load: `12.4 s after the load began (14:20:11 UTC)`. `at_s`: seconds since the load
    began, or since the run began if it had no load; None of a record without its begin.
    """
    if at_s is None:
        return utc_text(at)
    when = parse_time(at)
    # A run that never came to its load (exit codes 2 and 4) counts from its own begin.
    text = _after(at_s, "the run" if verdict.exit_code in (2, 4) else "the load")
    return text + (f" ({when:%H:%M:%S} UTC)" if when else "")


def _after(seconds: float, origin: str) -> str:
    if abs(seconds) < 0.05:
        return f"when {origin} began"
    return f"{duration(abs(seconds))} {'after' if seconds > 0 else 'before'} {origin} began"


def short_path(folder: Path, part: str | Path) -> str:
    path = folder / part
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def columns(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    aligned = (
        (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return ["  " + "  ".join(cells).rstrip() for cells in aligned]


def wrapped(head: str, text: str, width: int) -> list[str]:
    """Wrap a text beside its heading, in 30 columns at least."""
    lines = textwrap.wrap(text, max(30, width - len(head))) or [""]
    return [(head + lines[0]).rstrip(), *(" " * len(head) + line for line in lines[1:])]
