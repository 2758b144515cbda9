"""Payloads: what a request contains, such as text, images or tools. `request_builder.py` makes a request with them.

A payload is a module with `Options`, a `Payload` (base.py): its fields are its keys in a profile, `add` adds to a
`Request`. To add one, copy `tools.py` and add its name to PAYLOADS below. What `explain` and the checks of a profile ask of
it stands in profile/request_options.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from loadchaos.load.payloads.base import Payload

__all__ = ["PAYLOADS", "Payload"]

PAYLOADS: Mapping[str, type[Payload]] = {
    name.removesuffix("_file"): import_module(f"{__name__}.{name}").Options
    for name in (
        "text", "quote", "images", "video", "audio", "hostile_images", "conversation", "near_limit", "positions",
        "image_positions", "sampling", "structured", "tools", "batch", "requests_file", "recorded",
    )
}  # fmt: skip
"""Payloads by their names in a profile, which are those of their files; `requests` is in requests_file.py."""
