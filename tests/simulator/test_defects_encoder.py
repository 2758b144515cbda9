"""The three ways an encoder-cache entry is gone when the drafter wants it (vllm-project/vllm#38551), in virtual time."""

from dataclasses import replace

import pytest

from loadchaos.simulator.defects import DEFECTS
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.rules import REDO_AFTER_REJECTIONS
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest, MMItem
from loadchaos.simulator.engine.virtual_time import LoopResult, closed_loop, mixed_traffic

THREE = ("encoder_pop_before_draft", "encoder_free_on_speculated", "encoder_free_on_scheduled")
SMALL = EngineConfig(max_num_batched_tokens=2048)


def with_defect(name: str, config: EngineConfig = SMALL) -> EngineConfig:
    return replace(config, defects=frozenset([name]))


def demo(config: EngineConfig, seed: int, requests: int = 600) -> LoopResult:
    return closed_loop(Engine(config), mixed_traffic(requests, seed=seed), users=80)


@pytest.mark.parametrize("defect", THREE)
def test_mixed_traffic_of_80_users_brings_the_engine_into_it_within_600_requests(defect: str) -> None:
    deaths = [demo(with_defect(defect), seed) for seed in range(4)]
    assert all(played.fault for played in deaths)
    assert all(played.steps > 3 for played in deaths)  # and not with the first request


@pytest.mark.parametrize("seed", range(3))
def test_the_same_traffic_passes_with_the_defects_off(seed: int) -> None:
    played = demo(SMALL, seed)
    assert played.fault is None
    assert {output.finish_reason for output in played.ended.values()} == {"length"}
    assert len(played.ended) == 600


@pytest.mark.parametrize("defect", THREE)
def test_without_drafts_the_mechanism_is_absent(defect: str) -> None:
    played = demo(with_defect(defect, replace(SMALL, num_speculative_tokens=0)), seed=1, requests=300)
    assert played.fault is None


@pytest.mark.parametrize("defect", THREE)
def test_no_async_scheduling_cures_the_speculated_count_and_nothing_else(defect: str) -> None:
    faults = [demo(with_defect(defect, replace(SMALL, async_scheduling=False)), seed).fault for seed in range(3)]
    if defect == "encoder_free_on_speculated":
        assert faults == [None, None, None]
    else:
        assert all(faults)


@pytest.mark.parametrize("defect", THREE)
def test_a_larger_batch_budget_and_with_it_encoder_cache_makes_it_rarer(defect: str) -> None:
    small = sum(demo(with_defect(defect), seed, 200).fault is not None for seed in range(4))
    large = sum(
        demo(with_defect(defect, replace(SMALL, max_num_batched_tokens=32768)), seed, 200).fault is not None
        for seed in range(4)
    )
    assert large < small


@pytest.mark.parametrize("defect", THREE)
def test_text_alone_never_meets_it(defect: str) -> None:
    played = closed_loop(Engine(with_defect(defect)), mixed_traffic(200, images=0.0), users=40)
    assert played.fault is None


def picture(name: str) -> MMItem:
    return MMItem(name, 1000, 4)


# A cache for one picture, and draft_acceptance 0: every draft is rejected, so the drafter starts over. `a` has its
# answer's first steps behind it when `b` comes, whose picture wants the room.
ONE_PICTURE = EngineConfig(encoder_cache_size=1000, draft_acceptance=0.0)


def meet(config: EngineConfig, b_comes_at_step: int) -> LoopResult:
    """`a` and its picture from step 0, `b` with another picture some steps later, in a cache that holds one."""
    engine = Engine(config)
    played = LoopResult()
    engine.add(EngineRequest("a", 1100, 20, mm_items=(picture("of_a"),)))
    for step in range(100):
        if step == b_comes_at_step:
            engine.add(EngineRequest("b", 1100, 20, mm_items=(picture("of_b"),)))
        try:
            engine.step()
        except EngineFault as fault:
            played.fault = fault
            return played
        played.steps += 1
    return played


@pytest.mark.parametrize("defect", THREE)
def test_it_bites_only_when_another_picture_takes_the_room_in_the_few_steps_before_the_drafter_starts_over(
    defect: str,
) -> None:
    bites = [step for step in range(12) if meet(with_defect(defect, ONE_PICTURE), step).fault is not None]
    assert bites, "no moment at which it bites"
    assert max(bites) <= REDO_AFTER_REJECTIONS + 2
    assert [step for step in range(12) if meet(ONE_PICTURE, step).fault is not None] == []


@pytest.mark.parametrize("defect", THREE)
def test_it_does_not_bite_while_the_drafts_hold(defect: str) -> None:
    config = with_defect(defect, replace(ONE_PICTURE, draft_acceptance=1.0))
    assert all(meet(config, step).fault is None for step in range(12))


def test_the_death_reads_like_vllms_own() -> None:
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


def test_from_0_24_on_it_is_a_runtime_error() -> None:
    fault = demo(with_defect("encoder_pop_before_draft", replace(SMALL, era="0.24")), seed=0).fault
    assert fault is not None
    assert fault.title.startswith("RuntimeError: Encoder cache miss for ")


def test_a_server_patched_as_the_reporter_did_logs_the_miss_and_lives_on() -> None:
    patched = replace(SMALL, skip_encoder_miss=True)
    played = demo(with_defect("encoder_free_on_speculated", patched), seed=0)
    assert played.fault is None
    assert len(played.ended) == 600
    assert any(
        line.startswith("Encoder cache miss for ") and line.endswith(", skipping mm embedding") for line in played.log
    )


def test_a_misspelt_defect_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean encoder_free_on_speculated"):
        Engine(with_defect("encoder_free_on_speculation"))


def test_the_shelf_says_of_each_defect_what_it_is_and_where_it_belongs() -> None:
    assert set(THREE) < set(DEFECTS)
    for name, defect in DEFECTS.items():
        assert defect.name == name
        assert defect.dialect in {"vllm", "lmdeploy"}
        assert defect.about
        assert "\n" not in defect.about
        assert set(defect.remedies) <= set(EngineConfig.__dataclass_fields__)
