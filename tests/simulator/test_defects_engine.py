import re
from collections import OrderedDict
from dataclasses import replace
from itertools import islice

import pytest

from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.limits import input_limit
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest, MMItem
from tests.simulator.conftest import run_requests
from tests.simulator.virtual_time import closed_loop, mixed_traffic

# mm_chunk_split

SPLIT = EngineConfig(
    era="0.8.1",
    num_speculative_tokens=0,
    async_scheduling=False,
    max_num_batched_tokens=13 * 1024,
    encoder_cache_size=20_000,
    defects=frozenset(["mm_chunk_split"]),
)
SEVEN = [EngineRequest(f"r{n}", 1963, 4, mm_items=(MMItem(f"h{n}", 1963, 0),)) for n in range(7)]


def test_mm_chunk_split_kills_when_the_budget_ends_inside_an_image() -> None:
    fault = run_requests(SPLIT, *SEVEN).fault
    assert fault is not None
    assert fault.title == (
        "ValueError: Attempted to assign 1 x 1963 + 1 x 1963 + 1 x 1963 + 1 x 1963 + 1 x 1963 + 1 x 1963 + 1 x 1963 "
        "= 13741 multimodal tokens to 13312 placeholders"
    )
    assert any("_merge_multimodal_embeddings" in line for line in fault.traceback)


def test_mm_chunk_split_kills_with_seven_images_in_one_request() -> None:
    items = tuple(MMItem(f"h{n}", 1963, n * 1963) for n in range(7))
    fault = run_requests(
        replace(SPLIT, max_num_batched_tokens=13722), EngineRequest("r", 13800, 4, mm_items=items)
    ).fault
    assert fault is not None
    assert fault.title.endswith(" = 13741 multimodal tokens to 13722 placeholders")


@pytest.mark.parametrize(
    "cure", [{"defects": frozenset()}, {"disable_chunked_mm_input": True}, {"max_num_batched_tokens": 14_000}]
)
def test_mm_chunk_split_is_cured_by_flag_and_budget(cure: dict[str, object]) -> None:
    loop = run_requests(replace(SPLIT, **cure), *SEVEN)  # type: ignore[arg-type]  # the three cures have three types
    assert loop.fault is None
    assert len(loop.ended) == 7


def test_mm_chunk_split_kills_in_a_burst_unless_the_flag_is_set() -> None:
    config = replace(SPLIT, max_num_batched_tokens=2500, encoder_cache_size=None)
    assert closed_loop(Engine(config), mixed_traffic(100, image_tokens=1369), users=40).fault is not None
    cured = replace(config, disable_chunked_mm_input=True)
    assert closed_loop(Engine(cured), mixed_traffic(100, image_tokens=1369), users=40).fault is None


def test_mm_chunk_split_spares_single_images_that_fit_the_budget() -> None:
    config = replace(SPLIT, max_num_batched_tokens=2048)
    one = EngineRequest("r", 1990, 4, mm_items=(MMItem("h", 1963, 5),))
    assert run_requests(config, one).fault is None


# mm_cache_desync


class Sender:
    """A correct sender side: the last `size` images, refreshed on a hit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: OrderedDict[str, None] = OrderedDict()

    def item(self, mm_hash: str) -> MMItem:
        known = mm_hash in self.held
        self.held[mm_hash] = None
        self.held.move_to_end(mm_hash)
        if len(self.held) > self.size:
            self.held.popitem(last=False)
        return MMItem(mm_hash, 100, 4, data=not known)


def churn(config: EngineConfig, *, different: int, reset_each: int = 0) -> Engine:
    """Run 200 requests, one per step, over `different` images.

    The order has hits on old images.
    """
    engine, sender = Engine(config), Sender(config.mm_processor_cache_items)
    for n in range(200):
        if reset_each and n % reset_each == reset_each - 1:
            engine.reset_mm_cache()
            sender.held.clear()
        which = n % different if n % 3 else n % 4  # a few favourites, and the others in turn
        engine.add(EngineRequest(f"r{n}", 200, 3, mm_items=(sender.item(f"h{which}"),)))
        engine.step()
    while engine.has_work:
        engine.step()
    return engine


DESYNC = EngineConfig(mm_processor_cache_items=8, defects=frozenset(["mm_cache_desync"]))


@pytest.mark.parametrize(("different", "reset_each"), [(20, 0), (6, 10)], ids=["churn", "reset"])
def test_mm_cache_desync_fails_only_the_affected_requests(different: int, reset_each: int) -> None:
    counters = churn(DESYNC, different=different, reset_each=reset_each).stats().counters
    assert counters["requests_finished_error"] > 0
    assert counters["requests_finished_length"] > 0
    healthy = churn(replace(DESYNC, defects=frozenset()), different=different, reset_each=reset_each).stats().counters
    assert healthy["requests_finished_error"] == 0
    assert healthy["requests_finished_length"] == 200


def test_mm_cache_desync_needs_many_images_or_a_reset() -> None:
    assert churn(DESYNC, different=8).stats().counters["requests_finished_error"] == 0


def test_mm_cache_desync_is_cured_by_no_processor_cache() -> None:
    engine = churn(replace(DESYNC, mm_processor_cache_items=0), different=20, reset_each=10)
    assert engine.stats().counters["requests_finished_error"] == 0


def expect_cached(engine: Engine) -> None:
    engine.add(EngineRequest("lost", 200, 3, mm_items=(MMItem("h", 100, 4, data=False),)))


def test_mm_cache_desync_fails_one_request_from_0_14() -> None:
    engine = Engine(EngineConfig(era="0.14"))
    expect_cached(engine)
    result = engine.step()
    (output,) = result.outputs
    assert (output.finish_reason, output.error) == ("error", "Expected a cached item for mm_hash='h'")
    assert result.log[0] == "Unexpected error pre-processing request lost"
    assert result.log[-1] == "AssertionError: Expected a cached item for mm_hash='h'"
    engine.add(EngineRequest("next", 10, 1))
    assert [o.finish_reason for o in engine.step().outputs] == ["length"]


def test_mm_cache_desync_kills_the_input_thread_before_0_14() -> None:
    engine = Engine(EngineConfig(era="0.13"))
    engine.add(EngineRequest("earlier", 10, 1))
    expect_cached(engine)
    assert engine.input_thread_dead
    result = engine.step()
    assert result.log[0] == "Exception in thread Thread-1 (process_input_sockets):"
    assert [o.request_id for o in result.outputs] == ["earlier"]
    engine.add(EngineRequest("later", 10, 1))
    engine.abort(["later"])
    assert not engine.has_work


# pp_illegal_access

PIPELINE = EngineConfig(
    num_speculative_tokens=0,
    async_scheduling=False,
    max_num_seqs=256,
    pipeline_parallel_size=4,
    gpu_memory_utilization=0.3,
    defects=frozenset(["pp_illegal_access"]),
)
BURST = [EngineRequest(f"r{n}", 16, 64) for n in range(131)]


def test_pp_illegal_access_kills_on_a_burst_at_low_memory() -> None:
    fault = run_requests(PIPELINE, *BURST).fault
    assert fault is not None
    assert fault.title == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert "For debugging consider passing CUDA_LAUNCH_BLOCKING=1." in fault.traceback
    assert any("send_tensor_and_shape" in line for line in fault.traceback)


@pytest.mark.parametrize(
    "cure",
    [
        {"defects": frozenset()},
        {"cuda_launch_blocking": True},
        {"gpu_memory_utilization": 0.4},
        {"pipeline_parallel_size": 1},
    ],
)
def test_pp_illegal_access_is_cured_by_each_remedy(cure: dict[str, object]) -> None:
    loop = run_requests(replace(PIPELINE, **cure), *BURST)  # type: ignore[arg-type]  # the cures have different types
    assert loop.fault is None
    assert len(loop.ended) == 131


def trickle(engine: Engine, a_step: int) -> None:
    arrivals = iter(BURST)
    while True:
        for request in islice(arrivals, a_step):
            engine.add(request)
        if not engine.has_work:
            return
        engine.step()


def test_pp_illegal_access_needs_a_burst() -> None:
    engine = Engine(PIPELINE)
    trickle(engine, a_step=2)
    assert engine.stats().counters["requests_finished_length"] == 131


def test_pp_illegal_access_counts_a_burst_over_several_steps() -> None:
    with pytest.raises(EngineFault, match="illegal memory access"):
        trickle(Engine(PIPELINE), a_step=6)


def test_pp_illegal_access_needs_a_large_burst() -> None:
    engine = Engine(PIPELINE)
    assert closed_loop(engine, iter(BURST[:60]), users=60).fault is None
    assert closed_loop(engine, (replace(request, id=f"again-{request.id}") for request in BURST), users=131).fault


# near_max_oob

NEAR = EngineConfig(max_model_len=8192, defects=frozenset(["near_max_oob"]))


@pytest.mark.parametrize("below", [1, 64, 500, 999])
def test_near_max_oob_asserts_near_the_maximum(below: int) -> None:
    fault = run_requests(NEAR, EngineRequest("a", 8192 - below, 1)).fault
    assert fault is not None
    assert fault.title == "RuntimeError: CUDA error: device-side assert triggered"
    assert any("vocab_parallel_embedding" in line for line in fault.traceback)
    pattern = (
        r"/pytorch/aten/src/ATen/native/cuda/IndexKernel\.cu:94: .* thread: \[\d+,0,0\] Assertion `-sizes\[i\] <= "
    )
    assert all(re.match(pattern, line) for line in fault.raw_before)
    assert len(set(fault.raw_before)) == len(fault.raw_before) == min(256, 1000 - below)


@pytest.mark.parametrize("below", [1000, 1100, 4000])
def test_near_max_oob_spares_shorter_prompts(below: int) -> None:
    assert run_requests(NEAR, EngineRequest("a", 8192 - below, 8)).fault is None


def test_near_max_oob_spares_long_answers() -> None:
    loop = run_requests(NEAR, EngineRequest("a", 7000, 5000))
    assert loop.fault is None
    assert loop.tokens["a"] == 1192


def test_engine_without_near_max_oob_serves_prompts_near_the_maximum() -> None:
    healthy = replace(NEAR, defects=frozenset())
    assert input_limit(healthy) == 8191
    loop = run_requests(healthy, *[EngineRequest(f"r{below}", 8192 - below, 4) for below in (1, 2, 50, 500, 1000)])
    assert loop.fault is None
    assert loop.tokens["r1"] == 1


# kv_capacity_as_500


def test_kv_capacity_as_500_changes_nothing_in_the_engine() -> None:
    config = EngineConfig(dialect="lmdeploy", era="0.6.4", num_gpu_blocks=21, block_size=64)
    for defects in (frozenset[str](), frozenset(["kv_capacity_as_500"])):
        loop = run_requests(
            replace(config, defects=defects), EngineRequest("over", 3446, 4), EngineRequest("fits", 1000, 4)
        )
        assert loop.ended["over"].error == "ResponseType.INPUT_LENGTH_ERROR"
        assert loop.ended["fits"].finish_reason == "length"


def test_kv_leak_on_abort_fills_the_cache() -> None:
    for defects, left in ((frozenset[str](), 0), (frozenset(["kv_leak_on_abort"]), 20)):
        engine = Engine(EngineConfig(num_gpu_blocks=200, defects=defects))
        for n in range(20):
            engine.add(EngineRequest(f"r{n}", 100, 50))
            engine.step()
            engine.step()
            engine.abort([f"r{n}"])
            engine.step()
        assert round(engine.stats().kv_usage * 200) == left


# stale_kv_on_resume


@pytest.mark.parametrize(
    ("defects", "blocks"), [(["stale_kv_on_resume"], 100), (["stale_kv_on_resume"], 8192), ([], 100)]
)
def test_stale_kv_on_resume_derails_only_preempted_requests(defects: list[str], blocks: int) -> None:
    engine = Engine(EngineConfig(num_gpu_blocks=blocks, enable_prefix_caching=False, defects=frozenset(defects)))
    for n in range(12):
        engine.add(EngineRequest(f"r{n}", 100, 120))
    outputs = [output for _ in range(2_000) if engine.has_work for output in engine.step().outputs]
    wrong = {o.request_id for o in outputs if o.fault == "derailed"}
    preempted = engine.stats().counters["preemptions"] > 0
    assert bool(wrong) == (preempted and bool(defects))
    assert len({o.request_id for o in outputs if o.finish_reason == "length"}) == 12
    assert "r0" not in wrong, "the oldest is never the one that makes room"


# rows_slip_on_abort


def test_rows_slip_on_abort_swaps_the_two_younger_requests() -> None:
    for defects, swapped in ((frozenset[str](), []), (frozenset(["rows_slip_on_abort"]), [("r1", "r2")])):
        engine = Engine(EngineConfig(defects=defects))
        for n in range(4):
            engine.add(EngineRequest(f"r{n}", 50, 50))
        engine.step()
        engine.step()
        engine.abort(["r0"])
        outputs = engine.step().outputs
        assert [(o.request_id, o.swapped_with) for o in outputs if o.swapped_with] == swapped


def test_rows_slip_on_abort_needs_two_younger_requests() -> None:
    engine = Engine(EngineConfig(defects=frozenset(["rows_slip_on_abort"])))
    for n in range(2):
        engine.add(EngineRequest(f"r{n}", 50, 50))
    engine.step()
    engine.abort(["r0"])
    assert [o for o in engine.step().outputs if o.swapped_with] == []


# queued_abort_held


@pytest.mark.parametrize(("defects", "left"), [([], 0), (["queued_abort_held"], 3)])
def test_queued_abort_held_keeps_only_requests_that_waited(defects: list[str], left: int) -> None:
    engine = Engine(EngineConfig(max_num_seqs=2, defects=frozenset(defects)))
    for n in range(5):
        engine.add(EngineRequest(f"r{n}", 50, 500))
    engine.step()
    engine.abort([f"r{n}" for n in range(5)])
    assert engine.stats().requests_waiting == left
    assert run_to_end(engine, EngineRequest("next", 50, 4)) == "length", "other requests are still served"


def run_to_end(engine: Engine, request: EngineRequest) -> str | None:
    """Finish reason of one more request; None if the engine stops before."""
    engine.add(request)
    for _ in range(1000):
        for output in engine.step().outputs if engine.has_work else ():
            if output.request_id == request.id and output.finish_reason:
                return output.finish_reason
    return None


# admission_stops


@pytest.mark.parametrize(
    ("defects", "blocks", "served"),
    [([], 60, True), (["admission_stops"], 60, False), (["admission_stops"], 8192, True)],
)
def test_admission_stops_after_a_preemption_in_a_full_batch(defects: list[str], blocks: int, served: bool) -> None:
    engine = Engine(EngineConfig(max_num_seqs=4, num_gpu_blocks=blocks, defects=frozenset(defects)))
    for n in range(8):
        engine.add(EngineRequest(f"r{n}", 100, 300))
    assert (run_to_end(engine, EngineRequest("next", 50, 4)) == "length") == served
    assert bool(engine.stats().counters["preemptions"]) == (blocks < 100)
    assert bool(engine.stats().requests_waiting) != served


# shared_block_freed

PREFIX = tuple(range(1000, 1010))


def share_and_abort(defects: list[str], *, shared: bool, caching: bool = True) -> EngineFault | None:
    """Three requests, the first two run together, the second leaves, the third comes."""
    engine = Engine(EngineConfig(enable_prefix_caching=caching, defects=frozenset(defects)))
    try:
        for n in range(3):
            prefix = PREFIX if shared else tuple(100 * n + k for k in range(10))
            engine.add(EngineRequest(f"r{n}", 170, 200, prefix_hashes=prefix))
            for _ in range(5):
                engine.step()
            if n == 1:
                engine.abort(["r1"])
    except EngineFault as fault:
        return fault
    return None


def test_shared_block_freed_kills_at_the_next_hit() -> None:
    fault = share_and_abort(["shared_block_freed"], shared=True)
    assert fault is not None
    assert fault.title.startswith("RuntimeError: remove() called on an invalid block: KVCacheBlock(")
    assert any("block_pool.py" in line for line in fault.traceback)


def test_shared_block_freed_needs_a_shared_prefix_in_the_cache() -> None:
    assert share_and_abort([], shared=True) is None
    assert share_and_abort(["shared_block_freed"], shared=False) is None
    assert share_and_abort(["shared_block_freed"], shared=True, caching=False) is None


# queue_lost_on_resume


@pytest.mark.parametrize("stop", ["pause", "sleep"])
@pytest.mark.parametrize(("defects", "waited"), [([], "length"), (["queue_lost_on_resume"], None)])
def test_queue_lost_on_resume_forgets_only_waiting_requests(stop: str, defects: list[str], waited: str | None) -> None:
    engine = Engine(EngineConfig(max_num_seqs=1, defects=frozenset(defects)))
    engine.add(EngineRequest("first", 50, 20))
    engine.step()
    engine.add(EngineRequest("waits", 50, 4))
    if stop == "pause":
        engine.pause("keep")
        engine.resume()
    else:
        engine.sleep(1, "keep")
        engine.wake_up()
    ended = {o.request_id: o.finish_reason for _ in range(200) if engine.has_work for o in engine.step().outputs}
    assert ended.get("waits") == waited
    assert run_to_end(engine, EngineRequest("later", 50, 4)) == "length"


# position_overflow

LONG = EngineConfig(max_model_len=40_000, max_num_batched_tokens=8192, defects=frozenset(["position_overflow"]))


@pytest.mark.parametrize(
    ("prompt", "answer", "dies"), [(32_760, 16, True), (32_760, 4, False), (32_768, 16, False), (16_380, 16, False)]
)
def test_position_overflow_kills_an_answer_that_crosses_the_position(prompt: int, answer: int, dies: bool) -> None:
    fault = run_requests(LONG, EngineRequest("a", prompt, answer)).fault
    assert (fault is not None) == dies
    assert run_requests(replace(LONG, defects=frozenset()), EngineRequest("a", prompt, answer)).fault is None
