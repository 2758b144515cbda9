"""Loads in virtual time: they meet planted defects, and none without one."""

import pytest

from bench.hunt import CASES, Measured, _checked, measure, shown
from bench.virtual_engine import VirtualServer
from loadchaos.simulator.defects import DEFECTS
from loadchaos.simulator.engine.types import EngineConfig


def test_every_defect_of_a_vllm_has_a_case() -> None:
    assert {c.defect for c in CASES} <= {d.name for d in DEFECTS.values() if d.dialect == "vllm"}
    assert len(CASES) >= 17


@pytest.mark.parametrize("strategy", ["profile", "hunt", "chance"])
def test_strategies_meet_a_defect_that_two_prompts_trigger(strategy: str) -> None:
    case = next(c for c in CASES if c.defect == "streams_swapped")
    found = measure(case, strategy, 1, 400)
    assert found.found
    assert found == measure(case, strategy, 1, 400), "virtual time is deterministic"


def test_images_that_are_mixed_up_are_seen() -> None:
    server = VirtualServer(EngineConfig(defects=frozenset(["stale_image_embedding"])))
    images = {"text": {"tokens": 64}, "images": {"count": 2, "size": "256x256"}}
    load = {"name": "x", "traffic": [{"name": "b", "payload": images}], "load": [{"users": 16, "requests": 60}]}
    assert server.run(_checked(load), 3).failure == "wrong answer"


def test_healthy_engine_has_no_failure_under_aborts_images_and_resets() -> None:
    server = VirtualServer(EngineConfig(num_gpu_blocks=512))
    abort = {"abort": {"share": "50%", "at_token": "1..4"}}
    images = {"images": {"count": "1..2", "size": "448x448", "unique": "50%", "reuse_distance": 8}}
    load = {
        "name": "x",
        "traffic": [
            {"name": "a", "payload": {"text": {"tokens": "32..512"}}, "output": {"max": 32}, "behaviour": abort},
            {"name": "b", "payload": {"text": {"tokens": 64}, **images}, "output": {"exact": 16}},
        ],
        "load": [{"users": 16, "requests": 60}, {"burst": 40}],
        "attacks": [{"admin": "reset_mm_cache", "every": "200ms"}, {"admin": "pause", "every": "1s", "for": "500ms"}],
    }
    result = server.run(_checked(load), 3)
    assert (result.failure, result.requests) == ("", 100)
    assert {"pair:aborts&attack", "grew:mm_cache_misses:3"} <= result.coverage.features


def test_pause_at_the_end_of_a_load_does_not_last_into_the_next() -> None:
    server = VirtualServer(EngineConfig())
    left = {"abort": {"share": "100%", "after": "2s"}}
    text = {"name": "a", "payload": {"text": {"tokens": 64}}, "output": {"exact": 4000}, "behaviour": left}
    pause = {"admin": "pause", "every": "1s", "for": "20s"}
    paused = server.run(_checked({"name": "x", "traffic": [text], "load": [{"burst": 4}], "attacks": [pause]}), 3)
    assert "attack:pause:200" in paused.coverage.features
    plain = {"name": "a", "payload": {"text": {"tokens": 64}}, "output": {"exact": 8}}
    assert server.run(_checked({"name": "y", "traffic": [plain], "load": [{"burst": 4}]}), 3).failure == ""


def test_censored_results_are_shown_as_bounds() -> None:
    assert shown([Measured(100, 1, False)] * 5, 100) == "> 100 (0 of 5)"
    some = [Measured(n, 1, True) for n in (10, 20, 30)] + [Measured(100, 1, False)] * 2
    assert shown(some, 100) == "30 (10 to > 100), 3 of 5"
