"""Payloads: what a request contains, such as text, images or tools. `request_builder.py` makes a request with them.

A payload is a module with `Options`, a `Payload` (base.py): its fields are its keys in a profile, `add` adds to a
`Request`. To add one, copy `tools.py` and add an entry to PAYLOADS below. What `explain` and the checks of a profile ask of
it stands in profile/request_options.py.
"""

from __future__ import annotations

from loadchaos.core.plugins import PluginTable
from loadchaos.load.payloads import (
    audio,
    batch,
    conversation,
    extra_body,
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
from loadchaos.load.payloads.base import Payload

__all__ = ["PAYLOADS", "Payload"]

PAYLOADS = PluginTable[type[Payload]](
    "payloads",
    Payload,
    {
        "text": text.Options,
        "quote": quote.Options,
        "images": images.Options,
        "video": video.Options,
        "audio": audio.Options,
        "hostile_images": hostile_images.Options,
        "conversation": conversation.Options,
        "near_limit": near_limit.Options,
        "positions": positions.Options,
        "image_positions": image_positions.Options,
        "sampling": sampling.Options,
        "structured": structured.Options,
        "tools": tools.Options,
        "batch": batch.Options,
        "extra_body": extra_body.Options,
        "requests": requests_file.Options,
        "recorded": recorded.Options,
    },
)
