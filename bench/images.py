"""CPU microseconds for a unique image in a request body, ours beside Pillow's, in one run: `python -m bench.images`."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

from loadchaos.payloads import jpeg
from loadchaos.payloads.png import template

SIDE = 1024


def micros(make: Callable[[int], object], times: int) -> float:
    make(0)
    begin = time.process_time()
    for n in range(1, times + 1):
        make(n)
    return (time.process_time() - begin) / times * 1e6


def stacked(look: jpeg.Look, head: bytes, tail: bytes) -> tuple[float, bytes]:
    ready = jpeg.template(SIDE, SIDE, look)

    def make(n: int) -> bytes:
        return b"".join((head, *ready.base64(n.to_bytes(16, "big")), tail))

    return micros(make, 5_000), make(1)


def main() -> None:
    ours = template(SIDE, SIDE)
    head, tail = b'{"messages":[{"content":[{"image_url":{"url":"data:image/png;base64,', b'"}}]}]}'
    smooth = np.tile(np.arange(SIDE, dtype=np.uint8)[None, :, None], (SIDE, 1, 3))
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)

    def spliced(n: int) -> bytes:
        return b"".join((head, *ours.base64(n.to_bytes(16, "big")), tail))

    def pillow(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], kind: str) -> Callable[[int], bytes]:
        def make(n: int) -> bytes:
            pixels[0, 0] = (n & 255, n >> 8 & 255, n >> 16)
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, kind)
            url = "data:image/x;base64," + base64.b64encode(out.getvalue()).decode()
            return json.dumps({"messages": [{"content": [{"image_url": {"url": url}}]}]}).encode()

        return make

    base = micros(spliced, 20_000)
    print(f"{'a unique 1024x1024 image in a body':44} {'us':>10} {'times ours':>11} {'kB':>8}")
    rows = [("spliced PNG (ours)", base, spliced(1))]
    kinds: tuple[tuple[jpeg.Look, str], ...] = (("flat", "stacked JPEG (ours)"), ("photo", "stacked photo JPEG (ours)"))
    for look, name in kinds:
        rows.append((name, *stacked(look, head.replace(b"png", b"jpeg"), tail)))
    for name, make in (
        ("Pillow PNG, gradient", pillow(smooth.copy(), "PNG")),
        ("Pillow JPEG, gradient", pillow(smooth.copy(), "JPEG")),
        ("Pillow PNG, noise", pillow(noise.copy(), "PNG")),
    ):
        rows.append((name, micros(make, 5), make(1)))
    for name, cost, body in rows:
        print(f"{name:44} {cost:10.1f} {cost / base:11.0f} {len(body) / 1e3:8.1f}")


if __name__ == "__main__":
    main()
