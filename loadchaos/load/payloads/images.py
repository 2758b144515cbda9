"""Images: number, size, shape, format, uniqueness and reuse."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, PlainSerializer, field_validator, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.limits import MOST_IMAGE_PIXELS
from loadchaos.core.model import SENT_AS_TEXT, Facts
from loadchaos.core.unit_fields import ImageSize
from loadchaos.core.units import Size
from loadchaos.load.payloads import image_tokens, reuse
from loadchaos.load.payloads.image_formats import FORMATS, Format
from loadchaos.load.payloads.text import SHORTEST_TEXT_TOKENS
from loadchaos.load.sequence_limits import sequence_limits
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import RequestContent

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


class Options(reuse.NearlyReused):
    """Number, size and format of images, and the share that is new.

    `unique` images were never sent before; `near_duplicates` differ in one pixel from one sent before. The others repeat one
    of `reuse_distance` requests earlier, to the byte. The distance counts requests of the same traffic in the same phase. If
    it exceeds the requests in flight, the server has finished with the repeated image, so that its caches can hit.
    `aspect` keeps the area of `size`; each image draws one of them. `format`: `png` and `jpeg` are smooth and small, `photo`
    is a JPEG with camera noise (its near duplicates differ in one row of blocks). `uuid` is vLLM's own name for an image:
    `content` gives equal images equal names, so that they are not hashed; `fresh` gives each one a new name, so that it
    misses the cache.
    """

    ORDER: ClassVar[int] = 0
    noun: ClassVar[str] = "image"
    size: ImageSize = Size(1024, 1024)
    aspect: Aspects = ()
    format: Format = "png"
    uuid: Literal["content", "fresh"] | None = None

    @field_validator("size")
    @classmethod
    def _size_allowed(cls, value: Size) -> Size:
        if value.width * value.height > MOST_IMAGE_PIXELS:
            raise ValueError(f"an image has at most {MOST_IMAGE_PIXELS // 1_000_000} megapixels here (got {value})")
        return value

    @model_validator(mode="after")
    def _sides_allowed(self) -> Options:
        most = FORMATS[self.format].max_side
        if any(max(s.width, s.height) > most for s in self.sizes()):
            raise ValueError(f"a JPEG has at most {most} pixels a side here (got {self.sizes()[0]})")
        return self

    @property
    def most_images(self) -> int:
        return self.count.high

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

    def per_request(self) -> RequestContent:
        costs = [image_tokens.predict("", s.width, s.height) for s in self.sizes()]
        return RequestContent(images=self.count.mean, image_tokens=self.count.mean * sum(costs) / len(costs))

    def add(self, request: Request, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG002 - images are named by run, not drawn
        """Put the images before the text, at most as many as the server takes."""
        if facts.images is False:
            request.notes.append(f"the model does not accept images: {SENT_AS_TEXT}")
            return
        ordinal = request.step.ordinal
        base = reuse.base_of(request.step.run_seed, request.step.phase, request.step.traffic)
        wanted = self.count_of(base, ordinal)
        count = wanted if facts.max_images is None else min(wanted, facts.max_images)
        if count < wanted:
            why = "the server accepts no more in one prompt"
            request.adapt(f"{count} images", str(wanted), why, allowed=count >= self.count.low)
        sizes = _sizes(self.size, self.aspect)
        makers = [_SizedImage(self.format, size, facts) for size in sizes]
        fitting = _most_fitting(makers, facts)
        if "rejected" not in request.step.expect and fitting is not None and fitting < count:
            request.adapt(f"{fitting} images", str(count), "the server's limit", allowed=fitting >= self.count.low)
            count = fitting
        all_new, part_begin = self.new >= 1, _PART_BEGINS[self.format]
        for slot in range(count):
            image = reuse.FirstUse(ordinal, slot) if all_new else self.first_use(base, ordinal, slot)
            maker = makers[0] if len(makers) == 1 else makers[draws.hash64(base, 7, *image[:2]) % len(makers)]
            name = (ordinal, slot) if self.uuid == "fresh" else image
            end = _PART_END if self.uuid is None else b'"},"uuid":"lc-%016x-%s"},' % (base, _joined(name))
            request.parts += (part_begin, *maker.base64(reuse.identity(base, image), image.variation), end)
            if not all_new:
                reuse.note_name(request, base, name)
            request.image_tokens += maker.tokens
            request.image_tokens_known = request.image_tokens_known and maker.measured
        request.images += count


@functools.lru_cache(maxsize=64)
def _sizes(size: Size, aspects: tuple[tuple[int, int], ...]) -> tuple[Size, ...]:
    if not aspects:
        return (size,)
    area = size.width * size.height
    widths = [max(1, round(math.sqrt(area * w / h))) for w, h in aspects]
    return tuple(Size(w, max(1, round(area / w))) for w in widths)


class _SizedImage:
    """Encoder of images of one size, and their cost in tokens. Looked up once per request."""

    __slots__ = ("base64", "measured", "tokens")

    def __init__(self, kind: Format, size: Size, facts: Facts) -> None:
        self.base64 = FORMATS[kind].encoder(size.width, size.height)
        self.tokens, self.measured = image_tokens.token_cost(facts, size.width, size.height)


def _most_fitting(makers: Sequence[_SizedImage], facts: Facts) -> int | None:
    """Most images of the largest size beside a short text. None where the tokens of a size are unknown."""
    if not all(maker.measured for maker in makers):
        return None
    return room_for_images(facts, max(maker.tokens for maker in makers))


def room_for_images(facts: Facts, tokens_each: int) -> int:
    """Number of images that fit the server's context beside a short text."""
    beside = SHORTEST_TEXT_TOKENS + (facts.text.overhead if facts.text else 0)
    return max(0, (sequence_limits(facts).prompt - beside) // max(1, tokens_each))


def _joined(name: tuple[int, ...]) -> bytes:
    return "-".join(map(str, name)).encode()
