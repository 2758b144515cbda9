"""Service level objective of a request: its latency limits."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from loadchaos.core.slo_names import SLO_LIMITS
from loadchaos.core.units import DurationS
from loadchaos.profile.base import ProfilePart


class Slo(ProfilePart):
    """Latency limits of each request; `goodput` is the share that meets all.

    `ttft` and `e2e` count from the time a request was due. `tpot` and `itl_*` are over one answer.
    """

    ttft: DurationS | None = None
    tpot: DurationS | None = None
    e2e: DurationS | None = None
    itl_mean: DurationS | None = None
    itl_p50: DurationS | None = None
    itl_p90: DurationS | None = None
    itl_p95: DurationS | None = None
    itl_p99: DurationS | None = None
    itl_max: DurationS | None = None

    @model_validator(mode="after")
    def _need_a_limit(self) -> Self:
        if not self.limits_s():
            raise ValueError(f"at least one limit was expected: {', '.join(SLO_LIMITS)}")
        return self

    def limits_s(self) -> dict[str, float]:
        """The limits that are set, in seconds."""
        return {name: value for name in SLO_LIMITS if (value := getattr(self, name)) is not None}
