"""Authorization: `--authorize` is needed for all but local servers."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadchaos.chaos import authorization
from loadchaos.core.errors import AuthorizationError, OptionError

HARM = ["the attack reset_mm_cache"]


LISTENS = """
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
print(s.getsockname()[1], flush=True)
time.sleep(60)
"""


def listening(*arguments: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", LISTENS, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def local_port() -> Iterator[int]:
    """A listener whose command line is a server's."""
    yield from listening("vllm", "serve", "some-model")


@pytest.fixture
def proxy_port() -> Iterator[int]:
    """A listener with an unknown command line, as of a small proxy."""
    yield from listening("forward.py", "8000")


def test_check_allows_a_harmless_run() -> None:
    authorization.check("http://llm.example.com", [], [])


def test_check_needs_the_address_of_a_remote_server() -> None:
    with pytest.raises(AuthorizationError, match=r"--authorize llm\.example\.com:443"):
        authorization.check("https://llm.example.com/prefix", HARM, [])
    authorization.check("https://llm.example.com/prefix", HARM, ["llm.example.com:443"])


def test_check_refuses_authorization_for_another_host_or_port() -> None:
    for other in ("other.example.com:443", "llm.example.com:80"):
        with pytest.raises(AuthorizationError, match="authorized so far: "):
            authorization.check("https://llm.example.com", HARM, [other])


def test_check_allows_a_local_server_process(local_port: int) -> None:
    authorization.check(f"http://127.0.0.1:{local_port}", HARM, [])


def test_check_refuses_a_forwarder_on_loopback(local_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "/usr/bin/kubectl port-forward svc/vllm 8000"
    monkeypatch.setattr(authorization, "_listeners", lambda port: [forward])
    with pytest.raises(AuthorizationError, match=r"kubectl port-forward .* which forwards"):
        authorization.check(f"http://localhost:{local_port}", HARM, [])


@pytest.mark.parametrize(("owners", "message"), [([(None, "")], "is not visible"), ([], "No process is visible")])
def test_check_refuses_a_loopback_port_without_a_visible_owner(
    owners: list[tuple[None, str]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "_owners", lambda port: owners)
    with pytest.raises(AuthorizationError, match=message):
        authorization.check("http://127.0.0.1:9", HARM, [])
    authorization.check("http://127.0.0.1:9", HARM, ["127.0.0.1:9"])


def test_check_takes_localhost_and_127_0_0_1_for_two_addresses(
    local_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "_listeners", lambda port: [])
    with pytest.raises(AuthorizationError):
        authorization.check(f"http://localhost:{local_port}", HARM, [f"127.0.0.1:{local_port}"])


def test_check_refuses_a_listener_that_is_no_known_server(proxy_port: int) -> None:
    with pytest.raises(AuthorizationError, match="which is no known server"):
        authorization.check(f"http://127.0.0.1:{proxy_port}", HARM, [])
    authorization.check(f"http://127.0.0.1:{proxy_port}", HARM, [f"127.0.0.1:{proxy_port}"])


@pytest.mark.parametrize("text", ["nonsense", "host", "host:", ":80", "host:x"])
def test_check_refuses_an_authorization_without_host_and_port(text: str) -> None:
    with pytest.raises(OptionError, match="HOST:PORT"):
        authorization.check("http://llm.example.com", [], [text])


def test_refuse_wrong_pid_accepts_the_server_and_its_parent_only(local_port: int, proxy_port: int) -> None:
    pid = authorization.listener_pid(f"http://127.0.0.1:{local_port}")
    assert pid is not None
    authorization.refuse_wrong_pid(pid, [f"http://127.0.0.1:{local_port}"])
    authorization.refuse_wrong_pid(os.getpid(), [f"http://127.0.0.1:{local_port}"])  # the test started it
    authorization.refuse_wrong_pid(pid, [f"http://127.0.0.1:{proxy_port}", f"http://127.0.0.1:{local_port}"])
    with pytest.raises(
        OptionError, match=rf"--pid {pid} is not the server: .*port {proxy_port} \(listening there: \d+: "
    ):
        authorization.refuse_wrong_pid(pid, [f"http://127.0.0.1:{proxy_port}"])
    with pytest.raises(OptionError, match="no such process"):
        authorization.refuse_wrong_pid(1 << 30, [f"http://127.0.0.1:{local_port}"])
