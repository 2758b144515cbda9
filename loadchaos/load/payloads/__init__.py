"""SHELF: what is sent. Each payload is one file with its options and how it adds to a request.

A new payload is one file with an `Options` model, an `ORDER` and `add`, and one entry in PAYLOADS; `text` is the one to
copy. Options may also offer `describe()` (for `explain`), `variants()` (options sent one after the other),
`ignored_payloads(names)` (payloads of the same traffic that have no effect beside this one), `warning(...)` (text if the
options have no effect under the load) and `can_kill`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from loadchaos.core.model import Facts, Request, Step
from loadchaos.load.payloads import (
    conversation,
    hostile_images,
    images,
    near_limit,
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
    "images": cast("Payload", images),
    "video": cast("Payload", video),
    "hostile_images": cast("Payload", hostile_images),
    "conversation": cast("Payload", conversation),
    "near_limit": cast("Payload", near_limit),
    "sampling": cast("Payload", sampling),
    "structured": cast("Payload", structured),
    "tools": cast("Payload", tools),
    "requests": cast("Payload", requests_file),
}


def build(step: Step, facts: Facts) -> Request:
    """The request of a step on this server. Pure: an incident can make the very bytes again."""
    return _build(step, facts, PAYLOADS)
