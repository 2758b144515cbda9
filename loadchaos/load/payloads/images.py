"""Images: number, size, shape, format, uniqueness and reuse."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.limits import MOST_IMAGE_PIXELS
from loadchaos.core.model import SENT_AS_TEXT, Facts
from loadchaos.core.unit_fields import ImageSize, IntRange, Share, at_least
from loadchaos.core.units import Range, Size
from loadchaos.load.payloads import image_tokens
from loadchaos.load.payloads.image_formats import FORMATS, Format
from loadchaos.load.payloads.text import SHORTEST_TEXT_TOKENS
from loadchaos.load.wire.request import Request
from loadchaos.profile.base import ProfilePart

ORDER = 0
_PART_BEGIN = b'{"type":"image_url","image_url":{"url":"data:image/%s;base64,'
_PART_BEGINS: dict[str, bytes] = {name: _PART_BEGIN % f.media_type for name, f in FORMATS.items()}
_PART_END = b'"}},'


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


class Options(ProfilePart):
    """Number, size and format of images, and the share that is new.

    `unique` images were never sent before; `near_duplicates` differ in one pixel from one sent before. The others repeat one
    of `reuse_distance` requests earlier, to the byte. The distance counts requests of the same traffic in the same phase. If
    it exceeds the requests in flight, the server has finished with the repeated image, so that its caches can hit.
    `aspect` keeps the area of `size`; each image draws one of them. `format`: `png` and `jpeg` are smooth and small, `photo`
    is a JPEG with camera noise (its near duplicates differ in one row of blocks). `uuid` is vLLM's own name for an image:
    `content` gives equal images equal names, so that they are not hashed; `fresh` gives each one a new name, so that it
    misses the cache.
    """

    count: Annotated[IntRange, at_least(0, "at least one image was expected", high=1)] = Range(1, 1)
    size: ImageSize = Size(1024, 1024)
    aspect: Aspects = ()
    format: Format = "png"
    unique: Share = 1.0
    near_duplicates: Share = 0.0
    reuse_distance: int = Field(default=200, gt=0)
    uuid: Literal["content", "fresh"] | None = None

    @field_validator("size")
    @classmethod
    def _size_allowed(cls, value: Size) -> Size:
        if value.width * value.height > MOST_IMAGE_PIXELS:
            raise ValueError(f"an image has at most {MOST_IMAGE_PIXELS // 1_000_000} megapixels here (got {value})")
        return value

    @model_validator(mode="after")
    def _shares_add_up(self) -> Options:
        if "unique" in self.model_fields_set and self.unique + self.near_duplicates > 1 + 1e-9:
            raise ValueError("unique and near_duplicates add up to more than 100%")
        most = FORMATS[self.format].max_side
        if any(max(s.width, s.height) > most for s in self.sizes()):
            raise ValueError(f"a JPEG has at most {most} pixels a side here (got {self.sizes()[0]})")
        return self

    @property
    def new(self) -> float:
        return self.unique if "unique" in self.model_fields_set else 1.0 - self.near_duplicates

    def sizes(self) -> Sequence[Size]:
        return _sizes(self.size, self.aspect)

    def describe(self) -> str:
        kind = FORMATS[self.format].label
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
        return repeat_warning(self, requests, "images repeat", "no image repeats")

    def per_request(self) -> dict[str, float]:
        """Average content of a request for `explain`. Image tokens are those of Qwen3-VL's formula."""
        mean = (self.count.low + self.count.high) / 2
        costs = [image_tokens.predict("", s.width, s.height) for s in self.sizes()]
        return {"images": mean, "image_tokens": mean * sum(costs) / len(costs)}


@functools.lru_cache(maxsize=64)
def _sizes(size: Size, aspects: tuple[tuple[int, int], ...]) -> tuple[Size, ...]:
    if not aspects:
        return (size,)
    area = size.width * size.height
    widths = [max(1, round(math.sqrt(area * w / h))) for w, h in aspects]
    return tuple(Size(w, max(1, round(area / w))) for w in widths)


def add(request: Request, options: BaseModel, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG001 - images are named by run, not drawn
    """Put the images before the text, at most as many as the server takes."""
    assert isinstance(options, Options)
    if facts.images is False:
        request.notes.append(f"the model does not accept images: {SENT_AS_TEXT}")
        return
    base = _base(request.step.run_seed, request.step.phase, request.step.traffic)
    wanted = image_count(options, base, request.step.ordinal)
    count = wanted if facts.max_images is None else min(wanted, facts.max_images)
    if count < wanted:
        request.notes.append(f"{count} images instead of {wanted}: the server accepts no more in one prompt")
    sizes = _sizes(options.size, options.aspect)
    makers = [_SizedImage(options.format, size, facts) for size in sizes]
    fitting = _most_fitting(makers, facts)
    if "rejected" not in request.step.expect and fitting is not None and fitting < count:
        request.notes.append(f"{fitting} images instead of {count}: the server's limit")
        count = fitting
    all_new, part_begin = options.new >= 1, _PART_BEGINS[options.format]
    for slot in range(count):
        ordinal, place, variation = (
            (request.step.ordinal, slot, 0) if all_new else resolve_repeat(options, base, request.step.ordinal, slot)
        )
        maker = makers[0] if len(makers) == 1 else makers[draws.hash64(base, 7, ordinal, place) % len(makers)]
        end = (
            _PART_END
            if options.uuid is None
            else _uuid_field(options, base, (ordinal, place, variation), (request.step.ordinal, slot))
        )
        request.parts += (part_begin, *maker.base64(image_identity(base, ordinal, place), variation), end)
        if not all_new and request.image_names is not None:
            request.image_names.append(
                _ledger_name(options, base, (ordinal, place, variation), (request.step.ordinal, slot))
            )
        request.image_tokens += maker.tokens
        request.image_tokens_known = request.image_tokens_known and maker.measured
    request.images += count


class _SizedImage:
    """Encoder of images of one size, and their cost in tokens. Looked up once per request."""

    __slots__ = ("base64", "measured", "tokens")

    def __init__(self, kind: Format, size: Size, facts: Facts) -> None:
        self.base64 = FORMATS[kind].encoder(size.width, size.height)
        self.tokens, self.measured = image_tokens.token_cost(facts, size.width, size.height)


def _most_fitting(makers: Sequence[_SizedImage], facts: Facts) -> int | None:
    """Most images of the largest size beside a short text. None where a length is unknown."""
    if facts.prompt_room is None or not all(maker.measured for maker in makers):
        return None
    return room_for_images(facts, max(maker.tokens for maker in makers))


def room_for_images(facts: Facts, tokens_each: int) -> int:
    """Number of images that fit the server's context beside a short text."""
    beside = SHORTEST_TEXT_TOKENS + (facts.text.overhead if facts.text else 0)
    return max(0, ((facts.prompt_room or 0) - beside) // max(1, tokens_each))


def _uuid_field(options: Options, base: int, image: tuple[int, int, int], own: tuple[int, int]) -> bytes:
    name = image if options.uuid == "content" else own
    return b'"},"uuid":"lc-%016x-%s"},' % (base, "-".join(map(str, name)).encode())


def _ledger_name(options: Options, base: int, image: tuple[int, int, int], own: tuple[int, int]) -> int:
    """Number of an image in the ledger, equal for images that the server sees as equal: 53 bits, as JSON numbers have."""
    return draws.hash64(base, 8, *(own if options.uuid == "fresh" else image)) >> 11


@functools.lru_cache(maxsize=256)
def _base(run_seed: int, phase: int, traffic: str) -> int:
    return draws.hash64(run_seed, phase, draws.text_seed(traffic))


class ReuseOptions(Protocol):
    """Options that decide how many images there are and which of them repeat."""

    @property
    def count(self) -> Range: ...

    @property
    def new(self) -> float: ...

    @property
    def near_duplicates(self) -> float: ...

    @property
    def reuse_distance(self) -> int: ...


def repeat_warning(options: ReuseOptions, requests: float | None, what: str, none: str) -> str | None:
    """Warn if a phase ends before anything can repeat."""
    distance = options.reuse_distance
    if options.new >= 1 or requests is None or requests > distance:
        return None
    but = f"but a phase has only {requests:.0f}: {none}; use a smaller reuse_distance"
    return f"{what} after {distance} requests, {but}"


def image_count(options: ReuseOptions, base: int, ordinal: int) -> int:
    low, high = options.count.low, options.count.high
    return low if low == high else low + draws.hash64(base, 3, ordinal) % (high - low + 1)


def resolve_repeat(options: ReuseOptions, base: int, ordinal: int, slot: int) -> tuple[int, int, int]:
    """Find the image at a place of a request. A new one, or the one it repeats. Returns (ordinal, slot, variation). Each
    step back is drawn from (base, ordinal, slot) alone, so any worker finds the same image. A variation other than 0 is
    a near duplicate.
    """
    variation = 0
    while options.new < 1 and ordinal >= options.reuse_distance:
        share = (draws.hash64(base, 4, ordinal, slot) >> 11) * 2.0**-53
        if share < options.new:
            break
        before = ordinal - options.reuse_distance
        count_there = image_count(options, base, before)
        if count_there == 0:
            break
        if not variation and share < options.new + options.near_duplicates:
            variation = 1 + draws.hash64(base, 6, ordinal, slot) % 0xFFFFFF
        ordinal, slot = before, slot % count_there
    return ordinal, slot, variation


def image_identity(base: int, ordinal: int, slot: int) -> bytes:
    """The 16 bytes that an image is made of."""
    return _two_words(draws.hash_step(_hash_of_ordinal(base, ordinal), slot), ordinal << 16 | slot)


_two_words = struct.Struct(">QQ").pack


@functools.lru_cache(maxsize=4)
def _hash_of_ordinal(base: int, ordinal: int) -> int:
    return draws.hash_prefix(base, 5, ordinal)
