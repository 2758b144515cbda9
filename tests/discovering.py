"""The client of discovery, as tests ask with it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from loadchaos.run.asker import HttpAsker
from loadchaos.server.discovery.client import DiscoveryClient


@contextlib.asynccontextmanager
async def discovering(
    url: str = "http://s", serve: Callable[[httpx.Request], httpx.Response] | None = None, **options: Any
) -> AsyncIterator[DiscoveryClient]:
    """A client of the server at this URL, or of a function that answers in its place."""
    transport = httpx.MockTransport(serve) if serve is not None else None
    async with httpx.AsyncClient(transport=transport, trust_env=False) as http:
        yield DiscoveryClient(HttpAsker(http), url, options.pop("admin_url", url), **options)
