"""Payloads: what a request contains, such as text, images or tools.

A payload is a module with `Options` (a pydantic model: its keys in a profile), `ORDER` and `add`, which adds to a
`Draft`. To add one, copy `tools.py` and add an entry to PAYLOADS below. Options may also offer `describe()` (for
`explain`), `variants()` (sent one after the other), `ignored_payloads(names)` (payloads without effect beside this one),
`warning(in_flight, requests)`, `notes()`, `per_request()`, `can_kill` and `prompts_differ` (no prompt repeats the
beginning of another one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from loadchaos.core.model import Facts, Request, Step
from loadchaos.load.payloads import (
    audio,
    batch,
    conversation,
    hostile_images,
    image_positions,
    images,
    near_limit,
    positions,
    quote,
    recorded,
    requests_file,
    sampling,
    structured,
    text,
    tools,
    video,
)
from loadchaos.load.payloads.base import Draft, Payload
from loadchaos.load.payloads.build import build as _build

__all__ = ["PAYLOADS", "Draft", "Payload", "build"]

PAYLOADS: Mapping[str, Payload] = {
    "text": cast("Payload", text),
    "quote": cast("Payload", quote),
    "images": cast("Payload", images),
    "video": cast("Payload", video),
    "audio": cast("Payload", audio),
    "hostile_images": cast("Payload", hostile_images),
    "conversation": cast("Payload", conversation),
    "near_limit": cast("Payload", near_limit),
    "positions": cast("Payload", positions),
    "image_positions": cast("Payload", image_positions),
    "sampling": cast("Payload", sampling),
    "structured": cast("Payload", structured),
    "tools": cast("Payload", tools),
    "batch": cast("Payload", batch),
    "requests": cast("Payload", requests_file),
    "recorded": cast("Payload", recorded),
}


def build(step: Step, facts: Facts) -> Request:
    """Build the request of a step for this server.

    Pure: an incident can rebuild the very bytes.
    """
    return _build(step, facts, PAYLOADS)
