import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real import servers
from tests.real.conftest import Run, launch, listeners, skipping, under_load
from tests.real.servers import Command

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
STARTS: dict[str, Callable[..., Command]] = {
    "transformers": servers.transformers_524,
    "llamacpp": servers.llama_cpp,
    "lmdeploy-0.6.5": servers.lmdeploy_0_6,
    "lmdeploy-0.10.0": servers.lmdeploy_0_10,
    "vllm-0.33.0": servers.vllm_033,
    "vllm-0.27.1": servers.vllm_0271,
    "vllm-0.22.1": servers.vllm_0221,
}
"""Starts by the name of the dialect, and the version where there are several."""
TEXT = [{"name": "text", "payload": {"text": {"tokens": "32..128"}}, "output": {"max": 24}}]


def profile(name: str, server: str, *flags: str, **more: Any) -> dict[str, Any]:
    """A profile that starts this server, and skips the test where it is not installed."""
    target = launch(skipping(STARTS[server])(*flags))
    return {"name": name, "target": target, "traffic": TEXT, "load": [{"users": 2, "for": "20s"}], **more}


def named(server: str) -> tuple[str, ...]:
    return ("--model", "tiny-text") if server == "transformers" else ()


@pytest.mark.parametrize("server", STARTS)
def test_real_other_server_passes_and_is_recognised(loadchaos: Run, server: str) -> None:
    result = loadchaos(profile("calm", server, load=[{"users": 2, "requests": 12}]), *named(server))
    assert result.verdict["verdict"] == "pass", result.output
    assert set(result.verdict["by_traffic"]["text"]) == {"ok"}
    assert result.facts["dialect"] == server.partition("-")[0]


@pytest.mark.parametrize("server", [name for name in STARTS if not name.startswith("vllm")])
def test_real_other_server_killed_is_a_named_death(loadchaos: Run, tmp_path: Path, server: str) -> None:
    made = profile("killed", server)

    def kill() -> None:
        for process in listeners(made["target"]["launch"]["url"]):
            process.kill()

    with under_load(tmp_path, kill):
        result = loadchaos(made, *named(server))
    assert result.code == 1, result.output
    assert result.verdict["states"][-1]["state"] == "dead"
    (death,) = [f for f in result.failures.values() if f["severity"] == "engine_death"]
    assert "killed by signal 9" in death["title"], result.output
    assert death["attribution"] == "server"


def test_real_llama_cpp_ladder_finds_the_context_of_a_slot(loadchaos: Run) -> None:
    payload = {"near_limit": {"band": "-40..-1", "step": 39, "plus": [0, 1, 64], "output": ["one"]}}
    traffic = [{"name": "ladder", "payload": payload}]
    result = loadchaos(profile("edge", "llamacpp", traffic=traffic, load=[{"users": 1, "requests": 5}]))
    assert result.facts["max_model_len"] == 2048
    assert "longest answered: -1" in result.check("near_limit"), result.output
    assert "shortest refused: +0" in result.check("near_limit")
    assert result.verdict["verdict"] == "pass", result.output


def test_real_llama_cpp_with_a_draft_model_tells_its_acceptance(loadchaos: Run) -> None:
    model = str(servers.ROOT / "llama.cpp-0.3.36/models/tiny-text.gguf")  # its own draft: all tokens are accepted
    flags = ("-md", model, "--spec-type", "draft-simple")
    result = loadchaos(profile("drafts", "llamacpp", *flags, load=[{"users": 2, "requests": 12}]))
    assert result.verdict["verdict"] == "pass", result.output
    rows = [json.loads(line) for line in (result.folder / "requests-0.jsonl").read_text().splitlines()]
    told = [(row["drafted_tokens"], row["accepted_tokens"]) for row in rows if "drafted_tokens" in row]
    assert len(told) == 12
    assert all(0 < accepted <= drafted for drafted, accepted in told)


def test_real_transformers_loses_its_worker_to_a_prompt_longer_than_its_kv_cache(loadchaos: Run) -> None:
    too_long = {"name": "too_long", "payload": {"text": {"tokens": 3000}}, "output": {"max": 4}}
    result = loadchaos(
        profile("worker", "transformers", "--cb-num-blocks", "64", traffic=[{**TEXT[0], "weight": 4}, too_long]),
        *named("transformers"),
    )
    assert result.verdict["verdict"] == "fail", result.output
    assert result.failures["transformers_kv_cache_too_small"]["severity"] == "engine_death"
    assert result.verdict["states"][-1]["state"] == "dead"
