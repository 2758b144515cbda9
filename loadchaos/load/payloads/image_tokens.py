"""Formulas for the prompt tokens of an image, by model family.

They are used where the cost was not measured on the server. Each counts what stands in the prompt in the image's place,
marks included (read in vLLM 0.18 and 0.32 and in transformers 4.57). Calibration by usage is preferred to any of them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence

from loadchaos.core.model import Facts

_MERGE = 2
_MARKS = 2  # <|vision_start|> and <|vision_end|>
Formula = Callable[[int, int], int]


def qwen(width: int, height: int, *, patch: int = 16, low: int = 65536, high: int = 16777216) -> int:
    """Tokens of one image for Qwen3-VL, its two marks included. Qwen2 and 2.5-VL: patch 14, low 3136, high 12845056.
    transformers `image_processing_qwen2_vl.smart_resize`: both sides become multiples of patch x 2, scaled when the area
    is out of [low, high]. Raises ValueError for an aspect ratio above 200, which the server refuses.
    """
    factor = patch * _MERGE
    if max(width, height) / min(width, height) > 200:
        raise ValueError(f"absolute aspect ratio must be smaller than 200 (got {width}x{height})")
    h, w = round(height / factor) * factor, round(width / factor) * factor
    if h * w > high:
        shrink = math.sqrt(height * width / high)
        h, w = (max(factor, math.floor(x / shrink / factor) * factor) for x in (height, width))
    elif h * w < low:
        grow = math.sqrt(low / (height * width))
        h, w = (math.ceil(x * grow / factor) * factor for x in (height, width))
    return (h // factor) * (w // factor) + _MARKS


def qwen2(width: int, height: int) -> int:
    """Tokens for Qwen2-VL and Qwen2.5-VL. Smaller patches, and limits of their checkpoints."""
    return qwen(width, height, patch=14, low=3136, high=12845056)


def internvl(width: int, height: int, *, tile: int = 448, most: int = 12) -> int:
    """Tokens for InternVL 2 and 3: 256 for each tile of 448 pixels. The grid is the nearest in shape, with a thumbnail
    beside more than one tile. vLLM `internvl.py` (0.18): of equally near grids the larger one counts if the image has
    more than half of its pixels.
    """
    grids = sorted(
        {(i, j) for i in range(1, most + 1) for j in range(1, most + 1) if i * j <= most}, key=lambda g: g[0] * g[1]
    )
    shape = width / height
    best, nearest = (1, 1), math.inf
    for columns, rows in grids:
        distance = abs(shape - columns / rows)
        if distance < nearest:
            best, nearest = (columns, rows), distance
        elif distance == nearest and width * height > 0.5 * tile * tile * columns * rows:
            best = (columns, rows)
    tiles = best[0] * best[1]
    return 256 * (tiles + (tiles > 1)) + 2  # <img> and </img>


def llava(width: int, height: int) -> int:  # noqa: ARG001 - every image is resized to 336 pixels
    """Tokens for LLaVA 1.5: CLIP-L/14 at 336 pixels has 24 x 24 patches. Its class token is dropped (vLLM `clip.py`)."""
    return 24 * 24


def gemma3(width: int, height: int) -> int:  # noqa: ARG001 - every image is pooled to 256
    """Tokens for Gemma 3: 256 soft tokens, begin and end marks, blank lines. Without pan and scan."""
    return 256 + 4


def llama4(width: int, height: int, *, tile: int = 336, most: int = 16) -> int:
    """Tokens for Llama 4. 144 for each tile of 336 pixels, separators, three marks. The whole image comes once more
    after the tiles. transformers `image_processing_llama4_fast.get_best_fit`: of all grids of at most 16 tiles the least
    enlargement, else the least reduction; of equals the smallest. Text of a grid:
    `processing_llama4._prompt_split_image`.
    """
    grids = [(r, c) for r in range(1, most + 1) for c in range(1, most + 1) if r * c <= most]
    scales = {g: min(g[1] * tile / width, g[0] * tile / height) for g in grids}
    larger = [s for s in scales.values() if s >= 1]
    chosen = min(larger) if larger else max(scales.values())
    rows, columns = min((g for g in grids if scales[g] == chosen), key=lambda g: g[0] * g[1])
    if rows * columns == 1:
        return 144 + 3
    return 144 * rows * columns + rows * (columns - 1) + rows + 144 + 3


FAMILIES: Sequence[tuple[re.Pattern[str], Formula]] = (
    (re.compile(r"qwen-?2(?:[._-]5)?[-_]?vl", re.IGNORECASE), qwen2),
    (re.compile(r"intern-?vl", re.IGNORECASE), internvl),
    (re.compile(r"llava(?!.*(?:next|onevision|1[._]6))", re.IGNORECASE), llava),
    (re.compile(r"gemma-?3", re.IGNORECASE), gemma3),
    (re.compile(r"llama-?4", re.IGNORECASE), llama4),
)
"""By the model's name, as the server gives it; Qwen3-VL's formula for every other."""


@functools.lru_cache(maxsize=256)
def predict(model: str, width: int, height: int) -> int:
    """Tokens of one image by its family's formula. Returns 0 where the family refuses the shape."""
    formula = next((f for pattern, f in FAMILIES if pattern.search(model)), qwen)
    try:
        return formula(width, height)
    except ValueError:
        return 0


def token_cost(facts: Facts, width: int, height: int) -> tuple[int, bool]:
    """Return (tokens of one image, True if they were measured on this server)."""
    measured = facts.image_tokens.get(f"{width}x{height}")
    return (measured, True) if measured is not None else (predict(facts.model, width, height), False)
