"""Answers are bounded in time and size, on raw sockets."""

import asyncio
import gzip
import re
import resource
import socket
import time
import zlib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import httpx
import pytest

from loadchaos.core import http_client
from loadchaos.core.errors import TargetError
from tests.discovering import discovering
from tests.raw_sockets import ConnectionServer, Handler

KEY = "s3cr3t-value+of/a-key"


def head(length: int, *more: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {length}", *more, "", ""]).encode()


def drips_body(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(head(1000))
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def drips_head(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    for byte in head(1000):
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def huge(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(head(600 << 20))
    for _ in range(600):
        connection.sendall(b"x" * (1 << 20))


@cache
def bomb() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()


def gzip_bomb(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(head(len(bomb()), "Content-Encoding: gzip") + bomb())


def packed(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    data = gzip.compress(b'{"a": 1}')
    connection.sendall(head(len(data), "Content-Encoding: gzip") + data)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (drips_body, http_client.IncompleteError),
        (drips_head, TimeoutError),
        (huge, http_client.TooLargeError),
        (gzip_bomb, http_client.TooLargeError),
    ],
)
async def test_bounded_request_ends_in_time_and_memory(answer: Handler, error: type[Exception]) -> None:
    limit_s = 60.0 if error is http_client.TooLargeError else 2.0
    bomb()  # packing it is no part of the exchange
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with ConnectionServer(answer) as server:
        async with http_client.client() as http:
            with pytest.raises(error):
                await http_client.request(http, "GET", server.url, limit_s=limit_s)
        assert time.monotonic() - begin < limit_s + 15.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


async def test_bounded_request_unpacks_an_answer() -> None:
    with ConnectionServer(packed) as server:
        async with http_client.client() as http:
            answer = await http_client.request(http, "GET", server.url, limit_s=5.0)
    assert (answer.status, answer.text) == (200, '{"a": 1}')


class EndlessBody(httpx.AsyncByteStream):
    """A body that never ends; the headers before it need no time, however busy the machine is."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.05)


async def test_discovery_ends_at_the_third_answer_that_does_not_end() -> None:
    async with discovering(serve=lambda _: httpx.Response(200, stream=EndlessBody())) as client:
        for _ in range(2):
            answer = await client.ask("GET", "/x", limit_s=0.3)
            assert answer.status == 0
            assert "began but did not end" in answer.text
        with pytest.raises(TargetError, match="3 answers began and did not end"):
            await client.ask("GET", "/x", limit_s=0.3)


async def test_discovery_has_a_total_limit() -> None:
    with ConnectionServer(packed) as server:
        async with discovering(server.url) as client:
            assert (await client.ask("GET", "/x")).json() == {"a": 1}
            client.began_s -= 1801.0
            with pytest.raises(TargetError, match=r"was not identified within 30 min"):
                await client.ask("GET", "/x")


def test_every_client_of_requests_that_are_not_load_is_made_in_one_place() -> None:
    package = Path(http_client.__file__).parent.parent
    made = re.compile(r"^(?!.*[\"']).*httpx\.(?:Async)?Client\(", re.MULTILINE)
    found = {str(p.relative_to(package)) for p in package.rglob("*.py") if made.search(p.read_text())}
    assert found == {"core/http_client.py"}


async def test_client_sends_our_headers_with_those_of_the_user() -> None:
    async with http_client.client({"X-Team": "a", "Accept-Encoding": "gzip"}) as http:
        sent = http.headers
    assert (sent["x-team"], sent.get_list("accept-encoding")) == ("a", ["identity"])


@pytest.mark.parametrize("consumed", [False, True])
async def test_answer_hides_the_key_of_its_client(consumed: bool) -> None:
    body = {"text": f"version 1 {KEY}"} if consumed else {"stream": httpx.ByteStream(f"version 1 {KEY}".encode())}
    async with http_client.client({"Authorization": f"Bearer {KEY}"}) as http:
        http._transport, http._mounts = httpx.MockTransport(lambda _: httpx.Response(200, **body)), {}
        answer = await http_client.request(http, "GET", "http://x/version", limit_s=5)
    assert answer.text == "version 1 [redacted]"
