"""Nothing is harmed without the user's word for that very address, except a plain server process on this machine."""

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


def listening(*words: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", LISTENS, *words], stdout=subprocess.PIPE, text=True)
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
    """A listener nobody knows: a little proxy in Python, say."""
    yield from listening("forward.py", "8000")


def test_a_harmless_run_needs_no_word() -> None:
    authorization.check("http://llm.example.com", [], [])


def test_a_remote_server_needs_its_address() -> None:
    with pytest.raises(AuthorizationError, match=r"--authorize llm\.example\.com:443"):
        authorization.check("https://llm.example.com/prefix", HARM, [])
    authorization.check("https://llm.example.com/prefix", HARM, ["llm.example.com:443"])


def test_authorisation_for_another_host_or_port_is_none() -> None:
    for other in ("other.example.com:443", "llm.example.com:80"):
        with pytest.raises(AuthorizationError, match="authorised is"):
            authorization.check("https://llm.example.com", HARM, [other])


def test_a_server_process_on_this_machine_is_free(local_port: int) -> None:
    authorization.check(f"http://127.0.0.1:{local_port}", HARM, [])


def test_a_forwarder_on_loopback_is_not_local(local_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "/usr/bin/kubectl port-forward svc/vllm 8000"
    monkeypatch.setattr(authorization, "_listeners", lambda port: [forward])
    with pytest.raises(AuthorizationError, match=r"kubectl port-forward .* which forwards"):
        authorization.check(f"http://localhost:{local_port}", HARM, [])


@pytest.mark.parametrize(("owners", "told"), [([(None, "")], "cannot be seen"), ([], "Nobody is seen to listen there")])
def test_a_loopback_port_without_a_visible_owner_is_not_local(
    owners: list[tuple[None, str]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "_owners", lambda port: owners)
    with pytest.raises(AuthorizationError, match=told):
        authorization.check("http://127.0.0.1:9", HARM, [])
    authorization.check("http://127.0.0.1:9", HARM, ["127.0.0.1:9"])


def test_loopback_by_another_name_is_another_address(local_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "_listeners", lambda port: [])
    with pytest.raises(AuthorizationError):
        authorization.check(f"http://localhost:{local_port}", HARM, [f"127.0.0.1:{local_port}"])


def test_a_listener_that_is_not_known_to_be_a_server_is_asked_for(proxy_port: int) -> None:
    with pytest.raises(AuthorizationError, match="not known to be a server"):
        authorization.check(f"http://127.0.0.1:{proxy_port}", HARM, [])
    authorization.check(f"http://127.0.0.1:{proxy_port}", HARM, [f"127.0.0.1:{proxy_port}"])


@pytest.mark.parametrize("text", ["nonsense", "host", "host:", ":80", "host:x"])
def test_an_authorisation_that_names_no_address_is_a_mistake(text: str) -> None:
    with pytest.raises(OptionError, match="HOST:PORT"):
        authorization.check("http://llm.example.com", [], [text])


def test_a_pid_must_be_that_of_the_server_or_of_who_started_it(local_port: int, proxy_port: int) -> None:
    pid = authorization.listener_pid(f"http://127.0.0.1:{local_port}")
    assert pid is not None
    authorization.refuse_stranger(pid, [f"http://127.0.0.1:{local_port}"])
    authorization.refuse_stranger(os.getpid(), [f"http://127.0.0.1:{local_port}"])  # the test started it
    authorization.refuse_stranger(pid, [f"http://127.0.0.1:{proxy_port}", f"http://127.0.0.1:{local_port}"])
    with pytest.raises(OptionError, match=rf"--pid {pid} is not the server's.*port {proxy_port} \(there listens \d+: "):
        authorization.refuse_stranger(pid, [f"http://127.0.0.1:{proxy_port}"])
    with pytest.raises(OptionError, match="no such process"):
        authorization.refuse_stranger(1 << 30, [f"http://127.0.0.1:{local_port}"])
