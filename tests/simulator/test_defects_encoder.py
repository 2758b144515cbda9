"""The encoder cache defects (vllm-project/vllm#38551)."""

from dataclasses import replace

import pytest

from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.rules import REDO_AFTER_REJECTIONS
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest, MMItem
from tests.simulator.conftest import run_requests
from tests.simulator.virtual_time import LoopResult, closed_loop, mixed_traffic

THREE = ("encoder_pop_before_draft", "encoder_free_on_speculated", "encoder_free_on_scheduled")
SMALL = EngineConfig(max_num_batched_tokens=2048)


def with_defect(name: str, config: EngineConfig = SMALL) -> EngineConfig:
    return replace(config, defects=frozenset([name]))


def demo(config: EngineConfig, seed: int, requests: int = 600) -> LoopResult:
    return closed_loop(Engine(config), mixed_traffic(requests, seed=seed), users=80)


@pytest.mark.parametrize("defect", THREE)
def test_encoder_defects_kill_the_engine_within_600_mixed_requests(defect: str) -> None:
    deaths = [demo(with_defect(defect), seed) for seed in range(4)]
    assert all(loop.fault for loop in deaths)
    assert all(loop.steps > 3 for loop in deaths)  # and not with the first request


@pytest.mark.parametrize("seed", range(3))
def test_engine_without_defects_serves_the_same_traffic(seed: int) -> None:
    loop = demo(SMALL, seed)
    assert loop.fault is None
    assert {output.finish_reason for output in loop.ended.values()} == {"length"}
    assert len(loop.ended) == 600


@pytest.mark.parametrize("defect", THREE)
def test_encoder_defects_need_drafts(defect: str) -> None:
    loop = demo(with_defect(defect, replace(SMALL, num_speculative_tokens=0)), seed=1, requests=300)
    assert loop.fault is None


@pytest.mark.parametrize("defect", THREE)
def test_disabled_async_scheduling_cures_only_encoder_free_on_speculated(defect: str) -> None:
    faults = [demo(with_defect(defect, replace(SMALL, async_scheduling=False)), seed).fault for seed in range(3)]
    if defect == "encoder_free_on_speculated":
        assert faults == [None, None, None]
    else:
        assert all(faults)


@pytest.mark.parametrize("defect", THREE)
def test_larger_batch_budget_makes_encoder_defects_rarer(defect: str) -> None:
    small = sum(demo(with_defect(defect), seed, 200).fault is not None for seed in range(4))
    large = sum(
        demo(with_defect(defect, replace(SMALL, max_num_batched_tokens=32768)), seed, 200).fault is not None
        for seed in range(4)
    )
    assert large < small


def image_item(name: str) -> MMItem:
    return MMItem(name, 1000, 4)


# A cache for one image, and draft_acceptance 0: every draft is rejected, so the drafter reads the image again. `a` has
# given its first tokens when `b` comes, whose image needs the space.
ONE_IMAGE = EngineConfig(encoder_cache_size=1000, draft_acceptance=0.0)


def run_two(config: EngineConfig, b_comes_at_step: int) -> LoopResult:
    """Run `a` with an image from step 0, and `b` with another one later.

    The encoder cache holds one image.
    """
    engine = Engine(config)
    loop = LoopResult()
    engine.add(EngineRequest("a", 1100, 20, mm_items=(image_item("of_a"),)))
    for step in range(100):
        if step == b_comes_at_step:
            engine.add(EngineRequest("b", 1100, 20, mm_items=(image_item("of_b"),)))
        try:
            engine.step()
        except EngineFault as fault:
            loop.fault = fault
            return loop
        loop.steps += 1
    return loop


@pytest.mark.parametrize("defect", THREE)
def test_encoder_defects_need_an_eviction_within_few_steps(defect: str) -> None:
    deadly_steps = [step for step in range(12) if run_two(with_defect(defect, ONE_IMAGE), step).fault is not None]
    assert deadly_steps, "no step at which the defect shows"
    assert max(deadly_steps) <= REDO_AFTER_REJECTIONS + 2
    assert [step for step in range(12) if run_two(ONE_IMAGE, step).fault is not None] == []


@pytest.mark.parametrize("defect", THREE)
def test_encoder_defects_need_rejected_drafts(defect: str) -> None:
    config = with_defect(defect, replace(ONE_IMAGE, draft_acceptance=1.0))
    assert all(run_two(config, step).fault is None for step in range(12))


def test_encoder_miss_has_vllms_traceback() -> None:
    fault = demo(with_defect("encoder_free_on_speculated"), seed=0).fault
    assert fault is not None
    assert fault.traceback[0] == "Traceback (most recent call last):"
    assert fault.traceback[-1] == fault.title
    assert fault.title.startswith("AssertionError: Encoder cache miss for ")
    functions = [line.rsplit(" in ", 1)[1] for line in fault.traceback if line.startswith("  File ")]
    assert functions[-2:] == ["propose_draft_token_ids", "_gather_mm_embeddings"]
    assert "_preprocess" not in functions
    assert fault.log_before[0].startswith("Dumping input data for V1 LLM engine (v0.18.0) with config: ")
    assert fault.log_before[1].startswith("Dumping scheduler output for model execution: SchedulerOutput(")


def test_encoder_miss_is_a_runtime_error_from_0_24() -> None:
    fault = demo(with_defect("encoder_pop_before_draft", replace(SMALL, era="0.24")), seed=0).fault
    assert fault is not None
    assert fault.title.startswith("RuntimeError: Encoder cache miss for ")


def run_one(config: EngineConfig, image_at: int) -> LoopResult:
    """Run one request alone, whose only image begins at a token of its prompt."""
    return run_requests(config, EngineRequest("a", image_at + 300, 4, mm_items=(MMItem("image", 256, image_at),)))


@pytest.mark.parametrize("image_at", [2048, 4096])
def test_skipped_image_kills_only_where_it_begins_at_the_end_of_a_step(image_at: int) -> None:
    config = replace(with_defect("encoder_skipped_at_step_end"), max_model_len=8192)
    found = {move: run_one(config, image_at + move).fault for move in (-2, -1, 0, 1, 2)}
    assert {move for move, fault in found.items() if fault is not None} == {0}
    assert found[0] is not None
    assert found[0].title == "AssertionError: Encoder cache miss for image."
    assert "propose_draft_token_ids" in "".join(found[0].traceback)


@pytest.mark.parametrize("remedy", [{"num_speculative_tokens": 0}, {"disable_chunked_mm_input": True}])
def test_skipped_image_has_the_remedies_of_the_real_bug(remedy: dict[str, bool | int]) -> None:
    assert run_one(replace(with_defect("encoder_skipped_at_step_end"), **remedy), 2048).fault is None  # type: ignore[arg-type]


@pytest.mark.parametrize("disable", [False, True])
def test_healthy_engine_encodes_an_image_that_its_drafter_reads_ahead(disable: bool) -> None:
    for move in range(-2, 3):
        assert run_one(replace(SMALL, disable_chunked_mm_input=disable), 2048 + move).fault is None
