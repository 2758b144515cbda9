"""A chat server with the recorder as middleware, loaded as vLLM loads it: `uvicorn tests.recorder.asgi_app:app`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


def event(delta: str, finish: str = "null") -> str:
    return f'data: {{"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'


async def answer(text: str) -> AsyncIterator[str]:
    yield event('{"role":"assistant","content":""}')
    for _ in range(10_000 if "hang" in text else 2):
        yield event('{"content":"Florin"}')
        await asyncio.sleep(0.005)
    yield event("{}", '"stop"')
    yield "data: [DONE]\n\n"


async def chat(request: Request) -> Response:
    body = await request.json()
    text = str(body["messages"][0]["content"])
    if "kill" in text:
        os.kill(os.getpid(), signal.SIGKILL)
    if "raise" in text:
        raise RuntimeError(text)
    if body.get("stream"):
        return StreamingResponse(answer(text), media_type="text/event-stream")
    return JSONResponse({"usage": {"prompt_tokens": 7, "completion_tokens": 3}})


def make(middleware: str = "loadchaos_vllm.Recorder") -> Starlette:
    """The app; vllm/entrypoints/serve/middleware/register.py imports the middleware in the same way."""
    module, name = middleware.rsplit(".", 1)
    imported = getattr(importlib.import_module(module), name)
    assert inspect.isclass(imported)
    made = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    made.add_middleware(cast("Any", imported))
    return made


app = make()
