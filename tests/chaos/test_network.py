import asyncio
import ssl
import time

import pytest

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.network import LocalProxy
from loadchaos.chaos.toxics import Toxic, parse_toxic
from loadchaos.core.errors import OptionError
from tests.chaos.conftest import AdminServer, injector
from tests.chaos.toxic_proxy import echoed, proxied, toxic_of
from tests.rows import EmittedRows as Rows


async def test_proxy_without_toxics_passes_everything_in_both_directions() -> None:
    async with proxied() as (_, connect):
        blob = bytes(range(256)) * 4096
        assert await echoed(await connect(), blob) == blob
        reader, writer = await connect()
        writer.write(b"x")
        writer.write_eof()
        assert await reader.read() == b"x", "the end of the stream passes, too"


async def test_latency_delays_data_until_it_is_removed() -> None:
    async with proxied() as (proxy, connect):
        client = await connect()
        await echoed(client)
        await proxy.add(toxic_of("latency", latency="300"))
        begin = time.monotonic()
        await echoed(client)
        assert time.monotonic() - begin >= 0.3, "an open connection is hit, too"
        assert await proxy.remove("latency") == 1
        begin = time.monotonic()
        await echoed(client)
        assert time.monotonic() - begin < 0.3


async def test_fault_that_no_data_met_hit_nothing() -> None:
    async with proxied() as (proxy, connect):
        client = await connect()
        await echoed(client)
        assert await proxy.add(toxic_of("latency", latency="300")) == (1, 1)
        assert await proxy.remove("latency") == 0


async def test_bandwidth_limits_the_rate() -> None:
    async with proxied() as (proxy, connect):
        await proxy.add(toxic_of("bandwidth", rate="50"))
        begin = time.monotonic()
        await echoed(await connect(), b"x" * 20 * 1024)
        assert time.monotonic() - begin >= 0.3  # 20 KB at 50 KB/s


async def test_slicer_cuts_data_and_loses_none() -> None:
    async with proxied() as (proxy, connect):
        await proxy.add(toxic_of("slicer", average_size="3", size_variation="2"))
        blob = bytes(range(256))
        assert await echoed(await connect(), blob) == blob


async def test_slow_close_delays_the_end_of_the_stream() -> None:
    async with proxied() as (proxy, connect):
        await proxy.add(toxic_of("slow_close", delay="300"))
        reader, writer = await connect()
        writer.write_eof()
        begin = time.monotonic()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert time.monotonic() - begin >= 0.25


async def test_timeout_passes_nothing_until_it_is_removed() -> None:
    async with proxied() as (proxy, connect):
        client = await connect()
        await proxy.add(toxic_of("timeout"))
        client[1].write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client[0].readexactly(5), 0.2)
        await proxy.remove("timeout")
        assert await asyncio.wait_for(client[0].readexactly(5), 5) == b"hello"


async def test_timeout_with_a_limit_closes_the_connection() -> None:
    async with proxied() as (proxy, connect):
        reader, writer = await connect()
        await proxy.add(toxic_of("timeout", timeout="100"))
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_reset_peer_resets_the_connection() -> None:
    async with proxied() as (proxy, connect):
        client = await connect()
        await echoed(client)
        await proxy.add(toxic_of("reset_peer"))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client[0].read(), 5)


async def test_limit_data_closes_the_connection_after_exactly_that_much() -> None:
    async with proxied() as (proxy, connect):
        await proxy.add(toxic_of("limit_data", bytes="7"))
        reader, writer = await connect()
        writer.write(b"0123456789")
        assert await asyncio.wait_for(reader.read(), 5) == b"0123456"


async def test_down_refuses_and_resets_and_serves_on_the_same_port_afterwards() -> None:
    async with proxied() as (proxy, connect):
        client = await connect()
        await echoed(client)
        await proxy.add(toxic_of("down"))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client[0].read(), 5)
        with pytest.raises(ConnectionRefusedError):
            await connect()
        await proxy.remove("down")
        assert await echoed(await connect()) == b"hello"


async def test_share_hits_some_connections_and_always_the_same_ones() -> None:
    async with proxied() as (proxy, connect):
        toxic = toxic_of("latency", share=0.4)
        clients = [client for _ in range(20) for client in [await connect()]]
        await asyncio.gather(*(echoed(client) for client in clients))
        hit = [link.hits(toxic) for link in proxy._links]
        assert 0 < sum(hit) < 20
        assert hit == [link.hits(toxic) for link in proxy._links]


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("lag", {}, "latency, bandwidth"),
        ("latency", {"delay": "1"}, "latency, jitter"),
        ("latency", {"latency": "x"}, "number"),
        ("bandwidth", {"rate": "-1"}, "below 0"),
    ],
)
def test_parse_toxic_refuses_unknown_types_and_attributes(kind: str, params: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_toxic("x", kind, params)


@pytest.mark.parametrize("traffic", [True, False])
async def test_network_attack_succeeds_where_it_meets_traffic(server: AdminServer, rows: Rows, traffic: bool) -> None:
    server.answers["/health"] = (200, b"ok")

    proxy = LocalProxy(f"{server.url}/prefix/v1")
    await proxy.open()
    assert await proxy.added_delay_s("/health", ssl.create_default_context()) is not None
    spec = {"network": "latency", "params": {"latency": "5"}, "at_s": 0.0, "for_s": 0.5}
    attacks = injector([spec], AttackedReplica("a", server.url, proxy=proxy), rows.append)
    await attacks.start()
    if traffic:
        await rows.until(lambda: rows.of(what="begin"))
        await proxy.added_delay_s("/health", ssl.create_default_context())
    await rows.until(lambda: rows.of(what="end"))
    await attacks.stop()
    await proxy.close()
    assert [(r["what"], r["ok"]) for r in rows] == [("begin", None), ("undo", True), ("end", traffic or None)]
    assert (rows[0]["attack"], rows[0]["kind"]) == ("network_latency", "network")
    assert rows[2]["text"].startswith("downstream: latency 5 ms, jitter 0 ms; hit 0 of ")
    assert rows[2]["text"].endswith("; no connection had data while the fault was in force") is not traffic


async def test_network_attack_down_succeeds_without_an_open_connection(server: AdminServer, rows: Rows) -> None:
    """Clients that are refused meet no proxy that could count them."""
    proxy = LocalProxy(server.url)
    await proxy.open()
    attacks = injector(
        [{"network": "down", "at_s": 0.0, "for_s": 0.2}], AttackedReplica("a", server.url, proxy=proxy), rows.append
    )
    await attacks.start()
    await rows.until(lambda: rows.of(what="end"))
    await attacks.stop()
    await proxy.close()
    assert [(r["what"], r["ok"]) for r in rows] == [("begin", None), ("undo", True), ("end", True)]


async def test_network_attack_down_is_unknown_where_connections_are_still_accepted(
    server: AdminServer, rows: Rows
) -> None:
    class Deaf(LocalProxy):
        async def add(self, toxic: Toxic) -> tuple[int, int]:
            return 0, 0

    proxy = Deaf(server.url)
    await proxy.open()
    spec = {"network": "down", "at_s": 0.0, "for_s": 0.1}
    attacks = injector([spec], AttackedReplica("a", server.url, proxy=proxy), rows.append)
    await attacks.start()
    await rows.until(lambda: rows.of(what="end"))
    await attacks.stop()
    await proxy.close()
    assert rows.of(what="end")[0]["ok"] is None
    assert rows.of(what="end")[0]["text"].endswith("; new connections are accepted all the same")


async def test_network_attack_fails_when_the_proxy_is_gone(server: AdminServer, rows: Rows) -> None:
    proxy = LocalProxy(server.url)
    await proxy.open()
    await proxy.close()
    spec = {"network": "down", "at_s": 0.0, "for_s": 0.1}
    attacks = injector([spec], AttackedReplica("a", server.url, proxy=proxy), rows.append)
    await attacks.start()
    await rows.until(lambda: rows.of(what="end"))
    await attacks.stop()
    assert rows.of(what="end")[0]["ok"] is False
