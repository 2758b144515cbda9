"""Make a body of a shape: equal hashes become equal texts and images. Texts have the recorded numbers of characters
and, nearly, of bytes. Images have the recorded size and format.
"""

from __future__ import annotations

import base64
import functools
import io
import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from loadchaos.campaigns.recorder.shape import BLOCK_CHARS, BLOCK_IDS
from loadchaos.core.limits import MOST_IMAGE_PIXELS

_WORDS = (
    "time", "house", "river", "paper", "light", "music", "table", "image", "night", "work", "good", "old", "the", "of",
    "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "with", "they", "at", "be", "this", "from",
)  # fmt: skip
_TWO_BYTES = "абвгдежзиклмнопрстуфхцчшщэюя"
_THREE_BYTES = "的一是不了人我在有他这中大来上国时要就出会可也你对生能而子那得于着下自之年过"
_FOUR_BYTES = "😀😁😂🤣😃😄😅😆😉😊😋😎😍😘🥰😗"
_ALPHABETS = ((3.5, _FOUR_BYTES), (2.2, _THREE_BYTES), (1.4, _TWO_BYTES))
_LOWEST_ID, _HIGHEST_ID = 10, 1000
_SETTING_TEXTS = {"pattern": "[a-z]+", "guided_regex": "[a-z]+", "regex": "[a-z]+"}
_DROPPED = {"grammar", "guided_grammar", "ebnf", "chat_template", "structural_tag", "previous_response_id"}
"""Settings whose text cannot be made up: with a made-up text the server would refuse the request."""


def body_of(shape: Any, settings: Mapping[str, object]) -> bytes:
    value = _value(shape, "")
    if isinstance(value, dict):
        value.update(settings)
    return orjson.dumps(value)


def _value(shape: Any, key: str) -> Any:
    if isinstance(shape, list):
        return [_value(v, key) for v in shape]
    if not isinstance(shape, dict):
        return shape
    if len(shape) == 1:
        mark, content = next(iter(shape.items()))
        made = _marked(mark, content, key)
        if made is not None:
            return made
    return {k: _value(v, k) for k, v in shape.items() if k not in _DROPPED}


def _marked(mark: str, content: Any, key: str) -> Any:
    if mark == "$text":
        return _SETTING_TEXTS.get(key) or _text(*content)
    if mark == "$ids":
        return _ids(*content)
    if mark == "$image":
        return _image(*content)
    if mark == "$blob":
        return _image("PNG", 64, 64, 0, content[2])
    if mark == "$url":
        return _image("PNG", 512, 512, 0, content)
    if mark == "$name":
        return content
    if mark == "$number":
        return int("1" * min(int(content), 15))
    if mark == "$json":
        return orjson.dumps(_value(content, "")).decode()
    return None


def _text(chars: int, size: int, blocks: Sequence[str]) -> str:
    per_char = size / chars if chars else 1.0
    alphabet = next((letters for least, letters in _ALPHABETS if per_char >= least), "")
    return "".join(_block(h, min(BLOCK_CHARS, chars - i * BLOCK_CHARS), alphabet) for i, h in enumerate(blocks))


@functools.lru_cache(maxsize=65536)
def _block(name: str, chars: int, alphabet: str) -> str:
    rng = random.Random(name)
    if alphabet:
        return "".join(rng.choices(alphabet, k=chars))
    text = " ".join(rng.choices(_WORDS, k=chars // 3 + 1))
    padding = "".join(rng.choices(string.ascii_lowercase, k=max(0, chars - len(text))))
    return (text + padding)[:chars]


def _ids(count: int, blocks: Sequence[str]) -> list[int]:
    found: list[int] = []
    for name in blocks:
        rng = random.Random(name)
        found += [rng.randint(_LOWEST_ID, _HIGHEST_ID) for _ in range(min(BLOCK_IDS, count - len(found)))]
    return found


@functools.lru_cache(maxsize=256)
def _image(form: str, width: int, height: int, _size: int, name: str) -> str:
    from PIL import Image

    if width * height > MOST_IMAGE_PIXELS:
        width = height = 4096
    rng = random.Random(name)
    image = Image.new(
        "RGB", (max(1, width), max(1, height)), (rng.randrange(256), rng.randrange(256), rng.randrange(256))
    )
    for x in range(min(16, image.width)):
        image.putpixel((x, 0), (rng.randrange(256), rng.randrange(256), rng.randrange(256)))
    out = io.BytesIO()
    form = form if form in ("PNG", "JPEG", "WEBP", "GIF", "BMP") else "PNG"
    image.save(out, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"
