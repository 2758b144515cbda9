"""The client of discovery: the requests that identify a server before the load, with their headers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from loadchaos.core import http_client
from loadchaos.run.asker import HttpAsker
from loadchaos.server.discovery.client import DiscoveryClient


@asynccontextmanager
async def discovery_client(
    base_url: str,
    admin_url: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | bool = True,
    model: str | None = None,
) -> AsyncIterator[DiscoveryClient]:
    """A client of discovery, and the connections that it uses. `headers`: those of the user, such as the API key."""
    async with http_client.client(headers, tls) as http:
        yield DiscoveryClient(HttpAsker(http), base_url, admin_url or base_url, model=model)
