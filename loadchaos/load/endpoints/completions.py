"""The text completion endpoint, /v1/completions: a prompt is sent as it is, without a chat template."""

from __future__ import annotations

import orjson

from loadchaos.core.model import Facts
from loadchaos.core.urls import COMPLETIONS_PATH
from loadchaos.load.endpoints.base import ModelEndpoint
from loadchaos.load.endpoints.chat import tail_options
from loadchaos.load.wire.request import Request


def _body(request: Request, facts: Facts) -> bytes:
    options = tail_options(request, facts)
    extra = dict(request.extra)
    if extra.pop("logprobs", None):
        extra["logprobs"] = extra.pop("top_logprobs")  # here it is the number of candidates
    return orjson.dumps({"model": request.model or facts.model, "prompt": request.text, **options, **extra})


ENDPOINT = ModelEndpoint(
    path=COMPLETIONS_PATH,
    body=_body,
    payloads=frozenset({"text", "quote", "near_limit", "structured", "sampling", "extra_body"}),
    lacks=frozenset({"sampling.thinking", "sampling.reasoning_effort"}),
)
