import asyncio
from dataclasses import replace

import pytest

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts
from loadchaos.run.discovery_client import discovery_client
from loadchaos.server.discovery import preflight
from loadchaos.server.discovery.preflight import require
from tests.http_server import Asked, answering


def facts(dialect: str, version: str | None, development: bool | None = True) -> Facts:
    return Facts("http://s", "http://s", dialect, model="m", version=version, development_endpoints=development)


@pytest.mark.parametrize(
    ("server", "attack", "says"),
    [
        (
            facts("vllm", "0.11.0"),
            "reset_mm_cache",
            "reset_mm_cache: needs version 0.11.2 or later; this server is 0.11.0",
        ),
        (facts("vllm", "0.10.2.post1"), "pause", "pause: needs version 0.12.0"),
        (facts("lmdeploy", "0.9.2"), "sleep", "sleep: needs version 0.10.0"),
        (
            facts("lmdeploy", "0.18.0"),
            "reset_mm_cache",
            "LMDeploy does not have it .it has abort_request",
        ),
        (facts("vllm", "0.32.0", development=False), "sleep", "development endpoints, which are off"),
    ],
)
def test_require_refuses_an_attack_the_server_lacks(server: Facts, attack: str, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        require(server, (), [attack], ())


@pytest.mark.parametrize(
    ("server", "attack"),
    [
        (facts("vllm", "0.11.2"), "reset_mm_cache"),
        (facts("vllm", None), "reset_mm_cache"),
        (facts("lmdeploy", "0.9 to 0.15"), "sleep"),  # its paths told the version: it may be new enough
        (facts("vllm", "0.32.0", development=False), "load_lora_adapter"),  # another gate opens that one
    ],
)
def test_require_accepts_an_attack_the_server_may_have(server: Facts, attack: str) -> None:
    assert require(server, (), [attack], ()) == []


def test_require_notes_missing_lora_adapters() -> None:
    without, listed = facts("vllm", "0.32.0"), replace(facts("vllm", "0.32.0"), lora_adapters=("alpha",))
    assert require(listed, ["lora_adapters"], [], ()) == []
    assert require(without, [], [], ()) == []
    assert require(without, ["lora_adapters"], [], ()) == [
        "the server lists no LoRA adapters, which this profile tests: a pass will be unknown"
    ]


def test_wait_for_a_server_that_listens_on_another_port_tells_its_url(
    unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_PRINT_EVERY_S", 0.1)
    lines: list[str] = []

    async def wait(ports: list[int]) -> None:
        url = f"http://127.0.0.1:{unused_port}"
        async with discovery_client(url) as client:
            with pytest.raises(TargetError, match=r"was not healthy within.*give --target http://127\.0\.0\.1:\d+$"):
                await preflight.wait_until_healthy(client, 1.0, lambda: None, lines.append, lambda: ports)

    with answering(lambda asked: (200 if asked.path == "/health" else 404, b"")) as found:
        asyncio.run(wait([unused_port, int(found.rpartition(":")[2])]))
    assert any(f"the started server answers at {found}: give --target {found}" in line for line in lines), lines


PORTAL = "<!-- x -->\n<!DOCTYPE html><html><style>b {}</style><title>Sign in</title><p>to the <b>caf&eacute;</b>"


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_web_page_for_every_path_is_not_healthy(path: str) -> None:
    """At /health alone it is the front page of a gateway: /v1/models tells."""

    async def wait(url: str) -> None:
        async with discovery_client(url) as client:
            await preflight.wait_until_healthy(client, 30.0, lambda: None)

    def reply(asked: Asked) -> tuple[int, object]:
        return 200, {"data": []} if asked.path == "/v1/models" and path == "/health" else PORTAL

    with answering(reply) as url:
        if path == "/health":
            asyncio.run(wait(url))
        else:
            with pytest.raises(TargetError, match=r"web page: 'Sign in to the café'"):
                asyncio.run(wait(url))
