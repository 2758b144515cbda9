"""Latency limits of a request (SLO): `slo`, --slo and --goodput."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from loadchaos.core.errors import OptionError, did_you_mean
from loadchaos.core.units import duration_s, format_duration
from loadchaos.profile.base import ProfilePart


def _limit_s(value: object) -> float:
    found = duration_s(value)
    if not found:
        raise ValueError(f"more than 0 was expected (got {value!r})")
    return found


_LimitS = Annotated[float, BeforeValidator(_limit_s), PlainSerializer(format_duration, return_type=str)]


class Slo(ProfilePart):
    """Latency limits of each request; `goodput` is the share that meets all. `ttft` and `e2e` count from the time a
    request was due. `tpot` and `itl_*` are over one answer.
    """

    ttft: _LimitS | None = Field(None, description="time to first token")
    tpot: _LimitS | None = Field(None, description="time per output token after the first")
    e2e: _LimitS | None = Field(None, description="end-to-end time")
    itl_mean: _LimitS | None = Field(None, description="mean gap between two chunks")
    itl_p50: _LimitS | None = Field(None, description="median gap between two chunks")
    itl_p90: _LimitS | None = Field(None, description="gap between two chunks, p90")
    itl_p95: _LimitS | None = Field(None, description="gap between two chunks, p95")
    itl_p99: _LimitS | None = Field(None, description="gap between two chunks, p99")
    itl_max: _LimitS | None = Field(None, description="longest gap between two chunks")

    @model_validator(mode="after")
    def _need_a_limit(self) -> Self:
        if not self.limits_s():
            raise ValueError(f"at least one limit was expected: {', '.join(LIMITS)}")
        return self

    def limits_s(self) -> dict[str, float]:
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}


LIMITS = tuple(Slo.model_fields)
"""Names of the limits."""

_BENCH_NAMES = {"e2el": "e2e"}
"""Limits with another name in `vllm bench serve`."""


def parse_limits(text: str, option: str) -> dict[str, float]:
    """Parse limits such as `ttft=2s,itl_p99<=50ms` into seconds by name. Raises OptionError that names the option."""
    return _limits(
        _pairs(text.replace("<=", "=").split(","), "=", option, "NAME=TIME was expected, e.g. ttft=2s"), option
    )


def parse_bench_limits(words: Sequence[str], option: str) -> dict[str, float]:
    """Parse limits of `vllm bench serve --goodput` into seconds by name. `ttft:2000` is in milliseconds; `ttft:2s` has
    its unit. Raises OptionError that names the option.
    """
    pairs = _pairs(words, ":", option, "NAME:MILLISECONDS was expected, e.g. ttft:2000 or ttft:2s")
    return _limits(
        ((_BENCH_NAMES.get(name, name), re.sub(r"^[\d.]+$", r"\g<0>ms", value)) for name, value in pairs), option
    )


def written(limits_s: Mapping[str, float]) -> dict[str, str]:
    """Limits as a profile has them: `{ttft: 2s}`."""
    return {name: format_duration(seconds) for name, seconds in limits_s.items()}


def _pairs(words: Iterable[str], sign: str, option: str, expected: str) -> Iterable[tuple[str, str]]:
    for word in words:
        name, _, value = (part.strip() for part in word.partition(sign))
        if not name or not value:
            raise OptionError(f"{option} {word.strip()!r}: {expected}")
        yield name, value


def _limits(pairs: Iterable[tuple[str, str]], option: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        if name not in LIMITS:
            raise OptionError(f"{option} {name}: one of {', '.join(LIMITS)} was expected{did_you_mean(name, LIMITS)}")
        if name in found:
            raise OptionError(f"{option} {name}: given twice; give it once")
        try:
            found[name] = _limit_s(value)
        except ValueError as e:
            raise OptionError(f"{option} {name}: {e}") from None
    return found
