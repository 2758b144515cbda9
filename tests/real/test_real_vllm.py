"""Real vLLM 0.32.0: limits, and deaths with their attribution."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import Run, Server, at, launch, vllm_032

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
IMAGES = {
    "name": "images",
    "payload": {"images": {"count": 2, "size": "1024x1024"}, "text": {"tokens": "600..900"}},
    "output": {"max": 16},
}
TEXT = {"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"max": 64}}


def test_smoke_passes(shared_vllm: Server, loadchaos: Run) -> None:
    result = loadchaos("smoke", *at(shared_vllm), "-t", "60s")
    assert result.verdict["verdict"] == "pass", result.output


def test_probe_identifies_real_vllm(shared_vllm: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadchaos", "probe", shared_vllm.url, "--json"], capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    facts = result["facts"]
    assert (facts["version"], facts["max_model_len"], facts["max_images"]) == ("0.32.0", 4096, 2)
    assert (facts["development_endpoints"], facts["speculative_decoding"]) == (True, False)
    assert facts["image_tokens"]["512x512"] == 258
    assert result["asked"]["reads"] <= 20
    assert result["asked"]["generations"] <= 3


def test_near_max_len_finds_the_longest_prompt_of_real_vllm(shared_vllm: Server, loadchaos: Run) -> None:
    ladder = {
        "name": "ladder",
        "payload": {"near_limit": {"band": "-100..-1", "step": 33, "plus": [0, 1, 64], "output": ["one"]}},
    }
    profile = {"name": "edge", "traffic": [ladder], "load": [{"users": 2, "requests": 21}]}
    result = loadchaos(profile, *at(shared_vllm))
    assert result.verdict["verdict"] == "pass", result.output
    assert "longest answered: -1" in result.check("near_limit"), "4095 of 4096"
    assert "shortest refused: +0" in result.check("near_limit")


@pytest.mark.parametrize("role", ["engine_core", "worker", "api_server"])
def test_real_vllm_killed_process_is_named_and_expected(loadchaos: Run, role: str) -> None:
    result = loadchaos({
        "name": "killed", "target": launch(vllm_032()), "traffic": [TEXT], "load": [{"users": 8, "for": "20s"}],
        "attacks": [{"process": "sigkill", "role": role, "at": "6s"}],
        "expect": ["engine_deaths == 0", "failures == 0"],
    })  # fmt: skip
    assert {f["attribution"] for f in result.failures.values()} == {"expected"}, result.output
    assert result.verdict["attacks"][f"sigkill_{role}"]["ok"] == 1


def test_real_vllm_stopped_engine_core_hangs_and_recovers(loadchaos: Run, shared_vllm: Server) -> None:
    result = loadchaos(
        {
            "name": "stopped",
            "traffic": [TEXT],
            "load": [{"users": 4, "for": "35s"}],
            "attacks": [{"process": "sigstop", "role": "engine_core", "at": "5s", "for": "15s"}],
            "expect": ["failures == 0", "hangs == 0"],
        },
        *at(shared_vllm),
    )
    assert result.failures["alive_but_hung"]["attribution"] == "expected"
    assert result.verdict["verdict"] == "pass", result.output


@pytest.mark.parametrize(
    ("fault", "options", "name"),
    [
        ("encoder_pop", {}, "encoder_cache_miss"),
        ("step_raise", {"step": "5"}, None),
        ("step_exit", {"step": "5"}, None),
        ("step_segv", {"step": "5"}, None),
    ],
)
def test_real_vllm_engine_fault_is_found_and_called_injected(
    loadchaos: Run, plugin: Path, tmp_path: Path, fault: str, options: dict[str, Any], name: str | None
) -> None:
    command = vllm_032(PYTHONPATH=str(plugin), LOADCHAOS_SABOTAGE_TRIGGER=str(tmp_path / "trigger"))
    result = loadchaos({
        "name": "sabotaged", "target": launch(command), "traffic": [IMAGES, TEXT],
        "load": [{"users": 8, "for": "40s"}],
        "attacks": [{"engine": fault, "at": "8s", "for": "30s", "params": options}],
    })  # fmt: skip
    death = result.verdict["failures"][0]
    assert (death["severity"], death["attribution"], death["known"]) == ("engine_death", "injected", []), result.output
    assert name is None or death["id"] == name
    assert "vllm-project/vllm#" not in result.output
