"""The engine in virtual time: outputs, caches, pauses and limits."""

from dataclasses import replace

import pytest

from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.limits import input_limit, lmdeploy_blocks
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest, MMItem, RequestOutput
from tests.simulator.conftest import run_requests
from tests.simulator.virtual_time import closed_loop, mixed_traffic

PLAIN = EngineConfig(num_speculative_tokens=0, async_scheduling=False)


def run_until_idle(engine: Engine) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    while engine.has_work:
        outputs += engine.step().outputs
    return outputs


def test_engine_gives_the_requested_tokens_and_ends_with_length() -> None:
    loop = run_requests(PLAIN, EngineRequest("a", 100, 7))
    assert loop.tokens == {"a": 7}
    assert loop.ended["a"].finish_reason == "length"


def test_chunked_prefill_computes_a_long_prompt_in_chunks() -> None:
    loop = run_requests(replace(PLAIN, max_num_batched_tokens=512), EngineRequest("a", 1500, 1))
    assert loop.steps == 3


def test_disabled_chunked_prefill_computes_a_prompt_in_one_step() -> None:
    loop = run_requests(
        replace(PLAIN, max_num_batched_tokens=512, enable_chunked_prefill=False), EngineRequest("a", 1500, 1)
    )
    assert loop.steps == 1


def test_drafts_give_more_tokens_than_steps_and_are_counted() -> None:
    engine = Engine(replace(PLAIN, num_speculative_tokens=2, draft_acceptance=0.8))
    loop = closed_loop(engine, iter([EngineRequest("a", 10, 200)]), users=1)
    counters = engine.stats().counters
    assert loop.tokens == {"a": 200}
    assert loop.steps < 120
    assert 0 < counters["spec_accepted_tokens"] < counters["spec_draft_tokens"] == 2 * counters["spec_drafts"]


def test_async_scheduling_gives_the_same_answers_as_planning_step_by_step() -> None:
    for drafts in (0, 1, 3):
        config = EngineConfig(num_speculative_tokens=drafts, async_scheduling=False)
        one = closed_loop(Engine(config), mixed_traffic(60, seed=drafts), users=16)
        two = closed_loop(Engine(replace(config, async_scheduling=True)), mixed_traffic(60, seed=drafts), users=16)
        assert one.tokens == two.tokens


def test_engine_is_deterministic() -> None:
    config = EngineConfig(num_gpu_blocks=700)
    first = closed_loop(Engine(config), mixed_traffic(80), users=20)
    again = closed_loop(Engine(config), mixed_traffic(80), users=20)
    assert first == again


def test_prefix_cache_hit_is_not_computed_again() -> None:
    engine = Engine(PLAIN)
    hashes = tuple(range(1, 11))
    engine.add(EngineRequest("a", 165, 4, prefix_hashes=hashes))
    run_until_idle(engine)
    engine.add(EngineRequest("b", 165, 4, prefix_hashes=hashes))
    first = next(output for output in run_until_idle(engine) if output.request_id == "b")
    assert first.cached_tokens == 160
    assert engine.stats().counters["prefix_cache_hits"] == 160
    assert engine.stats().kv_usage == 0


def test_preemption_hits_the_last_request_and_loses_no_token() -> None:
    engine = Engine(replace(PLAIN, num_gpu_blocks=40, max_model_len=600))
    loop = closed_loop(engine, iter([EngineRequest(f"r{n}", 200, 150) for n in range(4)]), users=4)
    assert engine.stats().counters["preemptions"] > 0
    assert set(loop.tokens.values()) == {150}
    assert engine.stats().kv_usage == 0


def test_single_request_out_of_blocks_ends_with_its_tokens_so_far() -> None:
    loop = run_requests(replace(PLAIN, num_gpu_blocks=4), EngineRequest("a", 60, 100))
    assert loop.ended["a"].finish_reason == "length"
    assert 0 < loop.tokens["a"] < 10


def test_abort_frees_everything_at_once() -> None:
    engine = Engine(EngineConfig())
    engine.add(EngineRequest("a", 3000, 50, mm_items=(MMItem("x", 1000, 10),)))
    engine.step()
    engine.abort(["a", "unknown"])
    assert [(o.request_id, o.finish_reason) for o in run_until_idle(engine)] == [("a", "abort")]
    stats = engine.stats()
    assert (stats.requests_running, stats.kv_usage, stats.counters["requests_finished_abort"]) == (0, 0, 1)


def test_paused_engine_accepts_requests_and_serves_none() -> None:
    engine = Engine(PLAIN)
    engine.pause("keep")
    engine.add(EngineRequest("a", 10, 2))
    assert not engine.has_work
    engine.resume()
    assert [o.new_tokens for o in run_until_idle(engine)] == [1, 1]


def test_pause_with_wait_finishes_running_requests_only() -> None:
    engine = Engine(PLAIN)
    engine.add(EngineRequest("a", 10, 20))
    engine.step()
    engine.pause("wait")
    engine.add(EngineRequest("b", 10, 2))
    assert {o.request_id for o in run_until_idle(engine)} == {"a"}
    assert engine.stats().requests_waiting == 1


def test_sleep_ends_running_requests_until_wake_up() -> None:
    engine = Engine(EngineConfig())
    engine.add(EngineRequest("a", 10, 20))
    engine.step()
    engine.sleep()
    assert [o.finish_reason for o in engine.step().outputs] == ["abort"]
    engine.add(EngineRequest("b", 10, 3))
    assert not engine.has_work
    engine.wake_up()
    assert sum(o.new_tokens for o in run_until_idle(engine)) == 3


def test_cache_reset_with_requests_in_progress_logs_vllms_warning() -> None:
    engine = Engine(PLAIN)
    assert engine.reset_mm_cache() == []
    engine.add(EngineRequest("a", 10, 20))
    engine.step()
    assert engine.reset_mm_cache() == [
        "Resetting the multi-modal cache when requests are in progress may lead to desynced internal caches."
    ]
    assert engine.reset_encoder_cache() == [
        "Resetting the encoder cache when requests are in progress may lead to desynced internal caches."
    ]
    assert engine.reset_prefix_cache() is False
    assert engine.reset_prefix_cache(reset_running=True) is True
    assert sum(o.new_tokens for o in run_until_idle(engine)) == 19


def test_processor_cache_reset_in_order_fails_no_request() -> None:
    engine = Engine(EngineConfig())
    sent: set[str] = set()
    for n in range(40):
        if n % 7 == 3:
            engine.reset_mm_cache()
            sent.clear()
        mm_hash = f"h{n % 5}"
        engine.add(EngineRequest(f"r{n}", 600, 8, mm_items=(MMItem(mm_hash, 500, 20, data=mm_hash not in sent),)))
        sent.add(mm_hash)
        engine.step()
    run_until_idle(engine)
    assert engine.stats().counters["requests_finished_length"] == 40
    assert engine.stats().counters["mm_cache_hits"] == 10


def test_encoder_reset_under_load_causes_a_miss() -> None:
    def reset_and_step_until_it_dies(engine: Engine) -> None:
        for request in mixed_traffic(400):
            engine.add(request)
        for n in range(2000):
            if n % 3 == 0:
                engine.reset_encoder_cache()
            engine.step()

    with pytest.raises(EngineFault, match="Encoder cache miss for"):
        reset_and_step_until_it_dies(Engine(EngineConfig()))


def test_too_long_prompt_fails_only_its_own_request() -> None:
    loop = run_requests(replace(PLAIN, max_model_len=1000), EngineRequest("a", 1001, 5), EngineRequest("b", 999, 5))
    assert loop.ended["a"].finish_reason == "error"
    assert loop.ended["b"].finish_reason == "length"
    assert loop.tokens["b"] == 1


def test_adjacent_images_do_not_deadlock() -> None:
    items = tuple(MMItem(f"h{n}", 1024, 4 + 1024 * n) for n in range(4))
    for drafts in (0, 1):
        config = EngineConfig(encoder_cache_size=1024, num_speculative_tokens=drafts)
        loop = run_requests(config, *(EngineRequest(f"r{n}", 5000, 5, mm_items=items) for n in range(3)))
        assert set(loop.tokens.values()) == {5}


def test_step_time_grows_with_work_and_is_divided_by_speed() -> None:
    one = run_requests(PLAIN, EngineRequest("a", 10, 100))
    fast = run_requests(replace(PLAIN, speed=10.0), EngineRequest("a", 10, 100))
    assert 0.010 <= one.seconds / one.steps <= 0.020
    assert fast.seconds == pytest.approx(one.seconds / 10)


@pytest.mark.parametrize(
    ("era", "limit"), [("0.6.4", 1344), ("0.9.0", 1344), ("0.9.2", 1280), ("0.10.0", 1280), ("0.18", 1216)]
)
def test_input_limit_of_lmdeploy_follows_its_era(era: str, limit: int) -> None:
    config = EngineConfig(dialect="lmdeploy", era=era, num_gpu_blocks=21, block_size=64, max_model_len=8192)
    assert input_limit(config) == limit
    engine = Engine(config)
    engine.add(EngineRequest("over", limit + 1, 4))
    engine.add(EngineRequest("fits", limit, 4))
    ended = {o.request_id: o for o in run_until_idle(engine) if o.finish_reason}
    assert ended["over"].error == "ResponseType.INPUT_LENGTH_ERROR"
    assert ended["fits"].finish_reason == "length"


def test_lmdeploy_blocks_follow_the_share_of_memory() -> None:
    assert [lmdeploy_blocks(share) for share in (0.1, 0.5)] == [21, 107]
    assert lmdeploy_blocks(0.25) < 54 <= lmdeploy_blocks(0.26)
    config = EngineConfig(dialect="lmdeploy", era="0.6.4", num_gpu_blocks=0, block_size=64, cache_max_entry_count=0.1)
    assert input_limit(config) == 1344
