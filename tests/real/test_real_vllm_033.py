"""Real vLLM 0.33.0, where it differs from 0.32.0: its Python over the CPU kernels of 0.32.0."""

import threading
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from loadchaos.server.dialects import DIALECTS
from tests.real import servers
from tests.real.conftest import Run, launch, listeners, running, skipping

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
vllm_033 = skipping(servers.vllm_033)
LONG: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "count"}], "max_tokens": 3000, "ignore_eos": True,
}  # fmt: skip


def engine_core(url: str) -> psutil.Process:
    """The engine core of the server at this address."""
    (server,) = listeners(url)
    return next(p for p in server.children() if "EngineCore" in p.name())


def test_real_vllm_0_33_says_with_a_new_text_that_its_engine_is_dead(tmp_path: Path) -> None:
    answers: list[httpx.Response] = []
    with running(vllm_033(), tmp_path / "vllm.log") as server:

        def ask() -> None:
            answers.append(httpx.post(f"{server.url}/v1/chat/completions", json=LONG, timeout=60, trust_env=False))

        asking = threading.Thread(target=ask)
        asking.start()
        while "num_requests_running{" not in (page := httpx.get(f"{server.url}/metrics", trust_env=False).text) or (
            'num_requests_running{engine="0",model_name="tiny"} 1.0' not in page
        ):
            assert asking.is_alive()
        engine_core(server.url).kill()
        asking.join(60)
    (answer,) = answers
    assert answer.status_code == 500
    assert any(pattern.search(answer.text) for pattern in DIALECTS["vllm"].engine_dead), answer.text
    assert "EngineCore encountered an issue" not in answer.text


def test_real_vllm_0_33_refuses_requests_while_it_is_paused(loadchaos: Run) -> None:
    result = loadchaos({
        "name": "paused", "target": launch(vllm_033()), "requires": ["development_endpoints"],
        "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"max": 32}}],
        "load": [{"users": 4, "for": "20s"}], "attacks": [{"admin": "pause", "every": "6s", "for": "1s"}],
        "expect": ["engine_deaths == 0", "hangs == 0", "failures == 0"],
    })  # fmt: skip
    assert result.verdict["verdict"] == "pass", result.output
    assert result.verdict["outcomes"]["shed"] > 0
    assert "that an attack had refused" in result.check("shed")
