import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real import servers
from tests.real.conftest import Run, RunOutput, Server, launch, listeners, on, running, skipping, under_load

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
sglang = skipping(servers.sglang_0523)
TEXT = {"name": "text", "payload": {"text": {"tokens": "32..128"}}, "output": {"max": 24}}
LADDER = {
    "name": "ladder",
    "payload": {"near_limit": {"band": "-20..-1", "step": 19, "plus": [0, 1, 64], "output": ["one", "edge", "over"]}},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(sglang(), tmp_path_factory.mktemp("sglang") / "sglang.log") as server:
        yield server


def test_real_sglang_passes_smoke_and_tells_version_and_lengths(shared: Server, loadchaos: Run) -> None:
    result = loadchaos("smoke", *on(shared), "-t", "40s")
    assert result.verdict["verdict"] == "pass", result.output
    facts = result.facts
    assert (facts["dialect"], facts["version"]) == ("sglang", "0.5.23")
    assert (facts["max_model_len"], facts["capacity_tokens"], facts["input_limit"]) == (4096, 4096, 4089)
    assert facts["speculative_decoding"] is False


def test_real_sglang_ladder_finds_7_tokens_less_than_the_context(shared: Server, loadchaos: Run) -> None:
    result = loadchaos({"name": "edge", "traffic": [LADDER], "load": [{"users": 2, "requests": 15}]}, *on(shared))
    text = result.check("near_limit")
    assert "limit 4,090 tokens (set by --context-length" in text, result.output
    assert "longest answered: -1; shortest refused: +0" in text
    assert result.verdict["verdict"] == "pass", result.output


def bodies(tmp_path: Path, **fields: Any) -> dict[str, Any]:
    """Traffic of one body with these fields."""
    path = tmp_path / "bodies.jsonl"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **fields}
    path.write_text(json.dumps(body) + "\n")
    return {"name": "odd", "payload": {"requests": {"file": str(path)}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": []},
        {"max_tokens": 100_000},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no type"}}}},
        {"logit_bias": {"999999": 1}},
    ],
    ids=["temperature", "type of content", "no messages", "max_tokens", "schema", "logit_bias"],
)
def test_real_sglang_refusal_is_the_fault_of_the_request(
    shared: Server, loadchaos: Run, tmp_path: Path, fields: dict[str, Any]
) -> None:
    odd = {**bodies(tmp_path, **fields), "expect": "rejected"}
    result = loadchaos({"name": "odd", "traffic": [odd, TEXT], "load": [{"users": 2, "requests": 8}]}, *on(shared))
    assert set(result.verdict["by_traffic"]["odd"]) == {"rejected"}, result.output
    assert result.verdict["verdict"] == "pass", result.output


def test_real_sglang_admin_attacks_are_expected(shared: Server, loadchaos: Run) -> None:
    result = loadchaos({
        "name": "attacked", "load": [{"users": 6, "for": "40s"}],
        "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..200"}}, "output": {"max": 200}}],
        "attacks": [
            {"admin": "abort_request", "at": "10s"},
            {"admin": "pause_generation", "at": "18s", "for": "6s"},
            {"admin": "flush_cache", "at": "21s"},  # only while nothing runs
        ],
    }, *on(shared))  # fmt: skip
    assert {a["ok"] for a in result.verdict["attacks"].values()} == {1}, result.output
    assert {f["attribution"] for f in result.failures.values()} <= {"expected"}, result.output


def test_real_sglang_answers_images(loadchaos: Run) -> None:
    image = {
        "name": "image",
        "payload": {"text": {"tokens": "16..64"}, "images": {"count": 1, "size": "224x224"}},
        "output": {"max": 8},
    }
    result = loadchaos(
        {
            "name": "images",
            "target": launch(sglang(images=True)),
            "traffic": [image, TEXT],
            "load": [{"users": 2, "requests": 12}],
        }
    )
    assert result.verdict["verdict"] == "pass", result.output
    assert set(result.verdict["by_traffic"]["image"]) == {"ok"}
    assert result.facts["image_tokens"]


def test_real_sglang_kv_cache_smaller_than_the_context_bounds_the_prompt(loadchaos: Run) -> None:
    command = sglang("--max-total-tokens", "1024")
    long = {"name": "long", "payload": {"text": {"tokens": "100..200"}}, "output": {"exact": 300}}
    result = loadchaos(
        {"name": "full", "target": launch(command), "traffic": [long, LADDER], "load": [{"users": 8, "for": "40s"}]}
    )
    assert result.facts["input_limit"] == 1017
    assert "set by --max-total-tokens" in result.check("near_limit"), result.output
    assert result.verdict["verdict"] == "pass", result.output


def ended(loadchaos: Run, tmp_path: Path, number: int, **fields: Any) -> RunOutput:
    """A run whose server's scheduler gets a signal."""
    target = launch(sglang())

    def send() -> None:
        (server,) = listeners(target["launch"]["url"])
        for child in server.children():
            if "scheduler" in "".join(child.cmdline()):
                child.send_signal(number)

    with under_load(tmp_path, send):
        return loadchaos(
            {"name": "ended", "target": target, "traffic": [TEXT], "load": [{"users": 4, "for": "60s"}], **fields}
        )


def test_real_sglang_scheduler_killed_is_a_named_death(loadchaos: Run, tmp_path: Path) -> None:
    result = ended(loadchaos, tmp_path, signal.SIGKILL)
    assert result.code == 1, result.output
    assert result.verdict["states"][-1]["state"] == "dead"
    deaths = [f for f in result.failures.values() if f["severity"] == "engine_death"]
    assert [f["attribution"] for f in deaths] == ["server"], result.output
    assert [f["id"] for f in deaths] == ["engine_core_proc_died"], result.output


def test_real_sglang_frozen_scheduler_is_a_hang_and_no_death(loadchaos: Run, tmp_path: Path) -> None:
    limits = {"first_byte": "15s", "between_bytes": "15s", "total": "30s"}
    result = ended(loadchaos, tmp_path, signal.SIGSTOP, limits=limits)
    assert result.code == 1, result.output
    assert "hung" in {s["state"] for s in result.verdict["states"]}, result.output
    assert "dead" not in {s["state"] for s in result.verdict["states"]}, result.output


def test_real_sglang_dies_of_more_top_logprobs_than_its_vocabulary(loadchaos: Run, tmp_path: Path) -> None:
    """sgl-project/sglang#40076: one request ends the whole server."""
    odd = bodies(tmp_path, logprobs=True, top_logprobs=50_000)
    result = loadchaos(
        {
            "name": "logprobs",
            "target": launch(sglang()),
            "traffic": [odd, {**TEXT, "weight": 4}],
            "load": [{"users": 2, "for": "30s"}],
        }
    )
    assert result.code == 1, result.output
    assert result.verdict["states"][-1]["state"] == "dead"
    (death,) = [f for f in result.failures.values() if f["severity"] == "engine_death"]
    assert death["attribution"] == "server"
    assert "selected index k out of range" in json.dumps(death), result.output
