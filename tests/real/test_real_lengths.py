"""Token counts on real vLLM and LMDeploy, by each way of counting."""

from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import Run, Server, gateway
from tests.real.servers import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
CHAT, MODELS = "/v1/chat/completions", "/v1/models"
RENDER = (f"{CHAT}/render", "/v1/completions/render")
FOLDERS = {"shared_vllm": ROOT / "models/tiny-qwen3-vl", "shared_lmdeploy": ROOT / "lmdeploy-0.18.0/models/m_vlm"}


def traffic(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "payload": payload, "output": {"max": 2}}


TEXTS = [
    traffic("text", {"text": {"tokens": "60..900"}}),
    traffic("talk", {"conversation": {"turns": 4, "tokens": "400..900", "parallel": 2}}),
]
SCRIPTS = traffic("scripts", {"text": {"tokens": "60..300", "script": "mixed"}})
MEDIA = [
    *(traffic(f"image_{n}", {"images": {"size": f"{128 * n}x128"}, "text": {"tokens": 40}}) for n in (1, 2, 3)),
    *(traffic(f"video_{n}", {"video": {"frames": n, "size": "96x96"}, "text": {"tokens": 40}}) for n in (4, 6)),
]


def exact(loadchaos: Run, url: str, sent: list[dict[str, Any]], *args: str) -> dict[str, Any]:
    """The facts of a run of which every prompt was counted as planned."""
    result = loadchaos(
        {"name": "lengths", "traffic": sent, "load": [{"users": 4, "requests": 60}]}, "--target", url, *args
    )
    assert result.verdict["outcomes"] == {"ok": 60}, result.output
    assert result.check("exact_lengths") == "60 of 60 prompts"
    return result.facts


def test_real_lengths_are_rendered_by_vllm_and_checked_with_one_generation(shared_vllm: Server, loadchaos: Run) -> None:
    facts = exact(loadchaos, shared_vllm.url, [*TEXTS, SCRIPTS, *MEDIA])
    assert (len(facts["image_tokens"]), len(facts["video_tokens"])) == (3, 2)
    result = {name: facts["sources"][name] for name in ("text", "image_tokens", "video_tokens")}
    assert result == {
        "text": "tokenize",
        **dict.fromkeys(("image_tokens", "video_tokens"), "/render, checked by usage"),
    }
    log = shared_vllm.log.read_text()
    assert log.count(f'"POST {RENDER[0]} HTTP/1.1" 200') >= 6


def test_real_lengths_behind_a_v1_only_gateway_are_rendered(shared_vllm: Server, loadchaos: Run) -> None:
    with gateway(shared_vllm.url, CHAT, MODELS, *RENDER) as url:
        assert exact(loadchaos, url, [*TEXTS, SCRIPTS])["text"]["source"] == "render"


@pytest.mark.parametrize("server", ["shared_vllm", "shared_lmdeploy"])
def test_real_lengths_behind_a_chat_only_gateway_come_from_usage(
    server: str, loadchaos: Run, request: pytest.FixtureRequest
) -> None:
    it: Server = request.getfixturevalue(server)
    with gateway(it.url, CHAT, MODELS) as url:
        assert exact(loadchaos, url, TEXTS)["text"]["source"] == "usage"


@pytest.mark.parametrize("server", ["shared_vllm", "shared_lmdeploy"])
def test_real_lengths_with_a_local_tokenizer_folder(
    server: str, loadchaos: Run, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers", reason="pip install 'loadchaos[tokenizer]'")
    it: Server = request.getfixturevalue(server)
    own, other = FOLDERS[server], next(f for name, f in FOLDERS.items() if name != server)
    with gateway(it.url, CHAT, MODELS) as url:
        facts = exact(loadchaos, url, [*TEXTS, SCRIPTS], "--tokenizer", str(own))
        assert facts["text"]["source"] == "tokenizer"
        assert facts["sources"]["tokenizer"] == f"{own}, checked by usage"
        facts = exact(loadchaos, url, TEXTS, "--tokenizer", str(other))
    assert "is not the server's" in facts["sources"]["tokenizer"]
    assert facts["text"]["source"] == "usage"
