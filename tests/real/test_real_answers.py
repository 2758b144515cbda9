"""Wrong answers of a real vLLM that serves a model which can answer.

The faults come from loadchaos-vllm; `corruption` has to find them, and nothing on the same server without a fault.
The models are made by scripts/real/train_copy_model.py, train_colour_model.py and make_random_models.py.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.real.conftest import Run, Server, on, running, skipping
from tests.real.servers import Command, vllm_adapters, vllm_colour, vllm_copy, vllm_images

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
VERSIONS = ("0.32.0", "0.22.1")
SHORT = [{"users": 6, "for": "30s"}]
WRONG = {
    "wrong_answer", "answer_of_another_request", "identical_requests_differ", "cache_changes_answer",
    "answer_changed_under_load", "stream_differs",
}  # fmt: skip
FAULTS = {
    "swap_rows": 0.05, "zero_kv": 0.05, "swap_kv": 0.1, "drop_token": 0.05, "repeat_token": 0.05,
}  # fmt: skip
"""Modes with the probability of an act in a step."""


IMAGES: dict[str, Any] = {
    "name": "images",
    "traffic": [{"name": "images", "payload": {"images": {"count": 1, "size": "256x256"}, "text": {"tokens": "16..64"}},
                 "output": {"max": 16}}],
    "load": [{"users": 4, "for": "30s"}],
    "correctness": {"images": {"every": "1s"}, "replicas": {"n": 3, "every": "5s"}},
}  # fmt: skip


@contextmanager
def started(make: Callable[..., Command], version: str, folder: Path, plugin: Path) -> Iterator[Server]:
    """A server of its own with the plugin."""
    trigger = str(folder / "trigger")
    made: Command = skipping(make)(version, PYTHONPATH=str(plugin), LOADCHAOS_SABOTAGE_TRIGGER=trigger)
    with running(made, folder / "vllm.log") as server:
        yield server


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory, plugin: Path) -> Iterator[Callable[[str], Server]]:
    """One server of each version, with the plugin, a small KV cache and n-gram drafts."""
    with ExitStack() as servers:

        @cache
        def start(version: str) -> Server:
            folder = tmp_path_factory.mktemp(f"vllm-{version}")
            return servers.enter_context(started(vllm_copy, version, folder, plugin))

        yield start


def short(server: Server, attack: dict[str, Any] | None = None) -> list[str]:
    """Options for a short run of a shipped profile on this server."""
    attacks = [attack] if attack else []
    return [*on(server), "--set", f"load={json.dumps(SHORT)}", "--set", f"attacks={json.dumps(attacks)}"]


@pytest.mark.parametrize("version", VERSIONS)
def test_real_vllm_preempted_and_speculating_gives_no_false_alarm(
    answering: Callable[[str], Server], loadchaos: Run, version: str
) -> None:
    server = answering(version)
    preempt = {"engine": "preempt", "at": "3s", "for": "25s", "params": {"probability": 0.1}}
    result = loadchaos("corruption", *short(server, preempt))
    assert not WRONG & set(result.failures), result.output
    for kind in ("copy", "lookup", "needle"):
        assert re.search(rf"{kind} [1-9]\d* of", result.check("questions"))
    page = httpx.get(f"{server.url}/metrics").text
    for counter in ("num_preemptions_total", "spec_decode_num_accepted_tokens_total"):
        found = re.search(rf"^vllm:{counter}{{.*}} (\S+)$", page, re.MULTILINE)
        assert found is not None
        assert float(found[1]) > 0


@pytest.mark.parametrize("mode", FAULTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_real_vllm_wrong_answers_of_an_injected_fault_are_found(
    answering: Callable[[str], Server], loadchaos: Run, version: str, mode: str
) -> None:
    attack = {"engine": mode, "at": "4s", "for": "25s", "params": {"probability": FAULTS[mode]}}
    result = loadchaos("corruption", *short(answering(version), attack))
    assert WRONG & set(result.failures), result.output


def test_real_vllm_base_model_beside_adapters_answers_as_the_last_adapter(
    loadchaos: Run, tmp_path: Path, plugin: Path
) -> None:
    """No fault is injected: vLLM's LoRA operations for CPUs take the index of no adapter, -1, for the last adapter."""
    with started(vllm_adapters, "0.32.0", tmp_path, plugin) as server:
        result = loadchaos("lora_thrash", *short(server))
    found = result.failures["answer_of_another_adapter"]["wrong_answers"]
    assert {(w["facts"]["model"], w["facts"]["idle answer of"]) for w in found} == {("tiny", "tiny-copy-lora-3")}


@pytest.mark.parametrize("version", VERSIONS)
def test_real_vllm_answer_about_another_image_is_found(
    loadchaos: Run, version: str, tmp_path: Path, plugin: Path
) -> None:
    with started(vllm_images, version, tmp_path, plugin) as server:
        healthy = loadchaos(IMAGES, *on(server))
        assert not healthy.failures, healthy.output
        assert "0 differ" in healthy.check("image_answers")
        fault = {"engine": "stale_encoder", "at": "4s", "for": "25s", "params": {"probability": 0.3}}
        result = loadchaos({**IMAGES, "attacks": [fault]}, *on(server))
    assert {"answer_of_another_image", "answer_changed_under_load"} & set(result.failures), result.output


@pytest.mark.parametrize("version", VERSIONS)
def test_real_vllm_names_the_colour_of_an_image(loadchaos: Run, version: str, tmp_path: Path) -> None:
    asked = {**IMAGES, "correctness": {"probes": {"every": "500ms", "kinds": ["image_colour"]}}}
    with running(skipping(vllm_colour)(version), tmp_path / "vllm.log") as server:
        healthy = loadchaos(asked, *on(server))
    assert not healthy.failures, healthy.output
    assert re.search(r"image_colour ([1-9]\d*) of \1 right", healthy.check("questions")), healthy.check("questions")
