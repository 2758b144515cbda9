"""A toxiproxy's API driven: against a stand-in that answers as Shopify/toxiproxy 2 does (its api.go, read)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loadchaos.chaos import ToxiproxyPath
from loadchaos.chaos.proxy import Proxy
from loadchaos.chaos.toxics import TYPES, Toxic, toxic
from loadchaos.core.errors import OptionError, TargetError


class Toxiproxy:
    """Its routes, statuses and words. Bytes pass through our own proxy, so that latency and an end can be felt."""

    def __init__(self) -> None:
        self.proxies: dict[str, dict[str, Any]] = {}
        self.carriers: dict[str, Proxy] = {}
        self.api = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split("\r\n")[0].split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:])}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        status, body = await self.answer(method, path.strip("/").split("/"), json.loads(raw) if raw else None, headers)
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()

    async def answer(self, method: str, path: list[str], body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if headers.get("user-agent", "").startswith("Mozilla/"):
            return 403, "User agent not allowed"
        match (method, path):
            case ("GET", ["version"]):
                return 200, {"version": "2.12.0"}
            case ("POST", ["proxies"]):
                return await self.create(body)
            case (_, ["proxies", name, *_]) if name not in self.proxies:
                return 404, {"error": "proxy not found", "status": 404}
            case ("POST", ["proxies", name]):
                return await self.update(name, body)
            case ("DELETE", ["proxies", name]):
                await self.carriers[name].add(Toxic("gone", "down", "downstream", 1.0, {}))
                del self.proxies[name]
                return 204, None
            case ("POST", ["proxies", name, "toxics"]):
                return await self.poison(name, body)
            case ("DELETE", ["proxies", name, "toxics", which]):
                left = [t for t in self.proxies[name]["toxics"] if t["name"] != which]
                if len(left) == len(self.proxies[name]["toxics"]):
                    return 404, {"error": "toxic not found", "status": 404}
                self.proxies[name]["toxics"] = left
                await self.carriers[name].remove(which)
                return 204, None
        return 404, "404 page not found"

    async def create(self, body: Any) -> tuple[int, Any]:
        for needed in ("name", "upstream"):
            if not body.get(needed):
                return 400, {"error": f"missing required field: {needed}", "status": 400}
        if body["name"] in self.proxies:
            return 409, {"error": "proxy already exists", "status": 409}
        host, _, port = body["upstream"].rpartition(":")
        carrier = Proxy(host, int(port))
        await carrier.open()
        self.carriers[body["name"]] = carrier
        self.proxies[body["name"]] = {**body, "listen": f"127.0.0.1:{carrier.listening}", "toxics": []}
        return 201, self.proxies[body["name"]]

    async def update(self, name: str, body: Any) -> tuple[int, Any]:
        self.proxies[name] |= body
        if body["enabled"]:
            await self.carriers[name].remove("off")
        else:
            await self.carriers[name].add(Toxic("off", "down", "downstream", 1.0, {}))
        return 200, self.proxies[name]

    async def poison(self, name: str, body: Any) -> tuple[int, Any]:
        if body["stream"] not in ("upstream", "downstream"):
            return 400, {"error": "stream was invalid, can be either upstream or downstream", "status": 400}
        if body["type"] not in TYPES or body["type"] == "down":
            return 400, {"error": "invalid toxic type", "status": 400}
        if not all(isinstance(v, int) for v in body["attributes"].values()):  # Go's int64 takes no 200.0
            return 400, {"error": "bad request body: json: cannot unmarshal number", "status": 400}
        if any(t["name"] == body["name"] for t in self.proxies[name]["toxics"]):
            return 409, {"error": "toxic already exists", "status": 409}
        self.proxies[name]["toxics"].append(body)
        await self.carriers[name].add(
            Toxic(body["name"], body["type"], body["stream"], body["toxicity"], body["attributes"])
        )
        return 200, body


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def toxiproxy() -> AsyncIterator[tuple[Toxiproxy, str]]:
    """A toxiproxy, and the URL of a server to put it before."""
    it = Toxiproxy()
    api = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    it.api = f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}"
    try:
        yield it, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/team"
    finally:
        for carrier in it.carriers.values():
            if carrier._server is not None:
                carrier._server.close()
        api.close()
        server.close()
        await asyncio.sleep(0.05)


async def asked(address: tuple[str, int]) -> float:
    """Seconds until an answer has come."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"hello")
    finally:
        writer.close()
    return time.monotonic() - begin


def test_a_proxy_of_ours_is_laid_poisoned_healed_and_taken_out() -> None:
    async def story() -> None:
        async with toxiproxy() as (it, url):
            path = ToxiproxyPath(it.api, url)
            await path.open()
            assert path.what == "toxiproxy 2.12.0"
            (ours,) = it.proxies
            assert ours.startswith("loadchaos-")
            assert await path.added_delay_s("/health", ssl.create_default_context()) is not None
            for kind in TYPES:
                if kind != "down":
                    await path.add(toxic(kind, kind, {"share": "0.25", "stream": "upstream"}))
                    (laid,) = it.proxies[ours]["toxics"]
                    assert (laid["type"], laid["toxicity"], laid["stream"]) == (kind, 0.25, "upstream")
                    await path.remove(kind)
            await path.add(toxic("network_latency", "latency", {"latency": "300"}))
            assert await asked(path.address) >= 0.3
            await path.remove("network_latency")
            await path.add(toxic("network_down", "down", {}))
            with pytest.raises(ConnectionError):
                await asked(path.address)
            await path.remove("network_down")
            await asked(path.address)
            await path.close()
            assert it.proxies == {}

    asyncio.run(story())


def test_what_it_refuses_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "ours")

    async def story() -> None:
        async with toxiproxy() as (it, url):
            path = ToxiproxyPath(it.api, url)
            await path.open()
            await path.add(toxic("network_latency", "latency", {}))
            with pytest.raises(OSError, match="409: toxic already exists"):
                await path.add(toxic("network_latency", "latency", {}))
            again = ToxiproxyPath(it.api, url)
            with pytest.raises(TargetError, match="proxy already exists"):
                await again.open()
            await path.close()

    asyncio.run(story())


def test_an_api_that_is_not_there_and_a_server_it_cannot_reach_are_told() -> None:
    async def story() -> None:
        with pytest.raises(TargetError, match="no answer"):
            await ToxiproxyPath("http://127.0.0.1:9", "http://127.0.0.1:8000").open()

    asyncio.run(story())
    with pytest.raises(OptionError, match="cannot reach it"):
        ToxiproxyPath("http://toxi.example.com:8474", "http://127.0.0.1:8000")
