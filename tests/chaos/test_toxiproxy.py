"""Our client of toxiproxy, against a fake that answers as version 2."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loadchaos.chaos import ToxiproxyProxy
from loadchaos.chaos.proxy import Proxy
from loadchaos.chaos.toxics import TOXICS, Toxic, parse_toxic
from loadchaos.core.errors import OptionError, TargetError


class Toxiproxy:
    """A fake toxiproxy with its routes, statuses and messages.

    Data passes through our own proxy. The answers are those of api.go of Shopify/toxiproxy 2.
    """

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
                return await self.add_toxic(name, body)
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

    async def add_toxic(self, name: str, body: Any) -> tuple[int, Any]:
        if body["stream"] not in ("upstream", "downstream"):
            return 400, {"error": "stream was invalid, can be either upstream or downstream", "status": 400}
        if body["type"] not in TOXICS or body["type"] == "down":
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
    """A fake toxiproxy, and the URL of a server to put it before."""
    fake = Toxiproxy()
    api = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    fake.api = f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}"
    try:
        yield fake, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/team"
    finally:
        for carrier in fake.carriers.values():
            if carrier._server is not None:
                carrier._server.close()
        api.close()
        server.close()
        await asyncio.sleep(0.05)


async def request_s(address: tuple[str, int]) -> float:
    """Ask once, and return the seconds until the answer has come."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"hello")
    finally:
        writer.close()
    return time.monotonic() - begin


def test_toxiproxy_proxy_is_created_given_toxics_and_deleted() -> None:
    async def run() -> None:
        async with toxiproxy() as (fake, url):
            proxy = ToxiproxyProxy(fake.api, url)
            await proxy.open()
            assert proxy.description == "toxiproxy 2.12.0"
            (ours,) = fake.proxies
            assert ours.startswith("loadchaos-")
            assert await proxy.added_delay_s("/health", ssl.create_default_context()) is not None
            for kind in TOXICS:
                if kind != "down":
                    toxic = parse_toxic(kind, kind, {"share": "0.25", "stream": "upstream"})
                    await proxy.add(toxic)
                    (laid,) = fake.proxies[ours]["toxics"]
                    assert (laid["type"], laid["toxicity"], laid["stream"]) == (kind, 0.25, "upstream")
                    await proxy.remove(toxic)
            latency = parse_toxic("network_latency", "latency", {"latency": "300"})
            await proxy.add(latency)
            assert await request_s(proxy.address) >= 0.3
            await proxy.remove(latency)
            down = parse_toxic("network_down", "down", {})
            await proxy.add(down)
            with pytest.raises(ConnectionError):
                await request_s(proxy.address)
            await proxy.remove(down)
            await request_s(proxy.address)
            await proxy.close()
            assert fake.proxies == {}

    asyncio.run(run())


def test_toxiproxy_refusals_are_reported_with_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "ours")

    async def run() -> None:
        async with toxiproxy() as (fake, url):
            proxy = ToxiproxyProxy(fake.api, url)
            await proxy.open()
            await proxy.add(parse_toxic("network_latency", "latency", {}))
            with pytest.raises(OSError, match="409: toxic already exists"):
                await proxy.add(parse_toxic("network_latency", "latency", {}))
            again = ToxiproxyProxy(fake.api, url)
            with pytest.raises(TargetError, match="proxy already exists"):
                await again.open()
            await proxy.close()

    asyncio.run(run())


def test_toxiproxy_missing_api_or_unreachable_server_is_an_error() -> None:
    async def run() -> None:
        with pytest.raises(TargetError, match="no answer"):
            await ToxiproxyProxy("http://127.0.0.1:9", "http://127.0.0.1:8000").open()

    asyncio.run(run())
    with pytest.raises(OptionError, match="cannot reach it"):
        ToxiproxyProxy("http://toxi.example.com:8474", "http://127.0.0.1:8000")
