"""Traces of made-up requests, with their bodies in a folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import RequestTrace, TraceHeader, TraceSend


def stored_chat(folder: Path, words: int = 1) -> str:
    """Name of the stored body with a prompt of so many words."""
    messages = [{"role": "user", "content": "time " * words}]
    body = {"model": "other", "messages": messages, "max_tokens": 2, "stream": True}
    return store_body(folder / "bodies", orjson.dumps(body))


def trace_of(folder: Path, sends: Iterable[TraceSend], **header: Any) -> RequestTrace:
    return RequestTrace(TraceHeader(event="trace", version=1, model="other", **header), tuple(sends), folder=folder)


ONE_REQUEST = RequestTrace(TraceHeader(event="trace", version=1), (TraceSend(id="r0"),))
