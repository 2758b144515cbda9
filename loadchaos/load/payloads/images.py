"""Images as a dial: how many, how large, in which shape and format, which share never seen before, and what comes again."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.model import Facts, Step
from loadchaos.core.units import ImageSize, IntRange, Range, Share, Size
from loadchaos.load.payloads import image_tokens, jpeg, png
from loadchaos.load.payloads.base import Draft

ORDER = 0
Format = Literal["png", "jpeg", "photo"]
_OPEN = b'{"type":"image_url","image_url":{"url":"data:image/%s;base64,'
_OPENINGS: dict[str, bytes] = {"png": _OPEN % b"png", "jpeg": _OPEN % b"jpeg", "photo": _OPEN % b"jpeg"}
_CLOSE = b'"}},'
_MOST_PIXELS = 100_000_000
_MOST_JPEG_SIDE = 60_000


def _aspects(value: object) -> object:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise ValueError(f"a shape such as 16:9, or several of them, was expected (got {value!r})")
    return tuple(_aspect(text) for text in texts)


def _aspect(text: object) -> tuple[int, int]:
    width, colon, height = str(text).partition(":")
    if not colon or not width.strip().isdigit() or not height.strip().isdigit() or not int(width) or not int(height):
        raise ValueError(f"a shape such as 16:9 (width:height) was expected (got {text!r})")
    return int(width), int(height)


Aspects = Annotated[
    tuple[tuple[int, int], ...],
    BeforeValidator(lambda v: v if isinstance(v, tuple) and v and isinstance(v[0], tuple) else _aspects(v)),
    PlainSerializer(lambda v: [f"{w}:{h}" for w, h in v], return_type=list[str]),
]


class Options(BaseModel):
    """`unique` of the images were never sent before; `near_duplicates` differ in one pixel from one sent before.

    The others repeat one of `reuse_distance` requests earlier, to the byte. Distance counts requests of the same
    traffic in the same phase; one that is larger than the requests in flight makes repeats that the server has finished
    with, so that its caches can hit. `aspect` keeps the area of `size`; each image draws one of them. `format`: `png`
    and `jpeg` are smooth and small, `photo` is a JPEG with the noise of a camera (its nearest neighbour differs in one
    row of blocks, not in one pixel). `uuid` is vLLM's own name for an image: `content` gives the same image the same
    name, so that it is not hashed; `fresh` gives even a repeat a name of its own, so that it misses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: IntRange = Range(1, 1)
    size: ImageSize = Size(1024, 1024)
    aspect: Aspects = ()
    format: Format = "png"
    unique: Share = 1.0
    near_duplicates: Share = 0.0
    reuse_distance: int = Field(default=200, gt=0)
    uuid: Literal["content", "fresh"] | None = None

    @field_validator("count")
    @classmethod
    def _some(cls, value: Range) -> Range:
        if value.low < 0 or value.high < 1:
            raise ValueError(f"at least one image was expected (got {value})")
        return value

    @field_validator("size")
    @classmethod
    def _bounded(cls, value: Size) -> Size:
        if value.width * value.height > _MOST_PIXELS:
            raise ValueError(f"an image has at most 100 megapixels here (got {value})")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Options:
        if "unique" in self.model_fields_set and self.unique + self.near_duplicates > 1 + 1e-9:
            raise ValueError("unique and near_duplicates add up to more than 100%")
        if self.format != "png" and any(max(s.width, s.height) > _MOST_JPEG_SIDE for s in self.sizes()):
            raise ValueError(f"a JPEG has at most {_MOST_JPEG_SIDE} pixels a side here (got {self.sizes()[0]})")
        return self

    @property
    def new(self) -> float:
        """The share that was never sent before, one-pixel neighbours aside."""
        return self.unique if "unique" in self.model_fields_set else 1.0 - self.near_duplicates

    def sizes(self) -> Sequence[Size]:
        """Every size that is sent: one a shape."""
        return _sizes(self.size, self.aspect)

    def describe(self) -> str:
        """For `explain`."""
        kind = {"png": "", "jpeg": " JPEG", "photo": " photo-like JPEG"}[self.format]
        shapes = f" in the shapes {', '.join(f'{w}:{h}' for w, h in self.aspect)}" if self.aspect else ""
        what = f"{self.count}{kind} image{'s' if self.count.high > 1 else ''} of {self.size} pixels{shapes}"
        if self.new >= 1:
            return f"{what}, always new"
        new = f", {self.new * 100:g}% new" if self.new else ""
        near = (
            f", {self.near_duplicates * 100:g}% one pixel different from an earlier one" if self.near_duplicates else ""
        )
        others = "the others" if self.new or self.near_duplicates else "each"
        distance = self.reuse_distance
        repeated = f"{others} repeated from {distance} requests earlier"
        return f"{what}{new}{near}, {repeated} (the first {distance} requests have new ones)"

    def warning(self, in_flight: float, requests: float | None) -> str | None:  # noqa: ARG002 - it is a matter of requests
        """Warn if a phase ends before an image can repeat."""
        if self.new >= 1 or requests is None or requests > self.reuse_distance:
            return None
        return (
            f"images repeat after {self.reuse_distance} requests, but a phase has only {requests:.0f}: no image repeats; "
            "use a smaller reuse_distance"
        )

    def per_request(self) -> dict[str, float]:
        """For `explain`: the mean of what one request carries; tokens by Qwen3-VL's formula."""
        mean = (self.count.low + self.count.high) / 2
        costs = [image_tokens.predicted("", s.width, s.height) for s in self.sizes()]
        return {"images": mean, "image_tokens": mean * sum(costs) / len(costs)}


@functools.lru_cache(maxsize=64)
def _sizes(size: Size, aspects: tuple[tuple[int, int], ...]) -> tuple[Size, ...]:
    if not aspects:
        return (size,)
    area = size.width * size.height
    widths = [max(1, round(math.sqrt(area * w / h))) for w, h in aspects]
    return tuple(Size(w, max(1, round(area / w))) for w in widths)


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG001 - images are named by run, not drawn
    """Put the images in front of the text, at most as many as the server takes."""
    assert isinstance(options, Options)
    if facts.images is False:
        draft.notes.append("the model takes no images: sent as text only")
        return
    base = _base(step.run_seed, step.phase, step.traffic)
    wanted = count_of(options, base, step.ordinal)
    count = wanted if facts.max_images is None else min(wanted, facts.max_images)
    if count < wanted:
        draft.notes.append(f"{count} images in place of {wanted}: the server takes no more in one prompt")
    sizes = _sizes(options.size, options.aspect)
    made = [_Made(options.format, size, facts) for size in sizes]
    all_new, opening = options.new >= 1, _OPENINGS[options.format]
    for slot in range(count):
        ordinal, place, twist = (step.ordinal, slot, 0) if all_new else source(options, base, step.ordinal, slot)
        it = made[0] if len(made) == 1 else made[draws.hash64(base, 7, ordinal, place) % len(made)]
        end = _CLOSE if options.uuid is None else _named(options, base, (ordinal, place, twist), (step.ordinal, slot))
        draft.pieces += (opening, *it.base64(identity(base, ordinal, place), twist), end)
        if not all_new and draft.image_names is not None:
            draft.image_names.append(_name(options, base, (ordinal, place, twist), (step.ordinal, slot)))
        draft.image_tokens += it.tokens
        draft.image_tokens_known = draft.image_tokens_known and it.measured
    draft.images += count


class _Made:
    """How images of one size are made, and what each costs in tokens; looked up once a request."""

    __slots__ = ("base64", "measured", "tokens")

    def __init__(self, kind: Format, size: Size, facts: Facts) -> None:
        look: jpeg.Look = "photo" if kind == "photo" else "flat"
        self.base64 = (
            png.template(size.width, size.height).base64
            if kind == "png"
            else jpeg.template(size.width, size.height, look).base64
        )
        self.tokens, self.measured = image_tokens.cost(facts, size.width, size.height)


def _named(options: Options, base: int, image: tuple[int, int, int], own: tuple[int, int]) -> bytes:
    name = image if options.uuid == "content" else own
    return b'"},"uuid":"lc-%016x-%s"},' % (base, "-".join(map(str, name)).encode())


def _name(options: Options, base: int, image: tuple[int, int, int], own: tuple[int, int]) -> int:
    """A number for the ledger: the same image by which the server knows it, the same number (of 53 bits, as JSON has)."""
    return draws.hash64(base, 8, *(own if options.uuid == "fresh" else image)) >> 11


@functools.lru_cache(maxsize=256)
def _base(run_seed: int, phase: int, traffic: str) -> int:
    return draws.hash64(run_seed, phase, draws.text_seed(traffic))


class Dial(Protocol):
    """What decides how many there are, and which of them come again."""

    @property
    def count(self) -> Range:
        """How many a request."""

    @property
    def new(self) -> float:
        """The share never sent before."""

    @property
    def near_duplicates(self) -> float:
        """The share that differs a little from one sent before."""

    @property
    def reuse_distance(self) -> int:
        """How many requests ago."""


def count_of(options: Dial, base: int, ordinal: int) -> int:
    """How many stand in this request of the traffic."""
    low, high = options.count.low, options.count.high
    return low if low == high else low + draws.hash64(base, 3, ordinal) % (high - low + 1)


def source(options: Dial, base: int, ordinal: int, slot: int) -> tuple[int, int, int]:
    """(ordinal, slot, twist) of the image that stands here: its own, or of what it repeats, found by going back.

    Every step of the way is drawn from (base, ordinal, slot) alone, so any worker finds the same image. A twist other
    than 0 is a one-pixel neighbour.
    """
    twist = 0
    while options.new < 1 and ordinal >= options.reuse_distance:
        share = (draws.hash64(base, 4, ordinal, slot) >> 11) * 2.0**-53
        if share < options.new:
            break
        before = ordinal - options.reuse_distance
        there = count_of(options, base, before)
        if there == 0:
            break
        if not twist and share < options.new + options.near_duplicates:
            twist = 1 + draws.hash64(base, 6, ordinal, slot) % 0xFFFFFF
        ordinal, slot = before, slot % there
    return ordinal, slot, twist


def identity(base: int, ordinal: int, slot: int) -> bytes:
    """The 16 bytes an image is made of."""
    return _two_words(draws.hash_step(_of_ordinal(base, ordinal), slot), ordinal << 16 | slot)


_two_words = struct.Struct(">QQ").pack


@functools.lru_cache(maxsize=4)
def _of_ordinal(base: int, ordinal: int) -> int:
    return draws.hash_prefix(base, 5, ordinal)
