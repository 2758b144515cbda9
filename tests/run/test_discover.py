import asyncio
from typing import Any

import pytest

from loadchaos.core.errors import AuthorizationError, TargetError
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json
from loadchaos.profile.run_plan import RunPlan
from loadchaos.run import discover
from tests.run.conftest import StartSim

FOR_EVER = [{"users": 1, "for": "87600h"}]
TEXT = {"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"max": 4}}
LADDER = {"name": "edge", "payload": {"near_limit": {"band": "-20..-1", "step": 19, "plus": [0]}}}
ELSEWHERE = "http://198.51.100.7:8000"  # RFC 5737: nobody's


def learned(url: str, *traffic: dict[str, Any], **more: Any) -> Facts:
    profile = {"name": "learning", "load": FOR_EVER, "traffic": list(traffic), **more}
    return asyncio.run(discover.discover_server(from_json(RunPlan, {"base_url": url, "profile": profile})))


def test_discover_searches_the_context_limit_for_a_ladder(sim: StartSim) -> None:
    server = sim("--dialect", "lmdeploy", "--era", "0.8", "--flag", "num_gpu_blocks=21")
    assert learned(server.url, TEXT).input_limit is None
    facts = learned(server.url, TEXT, LADDER)
    assert facts.input_limit is not None
    assert "tokens were answered" in facts.sources["input_limit"]


def test_discover_says_what_to_change_in_a_profile_that_does_not_fit(sim: StartSim) -> None:
    server = sim("--flag", "images=false")
    tools = {**TEXT, "payload": {"text": {"tokens": 64}, "tools": {"count": 1}}}
    with pytest.raises(TargetError, match="start the server with --enable-auto-tool-choice"):
        learned(server.url, tools)
    lora = {**TEXT, "payload": {"text": {"tokens": 64}, "sampling": {"models": {"none_such": 1}}}}
    with pytest.raises(TargetError, match="the server does not serve none_such"):
        learned(server.url, lora)
    images = {**TEXT, "payload": {"text": {"tokens": 64}, "images": {"size": "64x64"}}}
    with pytest.raises(TargetError, match="serve a multimodal model"):
        learned(server.url, images, requires=["images"])


def test_discover_needs_authorization_for_payloads_not_for_attacks(
    monkeypatch: pytest.MonkeyPatch, sim: StartSim
) -> None:
    monkeypatch.delenv(discover.AUTHORIZE, raising=False)
    with pytest.raises(AuthorizationError, match=r"export LOADCHAOS_AUTHORIZE=198\.51\.100\.7:8000"):
        learned(ELSEWHERE, TEXT, LADDER)
    monkeypatch.setattr("loadchaos.server.discovery.calibrate.identify_server", _reached)
    with pytest.raises(InterruptedError):
        learned(ELSEWHERE, TEXT, attacks=[{"admin": "reset_mm_cache", "every": "2s"}])
    monkeypatch.setenv(discover.AUTHORIZE, "127.0.0.1:1, 198.51.100.7:8000")
    with pytest.raises(InterruptedError):
        learned(ELSEWHERE, LADDER)


async def _reached(*_: object) -> Facts:
    raise InterruptedError
