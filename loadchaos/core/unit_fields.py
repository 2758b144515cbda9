"""Fields of pydantic models in the units of units.py, so that profiles and options are read by the same code."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from loadchaos.core.units import (
    Range,
    Size,
    byte_count,
    duration_s,
    format_duration,
    format_rate,
    int_range,
    rate_per_s,
    share,
    size,
)

DurationS = Annotated[float, BeforeValidator(duration_s), PlainSerializer(format_duration, return_type=str)]
Share = Annotated[float, BeforeValidator(share), PlainSerializer(lambda v: f"{v * 100:g}%", return_type=str)]
Bytes = Annotated[int, BeforeValidator(byte_count)]
RatePerS = Annotated[float, BeforeValidator(rate_per_s), PlainSerializer(format_rate, return_type=str)]
IntRange = Annotated[
    Range,
    BeforeValidator(int_range),
    PlainSerializer(Range.written, return_type=int | str),
]


def at_least(low: int, rule: str, *, most: int | None = None) -> AfterValidator:
    """Refuse a range that begins below `low` or ends beyond `most`; `rule` says what was expected."""

    def check(value: Range | None) -> Range | None:
        if value is not None and (value.low < low or (most is not None and value.high > most)):
            raise ValueError(f"{rule} (got {value})")
        return value

    return AfterValidator(check)


ImageSize = Annotated[Size, BeforeValidator(size), PlainSerializer(str, return_type=str)]
