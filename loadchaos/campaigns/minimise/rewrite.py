"""Simplify the JSON bodies of requests."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from PIL import Image

from loadchaos.load.wire.contract import OUTPUT_LIMITS

WORD = "time "
_KEPT = frozenset({"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options"})
_OUTPUTS = (*OUTPUT_LIMITS, "min_tokens")
_LEAST_SIDE = 32
Body = dict[str, Any]
Rewrite = Callable[[Body], Body]
"""Makes a simpler body, or returns it unchanged."""


def png(width: int, height: int, seed: int) -> str:
    """Make the data URL of a PNG of one colour; seeds give different images."""
    rows = (b"\0" + (seed & 0xFFFFFF).to_bytes(3, "big") * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    data = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


def image_size(url: str) -> tuple[int, int] | None:
    """Read width and height of the image of a data URL; None for others."""
    kind, _, text = url.partition(",")
    if not kind.startswith("data:image/"):
        return None
    try:
        with Image.open(io.BytesIO(base64.b64decode(text))) as image:
            return image.size
    except Exception:  # noqa: BLE001 - whatever Pillow raises, it is no image that it reads
        return None


def image_seed(url: str) -> int:
    return zlib.crc32(url.encode()) & 0xFFFFFF


def parts(body: Body) -> Iterator[tuple[list[Any], int, Body]]:
    """Yield (list, index, part) of each part of each message's content."""
    for message in body.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            yield from ((content, i, part) for i, part in enumerate(content) if isinstance(part, dict))


def image_url(part: Mapping[str, object]) -> str | None:
    image = part.get("image_url") if part.get("type") == "image_url" else None
    url = image.get("url") if isinstance(image, dict) else image
    return url if isinstance(url, str) else None


def words(body: Body) -> int:
    return sum(len(text.split()) for text in _texts(body))


def _texts(body: Body) -> Iterator[str]:
    if isinstance(body.get("prompt"), str):
        yield body["prompt"]
    for message in body.get("messages") or ():
        if isinstance(message.get("content"), str):
            yield message["content"]
    for _, _, part in parts(body):
        if isinstance(part.get("text"), str):
            yield part["text"]


def map_text(body: Body, change: Callable[[str], str]) -> Body:
    if isinstance(body.get("prompt"), str):
        body["prompt"] = change(body["prompt"])
    for message in body.get("messages") or ():
        if isinstance(message.get("content"), str):
            message["content"] = change(message["content"])
    for content, i, part in parts(body):
        if isinstance(part.get("text"), str):
            content[i] = {**part, "text": change(part["text"])}
    return body


def map_images(body: Body, change: Callable[[str], str]) -> Body:
    for content, i, part in parts(body):
        if (url := image_url(part)) is not None:
            content[i] = {"type": "image_url", "image_url": {"url": change(url)}}
    return body


def plain_words(share: float) -> Rewrite:
    """Replace each text by `share` as many equal words; those of a recorded text may have more tokens."""
    return lambda body: map_text(body, lambda text: _plain(text, share))


def _plain(text: str, share: float) -> str:
    found = text.split()
    return text if set(found) <= {WORD.strip()} else WORD * round(len(found) * share)


def generated_images(body: Body) -> Body:
    """Replace every image by one of its size that a short script can make."""

    def generated(url: str) -> str:
        size = image_size(url)
        return url if size is None or generated_seed(url) is not None else png(*size, image_seed(url))

    return map_images(body, generated)


def generated_seed(url: str) -> int | None:
    """Seed of an image that `png` made; None for other images."""
    size = image_size(url)
    if size is None or not url.startswith("data:image/png;base64,"):
        return None
    data = base64.b64decode(url.partition(",")[2])
    try:
        at = data.index(b"IDAT") + 4
        rows = zlib.decompress(data[at : at + struct.unpack(">I", data[at - 8 : at - 4])[0]])
    except (ValueError, zlib.error, struct.error):
        return None
    seed = int.from_bytes(rows[1:4], "big")
    return seed if png(*size, seed) == url else None


def without_images(body: Body) -> Body:
    return _fewer_images(body, 0)


def one_image(body: Body) -> Body:
    return _fewer_images(body, 1)


def _fewer_images(body: Body, most: int) -> Body:
    for message in body.get("messages") or ():
        if isinstance(message.get("content"), list):
            gone = [part for part in message["content"] if image_url(part) is not None][most:]
            message["content"] = [part for part in message["content"] if all(part is not other for other in gone)]
    return body


def half_images(body: Body) -> Body:
    def half(url: str) -> str:
        size = image_size(url)
        if size is None or min(size) < 2 * _LEAST_SIDE:
            return url
        return png(size[0] // 2, size[1] // 2, _seed(url))

    return map_images(body, half)


def _seed(url: str) -> int:
    """Seed of a smaller image; equal images keep equal seeds."""
    seed = generated_seed(url)
    return image_seed(url) if seed is None else seed


def half_text(body: Body) -> Body:
    def half(text: str) -> str:
        found = text.split()
        return text if len(found) < 2 else " ".join(found[: len(found) // 2]) + " "

    return map_text(body, half)


def multiplied_text(times: int) -> Rewrite:
    return lambda body: map_text(body, lambda text: " ".join([text.strip()] * times) + " ")


def output(body: Body) -> int:
    """Most tokens that an answer may have; 0 where the body does not say."""
    return max((body[key] for key in _OUTPUTS if isinstance(body.get(key), int)), default=0)


def double_output(body: Body) -> Body:
    return {key: 2 * value if key in _OUTPUTS and isinstance(value, int) else value for key, value in body.items()}


def half_output(body: Body) -> Body:
    for key in _OUTPUTS:
        if isinstance(body.get(key), int) and body[key] > 1:
            body[key] //= 2
    return body


def last_message(body: Body) -> Body:
    if isinstance(body.get("messages"), list):
        body["messages"] = body["messages"][-1:]
    return body


def not_streamed(body: Body) -> Body:
    return {k: v for k, v in body.items() if k not in ("stream", "stream_options")}


def without(*keys: str) -> Rewrite:
    return lambda body: {k: v for k, v in body.items() if k not in keys}


def smallest_images(body: Body) -> Body:
    def smallest(url: str) -> str:
        size = image_size(url)
        return url if size is None or max(size) <= _LEAST_SIDE else png(_LEAST_SIDE, _LEAST_SIDE, _seed(url))

    return map_images(body, smallest)


def one_word(body: Body) -> Body:
    return map_text(body, lambda text: text if len(text.split()) < 2 else f"{text.split()[0]} ")


def one_token(body: Body) -> Body:
    return exact_output(1)(body)


def exact_output(tokens: int) -> Rewrite:
    return lambda body: {
        key: tokens if key in _OUTPUTS and isinstance(value, int) else value for key, value in body.items()
    }


def filler(number: int, tokens: int) -> Rewrite:
    """Keep the options and ask for a long answer to one word; numbers give different texts, which share no KV block."""

    def filled(body: Body) -> Body:
        texts = {"prompt": f"{number} ", "messages": [{"role": "user", "content": f"{number} "}]}
        return exact_output(tokens)({key: texts.get(key, value) for key, value in body.items()})

    return filled


def removable_keys(bodies: list[Body]) -> list[str]:
    return sorted({key for body in bodies for key in body} - _KEPT)
