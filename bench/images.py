"""Measure CPU per unique image in a request body, ours and Pillow's.

Usage: python -m bench.images
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from loadchaos.core.model import Facts, Output, Step, TextFacts
from loadchaos.load.payloads import PAYLOADS, jpeg
from loadchaos.load.payloads.png import template
from loadchaos.load.request_builder import build

SIDE = 1024
_SIZE = f"{SIDE}x{SIDE}"
_FEW, _MANY = 1, 17
_FACTS = Facts(
    "http://x",
    "http://x",
    "vllm",
    "m",
    "0.32.0",
    1 << 20,
    images=True,
    image_tokens={_SIZE: 1024},
    text=TextFacts(9, ((" the", 1), (" of", 1)), " the", "tokenize"),
)


class Row(NamedTuple):
    """CPU per unique image in its body, and its size."""

    name: str
    us: float
    kb: float


def micros(make: Callable[[int], object], times: int) -> float:
    """Microseconds of CPU per call."""
    make(0)
    begin = time.process_time()
    for n in range(1, times + 1):
        make(n)
    return (time.process_time() - begin) / times * 1e6


def row(name: str, make: Callable[[int], bytes], times: int) -> Row:
    """Format one row of the table."""
    return Row(name, micros(make, times), len(make(1)) / 1e3)


def measure() -> list[Row]:
    """Measure ours first, then Pillow's."""
    head, tail = b'{"messages":[{"content":[{"image_url":{"url":"data:image/%s;base64,', b'"}}]}]}'

    def ours(kind: bytes, ready: object) -> Callable[[int], bytes]:
        pieces = ready.base64  # type: ignore[attr-defined]  # both templates have it
        return lambda n: b"".join((head % kind, *pieces(n.to_bytes(16, "big")), tail))

    def pillow(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], kind: str) -> Callable[[int], bytes]:
        def make(n: int) -> bytes:
            pixels[0, 0] = (n & 255, n >> 8 & 255, n >> 16)
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, kind)
            url = "data:image/x;base64," + base64.b64encode(out.getvalue()).decode()
            return json.dumps({"messages": [{"content": [{"image_url": {"url": url}}]}]}).encode()

        return make

    smooth = np.tile(np.arange(SIDE, dtype=np.uint8)[None, :, None], (SIDE, 1, 3))
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    return [
        row("PNG, ours", ours(b"png", template(SIDE, SIDE)), 20_000),
        row("JPEG, ours", ours(b"jpeg", jpeg.template(SIDE, SIDE, "flat")), 5_000),
        row("photo-like JPEG, ours", ours(b"jpeg", jpeg.template(SIDE, SIDE, "photo")), 5_000),
        row("Pillow PNG, gradient", pillow(smooth.copy(), "PNG"), 5),
        row("Pillow JPEG, gradient", pillow(smooth.copy(), "JPEG"), 5),
        row("Pillow PNG, noise", pillow(noise.copy(), "PNG"), 5),
    ]


def whole(images: int, times: int = 3_000) -> float:
    """Microseconds of CPU of a whole request with that many unique PNGs."""
    payload = {
        name: PAYLOADS[name].model_validate(options)
        for name, options in (
            ("text", {"tokens": 64}),
            ("images", {"count": images, "size": _SIZE, "unique": "100%"}),
        )
    }
    return micros(
        lambda n: build(Step(n, 0, 0, None, "t", 1000 + n, payload, "plain", None, Output(max=8), ordinal=n), _FACTS),
        times,
    )


def further() -> float:
    """Microseconds of CPU that each further PNG adds to a request."""
    return (whole(_MANY) - whole(_FEW)) / (_MANY - _FEW)


def main() -> None:
    """Print the table."""
    rows = measure()
    print(f"{'a unique 1024x1024 image in a body':44} {'us':>10} {'times ours':>11} {'kB':>8}")
    for name, us, kb in rows:
        print(f"{name:44} {us:10.1f} {us / rows[0].us:11.0f} {kb:8.1f}")
    print(f"a whole request with one PNG: {whole(1):.1f} us, each further one {further():.1f} us")


if __name__ == "__main__":
    main()
