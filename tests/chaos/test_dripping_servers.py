"""Attacks on servers that never finish their answers, on raw sockets."""

import ssl
import time
from dataclasses import replace

import httpx
import pytest

from loadchaos.chaos import network
from loadchaos.chaos.admin import AdminAttack, operation_named
from loadchaos.chaos.base import AttackContext, AttackedReplica
from loadchaos.chaos.network import LocalProxy
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import DIALECTS
from tests.core.test_http_client import drips_body, drips_head
from tests.raw_sockets import ConnectionServer, Handler

VLLM = DIALECTS["vllm"]


@pytest.mark.parametrize("drips", [drips_body, drips_head])
async def test_admin_attack_on_a_dripping_server_ends_at_its_limit(drips: Handler) -> None:
    began = time.monotonic()
    with ConnectionServer(drips) as server:
        async with httpx.AsyncClient() as client:
            context = AttackContext(VLLM, client, Redactor())
            operation = replace(operation_named("reset_prefix_cache", VLLM), limit_s=0.3)
            result = await AdminAttack(operation, None, {}, context).begin(AttackedReplica("server", server.url))
        assert result.ok is None
        assert result.status is None
        assert "no answer within 0.3 s" in result.text or "did not end" in result.text
    assert time.monotonic() - began < 15


async def test_network_delay_of_a_dripping_server_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_ORDER_S", 0.3)
    began = time.monotonic()
    with ConnectionServer(drips_body) as server:
        proxy = LocalProxy(server.url)
        await proxy.open()
        try:
            assert await proxy.added_delay_s("/health", ssl.create_default_context()) is None
        finally:
            await proxy.close()
    assert time.monotonic() - began < 4
