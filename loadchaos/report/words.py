"""Numbers, times and foreign texts as people read them; every room that tells uses the same words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Terminal escape sequences, then other control characters, what turns the direction of text, what no XML may hold.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_CONTROL = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]+"
)

SEVERITY = {
    "engine_death": "engine death", "hang": "hang", "request": "request failure", "degraded": "degraded",
    "startup": "start-up failure", "node": "node failure",
}  # fmt: skip
WORST_FIRST = ("engine_death", "startup", "node", "hang", "degraded", "request")
BLAME = {
    "server": "the server", "self-inflicted": "our own attack brought it about: not the server's bug",
    "injected": "injected by our own attack: not the server's bug", "expected": "expected of the attack in force",
}  # fmt: skip
TARGET = {
    "embedded": "the embedded server (a simulation inside loadchaos)",
    "launched": "a server loadchaos launched", "external": "a server at an address you gave",
}  # fmt: skip


def clean(text: object, limit: int = 2000) -> str:
    """A foreign text on one line, without escape sequences or control characters; cut at `limit` characters."""
    plain = _CONTROL.sub(" ", _ESCAPES.sub("", str(text))).strip()
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def clean_line(text: str, limit: int = 2000) -> str:
    """The same with its indentation: a line of a log or of a file, to stand in a fence."""
    return text[: len(text) - len(text.lstrip(" "))] + clean(text, limit)


def seconds(value: float | None) -> str:
    """`0.0123` as `12.3 ms`: three digits and a unit; a dash where there is no value."""
    if value is None:
        return "–"
    if value < 0:
        return "-" + seconds(-value)
    if value < 0.9995:
        return f"{_three(value * 1000)} ms"
    if value < 120:
        return f"{_three(value)} s"
    whole = round(value)
    if whole < 7200:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def number(value: float | None) -> str:
    """`1234567` as `1,234,567`; fractions with three digits; a dash where there is no value."""
    if value is None:
        return "–"
    if float(value).is_integer():
        return f"{int(value):,}"
    return _three(value) if abs(value) < 1000 else f"{value:,.0f}"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def plural(n: float, noun: str) -> str:
    """`1 request`, `2 requests`; nouns that take -s only."""
    return f"{number(n)} {noun}" + ("" if n == 1 else "s")


def clock(text: object) -> datetime | None:
    """An ISO 8601 text of verdict.json as a time in UTC; None where it is none."""
    if not isinstance(text, str):
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def since_load(verdict: Mapping[str, Any], at: object, at_s: object = None) -> str:
    """`12.4 s after the load began (14:20:11 UTC)`: `at` is ISO text, `at_s` seconds since the load (or run) began."""
    when, begun = clock(at), clock(verdict.get("started"))
    utc = f" ({when:%H:%M:%S} UTC)" if when else ""
    if isinstance(at_s, int | float) and not isinstance(at_s, bool):
        # A run that never came to its load (exit codes 2 and 4) counts from its own begin.
        return _after(float(at_s), "the run" if verdict.get("exit_code") in (2, 4) else "the load") + utc
    if when is None:
        return "at an unknown time" if at is None else clean(at, 60)
    if begun is None:
        return f"{when:%Y-%m-%d %H:%M:%S} UTC"
    return _after((when - begun).total_seconds(), "the run") + utc


def _after(value: float, what: str = "the load") -> str:
    if abs(value) < 0.05:
        return f"when {what} began"
    return f"{seconds(abs(value))} {'after' if value > 0 else 'before'} {what} began"


def path_of(folder: Path, part: str | Path) -> str:
    """A path as short as it can be typed: relative to the current folder where it lies below it."""
    path = folder / part
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
