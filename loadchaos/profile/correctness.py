"""`correctness` of a profile: questions beside the load."""

from __future__ import annotations

from typing import get_args

from pydantic import Field, PositiveInt

from loadchaos.core.probe_names import ProbeKind
from loadchaos.core.unit_fields import DurationS, Share
from loadchaos.profile.base import ProfilePart


class KeyedProbes(ProfilePart):
    """Questions with one right answer, one of each kind every `every`. A kind is used if the idle server answers it
    right every time. By default all kinds are asked; those with an image only where the traffic has images.
    """

    every: DurationS = Field(default=2.0, gt=0)
    kinds: tuple[ProbeKind, ...] = Field(default=get_args(ProbeKind), min_length=1)


class Replicas(ProfilePart):
    """`n` identical greedy requests at once, every `every`."""

    n: int = Field(default=8, ge=2, le=256)
    every: DurationS = Field(default=30.0, gt=0)


class ColdWarm(ProfilePart):
    """One prompt twice, as a miss and as a hit of the prefix cache."""

    every: DurationS = Field(default=20.0, gt=0)


class AloneVsLoad(ProfilePart):
    """Prompts asked on the idle server, and again under load. `share`: number of them, relative to the requests of the
    load.
    """

    share: Share = Field(default=0.02, gt=0)


class Streamed(ProfilePart):
    """One prompt twice, with a streamed and a whole answer."""

    every: DurationS = Field(default=20.0, gt=0)


class ImageCanaries(ProfilePart):
    """One question about five images that differ, all at once."""

    every: DurationS = Field(default=20.0, gt=0)


class Adapters(ProfilePart):
    """Equal prompts to each LoRA adapter of the server and to its base model."""

    every: DurationS = Field(default=10.0, gt=0)


class PrefixLadder(ProfilePart):
    """Prompts of exact lengths in tokens, cold and from the prefix cache. Beside the second answer, clients with the
    same prefix leave after 1, 2 and 8 tokens. Lengths that are too short for the question are raised by multiples of
    64, which keeps their place in a block.
    """

    every: DurationS = Field(default=10.0, gt=0)
    lengths: tuple[PositiveInt, ...] = Field(default=(15, 16, 17, 63, 64, 65, 66, 67, 68, 69), min_length=1)


class CorrectnessOptions(ProfilePart):
    """Questions beside the load; a part that is left out is not asked."""

    probes: KeyedProbes | None = None
    replicas: Replicas | None = None
    cold_warm: ColdWarm | None = None
    alone_vs_load: AloneVsLoad | None = None
    streamed: Streamed | None = None
    images: ImageCanaries | None = None
    adapters: Adapters | None = None
    prefix_ladder: PrefixLadder | None = None
