"""Attacks on servers that never finish their answers, on raw sockets."""

import asyncio
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
from tests.core.test_bounded_http import Answer, drips_body, drips_head, serving

VLLM = DIALECTS["vllm"]


@pytest.mark.parametrize("drips", [drips_body, drips_head])
def test_admin_attack_on_a_dripping_server_ends_at_its_limit(drips: Answer) -> None:
    async def call(url: str) -> None:
        async with httpx.AsyncClient() as client:
            context = AttackContext(VLLM, client, Redactor())
            operation = replace(operation_named("reset_prefix_cache", VLLM), limit_s=0.3)
            result = await AdminAttack(operation, None, {}, context).begin(AttackedReplica("server", url))
        assert result.ok is None
        assert result.status is None
        assert "no answer within 0.3 s" in result.text or "did not end" in result.text

    began = time.monotonic()
    with serving(drips) as url:
        asyncio.run(call(url))
    assert time.monotonic() - began < 15


def test_network_delay_of_a_dripping_server_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_ORDER_S", 0.3)

    async def measure(url: str) -> float | None:
        proxy = LocalProxy(url)
        await proxy.open()
        try:
            return await proxy.added_delay_s("/health", ssl.create_default_context())
        finally:
            await proxy.close()

    began = time.monotonic()
    with serving(drips_body) as url:
        assert asyncio.run(measure(url)) is None
    assert time.monotonic() - began < 4
