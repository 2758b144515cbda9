"""Every attack on a real vLLM under 30 users, and its attribution."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import (
    Run,
    RunOutput,
    Server,
    launch,
    on,
    typed,
    vllm_0221_mtp,
    vllm_032,
    vllm_032_mtp,
    vllm_032_topk,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
MIXED = [
    {"name": "images", "weight": 4, "output": {"max": 24},
     "payload": {"images": {"count": "1..2", "size": "256x256", "unique": "60%", "reuse_distance": 20},
                 "text": {"tokens": "16..200"}}},
    {"name": "text", "weight": 8, "payload": {"text": {"tokens": "16..400"}}, "output": {"max": 48},
     "behaviour": {"abort": {"share": "10%", "at_token": "1..10"}}},
]  # fmt: skip
NEVER_STALLED = {"first_byte": "2m", "between_bytes": "90s", "total": "5m"}
RESETS: Sequence[Mapping[str, Any]] = [
    {"admin": "reset_mm_cache", "every": "2s"},
    {"admin": "reset_mm_cache", "every": "1s", "when": {"images_in_prefill": ">= 4"}},
    {"admin": "reset_prefix_cache", "every": "3s"},
    {"admin": "reset_prefix_cache", "every": "9s", "params": {"reset_external": True}},
    {"admin": "reset_encoder_cache", "every": "5s"},
    {"admin": "collective_rpc", "every": "6s"},
    {"admin": "abort_requests", "every": "11s"},
]
STOPS: Sequence[Mapping[str, Any]] = [
    {"admin": "sleep", "at": "4s", "for": "2s", "params": {"level": 1, "mode": "abort"}},
    {"admin": "sleep", "at": "14s", "for": "2s", "params": {"level": 2, "mode": "wait"}},
    {"admin": "sleep", "at": "40s", "for": "3s", "params": {"level": 0, "mode": "keep"}},
    {"admin": "wake_up", "during": "sleep", "params": {"tags": ["weights"]}},
    {"admin": "reset_mm_cache", "after": "wake_up"},
    {"admin": "pause", "at": "50s", "for": "2s", "params": {"mode": "abort"}},
    {"admin": "pause", "at": "58s", "for": "2s", "params": {"mode": "wait"}},
    {"admin": "pause", "at": "82s", "for": "2s", "params": {"mode": "keep"}},
]
REST: Sequence[Mapping[str, Any]] = [
    {"admin": "load_lora_adapter", "at": "5s", "for": "3s", "params": {"lora_name": "x", "lora_path": "/nonexistent"}},
    {"admin": "collective_rpc", "at": "10s"},
    {"admin": "release_kv_cache_memory", "at": "20s"},  # 500: it wants a pause that is complete
    {"admin": "start_profile", "at": "30s"},  # no profiler is configured
]

# Short, as a seeded prompt that is cut kills a CPU's server by another way; all else is greedy, and never asks for top_k.
SAMPLED = "{text: {tokens: 16..64}, sampling: {temperature: 0.7}}"


def mixed(attacks: Sequence[Mapping[str, Any]], lasts: str = "60s") -> dict[str, Any]:
    return {
        "name": "attacked",
        "traffic": MIXED,
        "load": [{"users": 30, "for": lasts}],
        "limits": NEVER_STALLED,
        "attacks": list(attacks),
    }


def blamed(result: RunOutput) -> Mapping[str, str]:
    return {f["id"]: f["attribution"] for f in result.verdict["failures"]}


def fared(result: RunOutput) -> dict[str, tuple[int, int]]:
    return {name: (a["ok"], a["failed"]) for name, a in result.verdict["attacks"].items()}


def test_real_vllm_survives_resets_and_aborts_attributed_to_us(shared_vllm: Server, loadchaos: Run) -> None:
    result = loadchaos(mixed(RESETS), *on(shared_vllm))
    assert "server" not in blamed(result).values(), result.output
    done = fared(result)
    assert min(done[name][0] for name in ("reset_mm_cache", "reset_encoder_cache", "abort_requests")) > 1, done
    assert done["reset_prefix_cache"][1] > 0, "while blocks are held it answers 200 with success: false"


def test_real_vllm_sleeps_and_pauses_are_undone(shared_vllm: Server, loadchaos: Run) -> None:
    result = loadchaos(mixed(STOPS, "90s"), *on(shared_vllm))
    assert "server" not in blamed(result).values(), result.output
    done = fared(result)
    assert (done["sleep"], done["pause"]) == ((3, 0), (3, 0))
    assert done["reset_mm_cache"][0] >= 3, "each time after wake_up"
    assert result.verdict["outcomes"]["ok"] > 0


def test_real_vllm_refused_attacks_have_a_reason(shared_vllm: Server, loadchaos: Run) -> None:
    result = loadchaos(mixed(REST), *on(shared_vllm))
    assert "server" not in blamed(result).values(), result.output
    done = fared(result)
    assert done["collective_rpc"] == (1, 0)
    refused = {name for name, (ok, _) in done.items() if not ok}
    assert refused == {"load_lora_adapter", "release_kv_cache_memory", "start_profile"}


@pytest.mark.parametrize(
    ("server", "name", "options"),
    [
        (vllm_032_mtp, "mamba_precopy_failed", ()),
        (vllm_032_topk, "spec_sampler_top_k", ("--set", f"traffic.1.payload={SAMPLED}")),
    ],
    ids=["hybrid-mtp", "top-k"],
)
def test_real_vllm_natural_death_is_found_by_mtp_mm(
    loadchaos: Run, server: Any, name: str, options: Sequence[str]
) -> None:
    result = loadchaos("mtp_mm", *typed(server()), "--set", "target.on_death=stop", "-u", "24", *options)
    (death,) = [f for f in result.verdict["failures"] if f["severity"] == "engine_death"]
    assert (death["id"], death["attribution"]) == (name, "server"), result.output
    assert (result.code, "died before the load" in result.output) in ((4, True), (1, False)), result.output


def test_real_vllm_harmless_faults_are_called_injected(loadchaos: Run, plugin: Path, tmp_path: Path) -> None:
    command = vllm_032(PYTHONPATH=str(plugin), LOADCHAOS_SABOTAGE_TRIGGER=str(tmp_path / "trigger"))
    result = loadchaos({
        "name": "hurt", "target": launch(command), "traffic": MIXED, "load": [{"users": 12, "for": "100s"}],
        "limits": NEVER_STALLED,
        "attacks": [
            {"engine": "slow_steps", "at": "5s", "for": "10s", "params": {"factor": 3}},
            {"engine": "preempt", "at": "25s", "for": "5s", "params": {"times": 3}},
            {"engine": "nan_logits", "at": "35s", "for": "5s", "params": {"times": 20}},
            {"engine": "step_sleep", "at": "45s", "for": "12s", "params": {"seconds": 6}},
            {"engine": "step_hang", "at": "65s", "for": "20s"},
        ],
    })  # fmt: skip
    assert all(ok == 1 for ok, _ in fared(result).values()), fared(result)
    assert set(blamed(result).values()) <= {"injected", "expected"}, result.output
    assert blamed(result).get("alive_but_hung") == "injected", result.output
    log = next(tmp_path.glob("runs/*/server.log")).read_text()
    for fault in ("slow_steps", "preempt", "nan_logits", "step_sleep", "step_hang"):
        assert f"loadchaos-sabotage: act {fault} " in log, fault
    assert "vllm-project/vllm#" not in result.output


def test_real_vllm_38551_is_met_by_the_first_phase_of_mtp_mm(loadchaos: Run) -> None:
    result = loadchaos("mtp_mm", *typed(vllm_0221_mtp()), "--set", "target.on_death=stop")
    death = result.failures["encoder_cache_miss"]
    assert (death["severity"], death["attribution"]) == ("engine_death", "server"), result.output
    assert "38551" in str(death["known"])
    assert sum(result.verdict["outcomes"].values()) <= 40, "one prompt for each number of template tokens"


def test_real_vllm_missing_encoder_entry_has_the_stack_of_38551(loadchaos: Run, plugin: Path, tmp_path: Path) -> None:
    command = vllm_0221_mtp(PYTHONPATH=str(plugin), LOADCHAOS_SABOTAGE_TRIGGER=str(tmp_path / "trigger"))
    sabotage = "{engine: encoder_pop_draft, at: 10s, for: 5m, params: {probability: 0.3}}"
    attacks = f"[{{admin: reset_mm_cache, every: 2s}}, {sabotage}]"
    # Without its first phase, which meets the real bug before the fault.
    options = ("--set", f"attacks={attacks}", "--set", "target.on_death=stop", "--set", "traffic.3.weight=0")
    result = loadchaos("mtp_mm", *typed(command), *options, "-u", "12")
    death = result.failures["encoder_cache_miss"]
    assert (death["severity"], death["attribution"], death["known"]) == ("engine_death", "injected", []), result.output
    stack = next(tmp_path.glob("runs/*/incidents/*encoder_cache_miss*/server.log.excerpt")).read_text()
    assert stack.index("in propose_draft_token_ids") < stack.index("in _gather_mm_embeddings")
    assert "AssertionError: Encoder cache miss for" in stack
    assert fared(result)["reset_mm_cache"][0] > 0
