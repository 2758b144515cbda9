from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from bench.server import certificate
from loadchaos.campaigns.recorder import proxy as proxies
from loadchaos.campaigns.recorder.tap import ConnectionTap
from loadchaos.core.tls import TlsSettings
from tests.campaigns.recorder.conftest import (
    DONE,
    WAIT_S,
    RunningProxy,
    SeenExchanges,
    begins,
    event,
    post,
    read_all,
    read_until,
)
from tests.raw_sockets import LAST_CHUNK, SSE_HEAD, ConnectionServer, Handler, read_request


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


class Between:
    """The proxy in front of a TLS server with a handler."""

    def __init__(self, files: tuple[Path, Path], handler: Handler, trusted: TlsSettings) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)

        def secured(connection: socket.socket) -> None:
            with context.wrap_socket(connection, server_side=True) as inner:
                handler(inner)

        self.server, self.seen = ConnectionServer(secured), SeenExchanges()
        self.running = RunningProxy(self.server.port, lambda: ConnectionTap(self.seen), trusted.context())

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.close()
        self.server.close()


@pytest.fixture
def left() -> threading.Event:
    return threading.Event()


def test_stream_of_a_tls_server_arrives(files: tuple[Path, Path]) -> None:
    def serve(c: socket.socket) -> None:
        read_request(c)
        c.sendall(SSE_HEAD + event("one") + event(None, "stop") + DONE + LAST_CHUNK)
        read_request(c)

    with Between(files, serve, TlsSettings(ca=str(files[0]))) as both, both.running.connect() as client:
        client.sendall(post(b"x" * 500_000))
        assert read_until(client, LAST_CHUNK).startswith(SSE_HEAD)
        assert both.seen.outcomes() == ["ok"]


def test_client_that_leaves_a_tls_server_ends_its_request(files: tuple[Path, Path], left: threading.Event) -> None:
    def serve(c: socket.socket) -> None:
        assert c.recv(1) == b""
        left.set()

    with Between(files, begins(serve), TlsSettings(ca=str(files[0]))) as both:
        with both.running.connect() as client:
            client.sendall(post(b"{}"))
            read_until(client, event("one"))
        assert left.wait(WAIT_S)
        assert both.seen.outcomes() == ["aborted"]
        assert both.running.settle() == 0


def test_server_with_an_unknown_certificate_is_answered_with_502(files: tuple[Path, Path]) -> None:
    with Between(files, lambda c: None, TlsSettings()) as both, both.running.connect() as client:
        reasons: list[str] = []
        both.running.proxy.on_refused = reasons.append
        client.sendall(post(b"{}"))
        assert read_all(client) == proxies.BAD_GATEWAY
        assert both.seen.outcomes() == ["connect_error"]
    assert "certificate is not trusted" in reasons[0]
    assert "--ca" in reasons[0]
