"""Files of requests that are new, repeat those of an earlier request, or nearly do: images, audio, video."""

from __future__ import annotations

import functools
import struct
from typing import ClassVar, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.unit_fields import IntRange, Share
from loadchaos.core.units import Range
from loadchaos.load.payloads.base import Payload
from loadchaos.load.wire.request import Request


class FirstUse(NamedTuple):
    """Request and place at which a file was sent first; a `variation` other than 0 is a near duplicate of it."""

    ordinal: int
    slot: int
    variation: int = 0


class Reused(Payload):
    """Number of files of a request, and the share of them that is new."""

    noun: ClassVar[str]
    count: IntRange = Range(1, 1)
    unique: Share = 1.0
    reuse_distance: int = Field(default=200, gt=0)

    @field_validator("count")
    @classmethod
    def _not_always_none(cls, value: Range) -> Range:
        if value.low < 0 or value.high < 1:
            raise ValueError(f"at least one {cls.noun} was expected (got {value})")
        return value

    @property
    def new(self) -> float:
        return self.unique

    @property
    def near(self) -> float:
        return 0.0

    @property
    def counted(self) -> str:
        return f"{self.count} {self.noun}{'s' if self.count.high > 1 else ''}"

    def warning(self, in_flight: float, requests: float | None) -> str | None:  # noqa: ARG002 - it is a matter of requests
        if self.new >= 1 or requests is None or requests > self.reuse_distance:
            return None
        return (
            f"{self.noun}s repeat after {self.reuse_distance} requests, but a phase has only {requests:.0f}: "
            f"no {self.noun} repeats; use a smaller reuse_distance"
        )

    def count_of(self, base: int, ordinal: int) -> int:
        low, high = self.count.low, self.count.high
        return low if low == high else low + draws.hash64(base, 3, ordinal) % (high - low + 1)

    def first_use(self, base: int, ordinal: int, slot: int) -> FirstUse:
        """Find the file at a place of a request. Each step back is drawn from (base, ordinal, slot) alone, so any worker
        finds the same file.
        """
        variation = 0
        while self.new < 1 and ordinal >= self.reuse_distance:
            share = (draws.hash64(base, 4, ordinal, slot) >> 11) * 2.0**-53
            if share < self.new:
                break
            before = ordinal - self.reuse_distance
            count_there = self.count_of(base, before)
            if count_there == 0:
                break
            if not variation and share < self.new + self.near:
                variation = 1 + draws.hash64(base, 6, ordinal, slot) % 0xFFFFFF
            ordinal, slot = before, slot % count_there
        return FirstUse(ordinal, slot, variation)


class NearlyReused(Reused):
    """As `Reused`, with a share of files that nearly equal an earlier one."""

    near_duplicates: Share = 0.0

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        if "unique" in self.model_fields_set and self.unique + self.near_duplicates > 1 + 1e-9:
            raise ValueError("unique and near_duplicates add up to more than 100%")
        return self

    @property
    def new(self) -> float:
        return self.unique if "unique" in self.model_fields_set else 1.0 - self.near_duplicates

    @property
    def near(self) -> float:
        return self.near_duplicates


@functools.lru_cache(maxsize=256)
def base_of(run_seed: int, phase: int, traffic: str, *kind: int) -> int:
    """Seed of the files of one traffic in one phase."""
    return draws.hash64(run_seed, phase, draws.text_seed(traffic), *kind)


def identity(base: int, first: FirstUse) -> bytes:
    """The 16 bytes that a file is made of."""
    ordinal, slot, _ = first
    return _two_words(draws.hash_step(_hash_of_ordinal(base, ordinal), slot), ordinal << 16 | slot)


_two_words = struct.Struct(">QQ").pack


@functools.lru_cache(maxsize=4)
def _hash_of_ordinal(base: int, ordinal: int) -> int:
    return draws.hash_prefix(base, 5, ordinal)


def note_name(request: Request, base: int, name: tuple[int, ...]) -> None:
    """Add the number of a file to the ledger's. Files that the server sees as equal have one: 53 bits, as JSON numbers."""
    if request.image_names is not None:
        request.image_names.append(draws.hash64(base, 8, *name) >> 11)
