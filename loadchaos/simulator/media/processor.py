"""Decoded images, the image processor, and the errors of a bad image."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadchaos.simulator.engine import tokenizer

IMAGE_MARK = "\0image\0"
"""Place of an image in a prompt. It cannot come from a client, whose text is blanked out."""
VIDEO = "data:video/"
AUDIO = "data:audio/"


_SEED_BITS = 0x7FFFFFFF
_SIDE = 32
"""Pixels of a side of a token: two by two patches of 16."""
_LEAST_PIXELS, _MOST_PIXELS = 65536, 16777216


class ImageError(Exception):
    """An image that the server refuses. `status` and `kind` are the answer's HTTP status and error type."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class AspectRatioError(ImageError):
    """An image longer than 200 times its width. The API writes the message, because it quotes the whole prompt."""

    def __init__(self, width: int, height: int) -> None:
        ratio = max(width, height) / min(width, height)
        super().__init__(f"absolute aspect ratio must be smaller than 200, got {ratio}")
        self.width = width
        self.height = height


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image: its cache key, and its size in pixels and tokens. `content` is the number or colour that a model
    sees in it; empty: nothing with a name.
    """

    hash: str
    width: int
    height: int
    tokens: int
    content: str = ""

    def named(self, name: str) -> DecodedImage:
        """Return the image under a client's own name (`uuid` of a content part). Its bytes are not hashed then."""
        return replace(self, hash=hashlib.blake2b(name.encode(), digest_size=32).hexdigest())


@dataclass(frozen=True)
class Processor:
    """The image processor of Qwen3-VL, as an era has it."""

    hash_pixels: bool = False
    strict_load: bool = True

    def tokens(self, width: int, height: int) -> int:
        """Return the prompt tokens of an image, without the two around it. Raises AspectRatioError beyond 200 to 1.
        Source: smart_resize of transformers' Qwen2-VL image processor; tokens are (height / 32) x (width / 32).
        """
        if max(width, height) / min(width, height) > 200:
            raise AspectRatioError(width, height)
        high, wide = round(height / _SIDE) * _SIDE, round(width / _SIDE) * _SIDE
        if high * wide > _MOST_PIXELS:
            beta = math.sqrt(height * width / _MOST_PIXELS)
            high = max(_SIDE, math.floor(height / beta / _SIDE) * _SIDE)
            wide = max(_SIDE, math.floor(width / beta / _SIDE) * _SIDE)
        elif high * wide < _LEAST_PIXELS:
            beta = math.sqrt(_LEAST_PIXELS / (height * width))
            high = math.ceil(height * beta / _SIDE) * _SIDE
            wide = math.ceil(width * beta / _SIDE) * _SIDE
        return (high // _SIDE) * (wide // _SIDE)


Placed = tuple[int, DecodedImage]
"""An image, after the position where its tokens begin in a prompt."""


def place_images(
    pieces: Sequence[Sequence[int]], images: Sequence[DecodedImage]
) -> tuple[tuple[int, ...], tuple[Placed, ...]]:
    """Join the tokens of a prompt, with the placeholders of an image between each two pieces."""
    ids = list(pieces[0])
    placed = []
    for image, piece in zip(images, pieces[1:], strict=True):
        placed.append((len(ids), image))
        ids.extend([tokenizer.IMAGE_PAD] * image.tokens)
        ids.extend(piece)
    return tuple(ids), tuple(placed)


def answer_seed(
    ids: Sequence[int], images: Sequence[Placed], temperature: float, seed: int | None, rng: random.Random
) -> int:
    """Return the seed of an answer: a greedy one depends on the prompt alone, a seeded one on the seed too, others on
    chance.
    """
    # Hashes of integers are the same in every process, those of text are not.
    base = hash((tuple(ids), tuple(int(image.hash[:15], 16) for _, image in images))) & _SEED_BITS
    if not temperature:
        return base
    return rng.getrandbits(31) if seed is None else base ^ (seed * 2654435761 & _SEED_BITS)
