"""Nothing is harmed without the user's word for that very address, except a plain server process on this machine."""

import socket
from collections.abc import Iterator

import pytest

from loadchaos.attacks import authority
from loadchaos.errors import AuthorizationError

HARM = ["the attack reset_mm_cache"]


@pytest.fixture
def local_port() -> Iterator[int]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


def test_a_harmless_run_needs_no_word() -> None:
    authority.check("http://llm.example.com", [], [])


def test_a_remote_server_needs_its_address() -> None:
    with pytest.raises(AuthorizationError, match=r"--authorize llm\.example\.com:443"):
        authority.check("https://llm.example.com/prefix", HARM, [])
    authority.check("https://llm.example.com/prefix", HARM, ["llm.example.com:443"])


def test_authorisation_for_another_host_or_port_is_none() -> None:
    for other in ("other.example.com:443", "llm.example.com:80"):
        with pytest.raises(AuthorizationError, match="authorised is"):
            authority.check("https://llm.example.com", HARM, [other])


def test_a_server_process_on_this_machine_is_free(local_port: int) -> None:
    authority.check(f"http://127.0.0.1:{local_port}", HARM, [])


def test_a_forwarder_on_loopback_is_not_local(local_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "_listeners", lambda port: ["kubectl"])
    with pytest.raises(AuthorizationError, match="kubectl, which forwards"):
        authority.check(f"http://localhost:{local_port}", HARM, [])


def test_a_loopback_port_without_a_visible_owner_is_not_local() -> None:
    with pytest.raises(AuthorizationError, match="cannot be seen"):
        authority.check("http://127.0.0.1:9", HARM, [])
    authority.check("http://127.0.0.1:9", HARM, ["127.0.0.1:9"])


def test_loopback_by_another_name_is_another_address(local_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "_listeners", lambda port: [])
    with pytest.raises(AuthorizationError):
        authority.check(f"http://localhost:{local_port}", HARM, [f"127.0.0.1:{local_port}"])
