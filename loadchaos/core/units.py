"""Parse and format values such as `30s`, `5%`, `20/s`, `1..4`, `8GiB`. Parsers raise ValueError."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import overload

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def seconds_of(ns: float | None, digits: int | None = None) -> float | None:
    """Convert nanoseconds to seconds, rounded to significant digits where they are given."""
    if ns is None:
        return None
    return ns / NS_PER_S if digits is None else significant(ns / NS_PER_S, digits)


COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
"""Comparisons of a figure with a limit, as a profile writes them."""


def iso_utc(unix_s: float | None = None, timespec: str = "milliseconds") -> str:
    """Format a Unix time, else the present, in ISO 8601 UTC: `2026-11-21T15:08:32.243+00:00`."""
    when = datetime.now(UTC) if unix_s is None else datetime.fromtimestamp(unix_s, UTC)
    return when.isoformat(timespec=timespec)


_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration_s(text: object) -> float:
    """Parse a duration such as `30s`, `1h30m` or `250ms` to seconds. A number without a unit is refused, except 0."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"a duration such as 30s, 5m or 250ms was expected (got {text!r})")
    if isinstance(text, int | float):
        if text == 0:
            return 0.0
        raise ValueError(f"a duration needs a unit: {text}s, {text}m or {text}ms? (got {text})")
    clean = text.strip().replace(" ", "")
    if clean == "0":
        return 0.0
    if not _DURATION.fullmatch(clean):
        hint = " - the unit is missing" if re.fullmatch(r"\d+(\.\d+)?", clean) else ""
        raise ValueError(f"a duration such as 30s, 5m or 250ms was expected (got {text!r}{hint})")
    return sum(float(n) * _DURATION_UNITS_S[u] for n, u in _DURATION_PART.findall(clean))


def format_duration(seconds: float) -> str:
    """Format seconds as the shortest text that `duration_s` reads: `1m30s`. The text is exact to a nanosecond:
    `11.5ms`.
    """
    ns = round(seconds * 1e9)
    if ns == 0:
        return "0s"
    parts = []
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        n, ns = divmod(ns, size_ms * 1_000_000)
        if n:
            parts.append(f"{n}{unit}")
    if ns:
        parts.append(f"{ns / 1e6:.6f}".rstrip("0").rstrip(".") + "ms")
    return "".join(parts)


_SPACED_UNITS = {"m": "min"}
_SHORT_S = 0.1
"""Shorter durations are described with four digits, longer ones to a millisecond."""


def describe_duration(seconds: float) -> str:
    """Format a duration for people: `1 min 30 s`, `6.6 ms`."""
    shown = float(f"{seconds:.4g}") if seconds < _SHORT_S else round(seconds, 3)
    return " ".join(
        f"{n} {_SPACED_UNITS.get(unit, unit)}" for n, unit in _DURATION_PART.findall(format_duration(shown))
    )


def spent_time(seconds: float) -> str:
    """Format a time in whole seconds, at least one: `1 s`, `2 min 5 s`."""
    return describe_duration(max(1, round(seconds)))


def measured_duration(seconds: float) -> str:
    """Format a measured duration: `0.85 ms`, `373 ms`, `1.25 s`, `2 min 5 s`."""
    if seconds >= 100:
        return describe_duration(round(seconds))
    if seconds >= 1:
        return f"{seconds:.3g} s"
    ms = seconds * 1000
    return f"{ms:.0f} ms" if ms >= 1 else f"{ms:.2f} ms"


_SIZES = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def byte_count(text: object) -> int:
    """Parse a size such as `8GiB`, `500MB` or 1048576 to bytes."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B|B)\s*", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"a size such as 8GiB or 500MB was expected (got {text!r})")
    return int(float(match[1]) * _SIZES[match[2]])


def growth(text: object) -> float:
    """Parse a growth per hour: `1%/h` is 0.01."""
    try:
        number, _, per = str(text).replace(" ", "").partition("%/")
        value = float(number) / 100
    except ValueError:
        value, per = -1.0, ""
    if per != "h" or not value >= 0:
        raise ValueError(f"a growth such as 1%/h was expected (got {text!r})")
    return value


def share(text: object) -> float:
    """Parse a share such as `5%` or `0.05` to a number from 0 to 1."""
    try:
        if isinstance(text, str) and text.strip().endswith("%"):
            value = float(text.strip()[:-1]) / 100
        elif isinstance(text, str | int | float) and not isinstance(text, bool):
            value = float(text)
        else:
            raise ValueError
    except ValueError:
        raise ValueError(f"a share such as 5% or 0.05 was expected (got {text!r})") from None
    if not 0 <= value <= 1:
        raise ValueError(f"a share lies between 0% and 100% (got {text!r})")
    return value


def rate_per_s(text: object) -> float:
    """Parse a rate such as `20/s`, `600/m` or `3600/h` to requests per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*/\s*(s|m|h)", text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"a rate such as 20/s or 600/m was expected (got {text!r})")
    value = float(match[1]) / {"s": 1, "m": 60, "h": 3600}[match[2]]
    if value <= 0:
        raise ValueError(f"a rate must be above 0 (got {text!r})")
    return value


@overload
def significant(value: float, digits: int = 5) -> float: ...
@overload
def significant(value: float | None, digits: int = 5) -> float | None: ...
def significant(value: float | None, digits: int = 5) -> float | None:
    """Round to so many significant digits; None stays."""
    return None if value is None else float(f"{value:.{digits}g}")


def figure(value: float) -> str:
    """Format a number with all digits before the point: `1,000,000`, `0.05`."""
    return f"{value:,.0f}" if abs(value) >= 100_000 else f"{value:,.6g}"


def counted(n: float, noun: str) -> str:
    """Format a count with its noun: `1 request`, `2 requests`."""
    return f"{n:.12g} {noun}{'' if n == 1 else 's'}"


def format_rate(per_s: float) -> str:
    """Format a rate as text that `rate_per_s` reads: `2.5/s`."""
    text = f"{per_s:g}"
    return f"{f'{per_s:.9f}'.rstrip('0').rstrip('.') if 'e' in text else text}/s"


@dataclass(frozen=True)
class Range:
    """Integers from `low` to `high`, both included; `7` is `7..7`."""

    low: int
    high: int

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def pick(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def written(self) -> int | str:
        """The range as a profile has it."""
        return self.low if self.low == self.high else str(self)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"


def int_range(text: object) -> Range:
    """Parse a range such as `4`, `1..4` or `-1100..-1`."""
    if isinstance(text, Range):
        return text
    if isinstance(text, int) and not isinstance(text, bool):
        return Range(text, text)
    match = re.fullmatch(r"\s*(-?\d+)\s*(?:\.\.\s*(-?\d+)\s*)?", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"a number or a range such as 1..4 was expected (got {text!r})")
    low = int(match[1])
    high = int(match[2]) if match[2] is not None else low
    if low > high:
        raise ValueError(f"a range goes from low to high: {high}..{low}? (got {text!r})")
    return Range(low, high)


@dataclass(frozen=True)
class Size:
    """Width and height of an image in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def size(text: object) -> Size:
    """Parse an image size such as `1024x1024` (width x height)."""
    if isinstance(text, Size):
        return text
    match = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", text) if isinstance(text, str) else None
    if match is None or int(match[1]) == 0 or int(match[2]) == 0:
        raise ValueError(f"a size such as 1024x1024 was expected (got {text!r})")
    return Size(int(match[1]), int(match[2]))
