"""The proxy and its toxics: what passes is what was sent, later, narrower, cut or not at all, and well again afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_args

import pytest

from loadchaos.chaos import AttackedReplica, AttackInjector, ProxyPath
from loadchaos.chaos.proxy import Proxy
from loadchaos.chaos.toxics import TYPES, Toxic, toxic
from loadchaos.core.errors import OptionError
from loadchaos.core.redact import Redactor
from loadchaos.profile.attack import NetworkFault
from loadchaos.server.dialects import DIALECTS

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, Callable[[], Awaitable[Client]]]]:
    """A proxy before an echo, and how to connect through it."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy("127.0.0.1", server.sockets[0].getsockname()[1])
    await proxy.open()
    clients: list[asyncio.StreamWriter] = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.listening)
        clients.append(writer)
        return reader, writer

    try:
        yield proxy, connect
    finally:
        for writer in clients:
            writer.close()
        if proxy._server is not None:
            proxy._server.close()
        server.close()
        await asyncio.sleep(0.05)  # the links see their ends


def lay(kind: str, **params: Any) -> Toxic:
    return toxic(kind, kind, params)


async def said(client: Client, text: bytes = b"hello") -> bytes:
    client[1].write(text)
    return await asyncio.wait_for(client[0].readexactly(len(text)), 5)


def story(told: Callable[[Proxy, Callable[[], Awaitable[Client]]], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with proxied() as (proxy, connect):
            await told(proxy, connect)

    asyncio.run(whole())


def test_without_toxics_everything_passes_unchanged_in_both_directions() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        blob = bytes(range(256)) * 4096
        assert await said(await connect(), blob) == blob
        reader, writer = await connect()
        writer.write(b"x")
        writer.write_eof()
        assert await reader.read() == b"x", "the end passes, too"

    story(told)


def test_latency_delays_what_passes_and_removal_ends_it() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        client = await connect()
        await said(client)
        await proxy.add(lay("latency", latency="300"))
        begin = time.monotonic()
        await said(client)
        assert time.monotonic() - begin >= 0.3, "a connection there was before is hit, too"
        await proxy.remove("latency")
        begin = time.monotonic()
        await said(client)
        assert time.monotonic() - begin < 0.3

    story(told)


def test_bandwidth_takes_its_time() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        await proxy.add(lay("bandwidth", rate="50"))
        begin = time.monotonic()
        await said(await connect(), b"x" * 20 * 1024)
        assert time.monotonic() - begin >= 0.3  # 20 KB at 50 KB/s

    story(told)


def test_a_slicer_cuts_and_loses_nothing() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        await proxy.add(lay("slicer", average_size="3", size_variation="2"))
        blob = bytes(range(256))
        assert await said(await connect(), blob) == blob

    story(told)


def test_a_timeout_passes_nothing_until_it_is_removed() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        client = await connect()
        await proxy.add(lay("timeout"))
        client[1].write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client[0].readexactly(5), 0.2)
        await proxy.remove("timeout")
        assert await asyncio.wait_for(client[0].readexactly(5), 5) == b"hello"

    story(told)


def test_a_timeout_with_a_limit_ends_the_connection() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        reader, writer = await connect()
        await proxy.add(lay("timeout", timeout="100"))
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.read(), 5) == b""

    story(told)


def test_a_reset_is_a_reset() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        client = await connect()
        await said(client)
        await proxy.add(lay("reset_peer"))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client[0].read(), 5)

    story(told)


def test_a_limit_of_data_ends_the_connection_behind_exactly_that_much() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        await proxy.add(lay("limit_data", bytes="7"))
        reader, writer = await connect()
        writer.write(b"0123456789")
        assert await asyncio.wait_for(reader.read(), 5) == b"0123456"

    story(told)


def test_down_refuses_and_cuts_and_up_again_serves_on_the_same_port() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        client = await connect()
        await said(client)
        await proxy.add(lay("down"))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client[0].read(), 5)
        with pytest.raises(ConnectionRefusedError):
            await connect()
        await proxy.remove("down")
        assert await said(await connect()) == b"hello"

    story(told)


def test_a_share_hits_some_connections_and_always_the_same_ones() -> None:
    async def told(proxy: Proxy, connect: Any) -> None:
        one = lay("latency", share=0.4)
        links = [link for _ in range(20) for link in [await connect()]]
        await asyncio.gather(*(said(link) for link in links))
        hit = [link.hits(one) for link in proxy._links]
        assert 0 < sum(hit) < 20
        assert hit == [link.hits(one) for link in proxy._links]

    story(told)


@pytest.mark.parametrize(
    ("kind", "params", "says"),
    [
        ("lag", {}, "latency, bandwidth"),
        ("latency", {"delay": "1"}, "latency, jitter"),
        ("latency", {"latency": "x"}, "number"),
        ("bandwidth", {"rate": "-1"}, "below 0"),
    ],
)
def test_a_toxic_nobody_knows_is_our_users_mistake(kind: str, params: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        toxic("x", kind, params)


def test_attacks_lay_and_lift_toxics_on_the_child_in_the_path(server: Any, rows: Any) -> None:
    server.answers["/health"] = (200, b"ok")

    async def whole() -> None:
        path = ProxyPath(f"{server.url}/prefix/v1")
        await path.open()
        assert await path.added_delay_s("/health", ssl.create_default_context()) is not None
        spec = {"network": "latency", "params": {"latency": "5", "share": 0.5}, "at_s": 0.0, "for_s": 0.1}
        attacks = AttackInjector(
            [spec], DIALECTS["vllm"], [AttackedReplica("a", server.url, path=path)], rows.append, Redactor()
        )
        await attacks.start()
        await rows.until(lambda: rows.of(what="end"))
        await attacks.stop()
        await path.close()

    asyncio.run(whole())
    assert [(r["what"], r["ok"]) for r in rows] == [("begin", None), ("undo", True), ("end", True)]
    assert (rows[0]["attack"], rows[0]["kind"]) == ("network_latency", "network")
    assert "50% of the connections" in rows[2]["text"]


def test_a_proxy_that_is_gone_is_told(server: Any, rows: Any) -> None:
    async def whole() -> None:
        path = ProxyPath(server.url)
        await path.open()
        await path.close()
        spec = {"network": "down", "at_s": 0.0, "for_s": 0.1}
        attacks = AttackInjector(
            [spec], DIALECTS["vllm"], [AttackedReplica("a", server.url, path=path)], rows.append, Redactor()
        )
        await attacks.start()
        await rows.until(lambda: rows.of(what="end"))
        await attacks.stop()

    asyncio.run(whole())
    assert rows.of(what="end")[0]["ok"] is False


def test_the_profile_and_we_know_the_same_toxics() -> None:
    assert set(TYPES) == set(get_args(NetworkFault))


def test_no_toxic_excuses_a_server_error() -> None:
    assert all("http_error" not in kind.effects for kind in TYPES.values())
