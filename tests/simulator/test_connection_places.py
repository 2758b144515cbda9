"""Places of the embedded server's HTTP layer."""

import asyncio

import pytest

from loadchaos.simulator.defects import rules_of
from loadchaos.simulator.engine.types import EngineConfig
from loadchaos.simulator.http.server import HttpExchange, HttpServer

HALVES = (b"GET /health HT", b"POST /v1/x HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc")
WHOLE = b"GET /health HTTP/1.1\r\n\r\n"


async def answered(defects: list[str], *, clients: int, sent: bytes) -> bool:
    """True if a server answers after so many clients have sent this and left."""
    rules = rules_of(EngineConfig(defects=frozenset(defects)))
    http = HttpServer(lambda exchange: HttpExchange.send(exchange, 200), True, rules.most_unfinished_connections)
    port = await http.listen("127.0.0.1", 0)
    for _ in range(clients):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await writer.drain()
        await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(WHOLE)
    try:
        return (await asyncio.wait_for(reader.readline(), 0.3)).startswith(b"HTTP/1.1 200")
    except TimeoutError:
        return False
    finally:
        writer.close()
        http.close_listener()
        http.close_all()


@pytest.mark.parametrize("half", HALVES)
def test_connection_slot_leak_ignores_clients_after_unfinished_requests(half: bytes) -> None:
    assert not asyncio.run(answered(["connection_slot_leak"], clients=20, sent=half))
    assert asyncio.run(answered(["connection_slot_leak"], clients=19, sent=half))
    assert asyncio.run(answered([], clients=20, sent=half))


@pytest.mark.parametrize("sent", [b"", WHOLE])
def test_connection_slot_leak_needs_unfinished_requests(sent: bytes) -> None:
    assert asyncio.run(answered(["connection_slot_leak"], clients=30, sent=sent))
