"""Images as a dial: how many, how large, which share never seen before, and how far back the others were sent."""

from __future__ import annotations

import functools
import struct
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from loadchaos import draws
from loadchaos.model import Facts, Step
from loadchaos.payloads import image_tokens
from loadchaos.payloads.draft import Draft
from loadchaos.payloads.png import template
from loadchaos.units import ImageSize, IntRange, Range, Share, Size

ORDER = 0
_OPEN = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,'
_CLOSE = b'"}},'


class Options(BaseModel):
    """`unique` of the images were never sent before; the others repeat one of `reuse_distance` requests earlier.

    Distance counts requests of the same traffic in the same phase. One that is larger than the requests in flight makes
    repeats that the server has finished with, so that its caches can hit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: IntRange = Range(1, 1)
    size: ImageSize = Size(1024, 1024)
    unique: Share = 1.0
    reuse_distance: int = Field(default=200, gt=0)
    format: Literal["png"] = "png"

    @field_validator("count")
    @classmethod
    def _some(cls, value: Range) -> Range:
        if value.low < 0 or value.high < 1:
            raise ValueError(f"at least one image was expected (got {value})")
        return value

    @field_validator("size")
    @classmethod
    def _bounded(cls, value: Size) -> Size:
        if value.width * value.height > 100_000_000:
            raise ValueError(f"an image has at most 100 megapixels here (got {value})")
        return value

    def words(self) -> str:
        """For `explain`."""
        what = f"{self.count} image{'s' if self.count.high > 1 else ''} of {self.size} pixels"
        if self.unique >= 1:
            return f"{what}, each never seen before"
        return f"{what}, {self.unique * 100:g}% never seen before, the rest as {self.reuse_distance} requests earlier"

    def per_request(self) -> dict[str, float]:
        """For `explain`: the mean of what one request carries; tokens by Qwen3-VL's formula."""
        mean = (self.count.low + self.count.high) / 2
        try:
            each = image_tokens.qwen(self.size.width, self.size.height)
        except ValueError:
            each = 0
        return {"images": mean, "image_tokens": mean * each}


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: draws.Draws) -> None:  # noqa: ARG001 - images are named by run, not drawn
    """Put the images in front of the text, at most as many as the server takes."""
    assert isinstance(options, Options)
    if facts.images is False:
        draft.notes.append("the model takes no images: sent as text only")
        return
    base = _base(step.run_seed, step.phase, step.traffic)
    wanted = _count(options, base, step.ordinal)
    count = wanted if facts.max_images is None else min(wanted, facts.max_images)
    if count < wanted:
        draft.notes.append(f"{count} images in place of {wanted}: the server takes no more in one prompt")
    png = template(options.size.width, options.size.height)
    for slot in range(count):
        draft.pieces.append(_OPEN)
        draft.pieces.extend(png.base64(identity(options, base, step.ordinal, slot)))
        draft.pieces.append(_CLOSE)
    each, measured = image_tokens.cost(facts, options.size.width, options.size.height)
    draft.images += count
    draft.image_tokens += count * each
    draft.image_tokens_known = draft.image_tokens_known and (measured or count == 0)


@functools.lru_cache(maxsize=256)
def _base(run_seed: int, phase: int, traffic: str) -> int:
    return draws.mix(run_seed, phase, draws.of_text(traffic))


def _count(options: Options, base: int, ordinal: int) -> int:
    low, high = options.count.low, options.count.high
    return low if low == high else low + draws.mix(base, 3, ordinal) % (high - low + 1)


def identity(options: Options, base: int, ordinal: int, slot: int) -> bytes:
    """The 16 bytes an image is made of: its own, or those of the request it repeats, found by going back.

    Every step of the way is drawn from (base, ordinal, slot) alone, so any worker finds the same image.
    """
    while options.unique < 1 and ordinal >= options.reuse_distance:
        if (draws.mix(base, 4, ordinal, slot) >> 11) * 2.0**-53 < options.unique:
            break
        ordinal -= options.reuse_distance
        there = _count(options, base, ordinal)
        if there == 0:
            break
        slot %= there
    return struct.pack(">QQ", draws.mix(base, 5, ordinal, slot), ordinal << 16 | slot)
