"""How many prompt tokens an image costs, where it was not measured: Qwen-VL's formula."""

from __future__ import annotations

import math

from loadchaos.model import Facts

_MERGE = 2
_MARKS = 2  # <|vision_start|> and <|vision_end|>


def qwen(width: int, height: int, *, patch: int = 16, low: int = 65536, high: int = 16777216) -> int:
    """Tokens of one image for Qwen3-VL (patch 14, low 3136, high 12845056: Qwen2 and 2.5-VL), its two marks included.

    transformers `image_processing_qwen2_vl.smart_resize`: both sides to multiples of patch x 2, scaled when the area is
    out of [low, high]. Raises ValueError for an aspect ratio above 200, which the server refuses.
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


def cost(facts: Facts, width: int, height: int) -> tuple[int, bool]:
    """(tokens of one image, whether that was measured on this server)."""
    measured = facts.image_tokens.get(f"{width}x{height}")
    if measured is not None:
        return measured, True
    try:
        return qwen(width, height), False
    except ValueError:
        return 0, False
