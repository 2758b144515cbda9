"""Endpoints other than chat on a real vLLM 0.32.0 with tiny models."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.real import servers
from tests.real.conftest import Run, Server, launch, on, running, skipping

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
vllm_032_embed, vllm_032_whisper = skipping(servers.vllm_032_embed), skipping(servers.vllm_032_whisper)
GENERATING = ("completions", "responses", "messages")


def profile(traffic: list[dict[str, Any]], requests: int = 60, **more: Any) -> dict[str, Any]:
    return {"name": "endpoints", "traffic": traffic, "load": [{"users": 4, "requests": requests}], **more}


def test_real_endpoints_generate_text_of_exact_lengths(shared_vllm: Server, loadchaos: Run) -> None:
    traffic: list[dict[str, Any]] = []
    for name in GENERATING:
        output = {"max": 6} if name == "messages" else {"exact": 6}
        text = {"endpoint": name, "payload": {"text": {"tokens": "40..300"}}, "output": output}
        traffic += [{"name": name, **text}, {"name": f"{name}_whole", "stream": False, **text}]
    for name in ("responses", "messages"):
        payload = {"images": {"size": "128x128"}, "text": {"tokens": 40}}
        traffic.append({"name": f"{name}_image", "endpoint": name, "payload": payload, "output": {"max": 4}})
        payload = {"conversation": {"turns": 3, "tokens": 300, "parallel": 8}}
        traffic.append({"name": f"{name}_talk", "endpoint": name, "payload": payload, "output": {"max": 4}})
    result = loadchaos(profile(traffic, 120), *on(shared_vllm))
    assert result.verdict["outcomes"] == {"ok": 120}, result.output
    assert result.failures == {}
    assert result.check("exact_lengths") == "120 of 120 prompts"
    facts = result.facts["endpoints"]
    assert set(facts) == set(GENERATING)
    assert facts["responses"] == facts["messages"] == [0, result.facts["text"]["overhead"]]
    assert facts["completions"] == [0, 0]


def test_real_endpoint_that_is_not_served_ends_the_run_before_the_load(shared_vllm: Server, loadchaos: Run) -> None:
    result = loadchaos(profile([{"name": "t", "endpoint": "embeddings", "payload": {"text": {}}}]), *on(shared_vllm))
    assert result.code == 4
    assert "has no such endpoint: POST /v1/embeddings answered 404 Not Found" in result.output


@pytest.mark.parametrize(
    ("start", "names", "payload"),
    [(servers.vllm_032, GENERATING, {"text": {"tokens": 40}}), (vllm_032_whisper, ["transcriptions"], {"audio": {}})],
    ids=["text", "speech"],
)
def test_real_death_on_other_endpoints_is_named_and_expected(
    loadchaos: Run, start: Callable[[], servers.Command], names: Sequence[str], payload: dict[str, Any]
) -> None:
    traffic = [{"name": name, "endpoint": name, "payload": payload, "output": {"max": 300}} for name in names]
    data = profile(
        traffic,
        load=[{"users": 9, "for": "20s"}],
        attacks=[{"process": "sigkill", "role": "engine_core", "at": "8s"}],
        target=launch(start()),
        expect=["engine_deaths == 0", "failures == 0"],
    )
    result = loadchaos(data)
    assert {f["attribution"] for f in result.failures.values()} == {"expected"}, result.output
    assert "rejected" not in result.verdict["outcomes"], "no request is refused by a dead engine"


def test_real_embeddings_scores_and_ranks_have_exact_lengths(loadchaos: Run, tmp_path: Path) -> None:
    texts: dict[str, Any] = {"text": {"tokens": "40..90"}}
    traffic: list[dict[str, Any]] = [
        {"name": "one", "endpoint": "embeddings", "payload": texts},
        *(
            {"name": name, "endpoint": name, "payload": {**texts, "batch": {"count": "1..4"}}}
            for name in ("embeddings", "rerank", "score")
        ),
    ]
    with running(vllm_032_embed(), tmp_path / "vllm.log") as server:
        result = loadchaos(profile(traffic), *on(server))
        assert result.verdict["outcomes"] == {"ok": 60}, result.output
        assert result.check("exact_lengths") == "60 of 60 prompts"
        assert result.failures == {}


def test_real_speech_is_written_down_by_a_server_without_chat(loadchaos: Run, tmp_path: Path) -> None:
    speech: dict[str, Any] = {"endpoint": "transcriptions", "payload": {"audio": {"seconds": "2..50"}}}
    leaving = {"behaviour": {"abort": {"at_token": "1..8"}}, "output": {"max": 200}, "expect": ["ok", "aborted"]}
    traffic: list[dict[str, Any]] = [
        {"name": "stream", **speech, "output": {"max": 32}},
        {"name": "whole", "stream": False, **speech, "output": {"max": 32}},
        {"name": "leaves", **speech, **leaving},
    ]
    with running(vllm_032_whisper(), tmp_path / "vllm.log") as server:
        result = loadchaos(profile(traffic), *on(server))
        assert (result.code, result.failures) == (0, {}), result.output
        assert set(result.verdict["outcomes"]) == {"ok", "aborted"}
        assert result.verdict["outcomes"]["ok"] >= 20
        refused = loadchaos(profile([{"name": "chat", "payload": {"text": {}}}]), *on(server))
        assert refused.code == 4
        assert "It has /v1/audio/transcriptions" in refused.output
