"""Properties of the engine for any traffic and flags.

No request is lost, no block is freed twice, every request gets its tokens.
"""

from itertools import islice

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadchaos.simulator.defects import DEFECTS
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.kv_cache import BlockPool
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, MMItem
from tests.simulator.virtual_time import closed_loop

BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def requests(draw: st.DrawFn) -> list[EngineRequest]:
    made = []
    for n in range(draw(st.integers(1, 12))):
        position = draw(st.integers(0, 40))
        items = []
        for _ in range(draw(st.integers(0, 3))):
            tokens = draw(st.integers(1, 300))
            # the size belongs to the picture, as in life: one hash, one size
            items.append(MMItem(f"h{draw(st.integers(0, 4))}-{tokens}", tokens, position))
            position += tokens + draw(st.integers(0, 3))
        prompt = position + draw(st.integers(1, 400))
        prefix = draw(st.integers(0, 3))
        hashes = tuple(prefix * 1000 + block for block in range(prompt // 16)) if prefix else ()
        made.append(EngineRequest(f"r{n}", prompt, draw(st.integers(1, 60)), 0, items, hashes, n))
    return made


@st.composite
def config_of(draw: st.DrawFn) -> EngineConfig:
    budget = draw(st.sampled_from([64, 333, 2048]))
    return EngineConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.sampled_from([1, 3, 64])),
        num_gpu_blocks=draw(st.sampled_from([110, 150, 4000])),
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=draw(st.booleans()),
        disable_chunked_mm_input=budget >= 300 and draw(st.booleans()),
        encoder_cache_size=draw(st.sampled_from([None, 300, 450])),
        num_speculative_tokens=draw(st.sampled_from([0, 1, 4])),
        draft_acceptance=draw(st.sampled_from([0.0, 0.75, 1.0])),
        async_scheduling=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


configs = config_of()


@BOUNDED
@given(configs, requests())
def test_engine_gives_all_tokens_and_is_empty_afterwards(config: EngineConfig, asked: list[EngineRequest]) -> None:
    engine = Engine(config)
    loop = closed_loop(engine, iter(asked), users=5, max_steps=20_000)
    assert loop.fault is None
    assert loop.tokens == {request.id: request.max_tokens for request in asked}
    stats = engine.stats()
    assert (stats.requests_running, stats.requests_waiting, stats.kv_usage) == (0, 0, 0)
    assert stats.encoder_cache_tokens <= (config.encoder_cache_size or max(config.max_num_batched_tokens, 300))
    assert stats.counters["generation_tokens"] == sum(request.max_tokens for request in asked)
    assert engine.reset_prefix_cache() is True


@BOUNDED
@given(configs, requests(), st.data())
def test_aborts_at_any_step_leave_nothing_behind(
    config: EngineConfig, asked: list[EngineRequest], data: st.DataObject
) -> None:
    engine = Engine(config)
    arrivals = iter(asked)
    ended = set()
    for request in islice(arrivals, 4):
        engine.add(request)
    while engine.has_work:
        for output in engine.step().outputs:
            if output.finish_reason:
                assert output.request_id not in ended
                ended.add(output.request_id)
                for request in islice(arrivals, 1):
                    engine.add(request)
        if data.draw(st.booleans()):
            engine.abort([data.draw(st.sampled_from(asked)).id])
    assert engine.stats().kv_usage == 0
    assert engine.stats().requests_running == 0


@BOUNDED
@given(configs, requests(), st.lists(st.sampled_from(["mm", "prefix", "preempt", "encoder"]), max_size=30))
def test_resets_under_load_lose_no_request_without_drafts(
    config: EngineConfig, asked: list[EngineRequest], resets: list[str]
) -> None:
    plain = EngineConfig(num_speculative_tokens=0, async_scheduling=False, num_gpu_blocks=config.num_gpu_blocks)
    engine = Engine(plain)
    for request in asked:
        engine.add(request)
    tokens = 0
    while engine.has_work:
        match resets.pop() if resets else "":
            case "mm":
                engine.reset_mm_cache()
            case "prefix":
                engine.reset_prefix_cache()
            case "preempt":
                engine.reset_prefix_cache(reset_running=True)
            case "encoder":
                engine.reset_encoder_cache()
        tokens += sum(output.new_tokens for output in engine.step().outputs)
    assert tokens == sum(request.max_tokens for request in asked)


@BOUNDED
@given(st.sampled_from(sorted(DEFECTS)), configs, st.lists(st.integers(1, 1200), min_size=1, max_size=20))
def test_image_defects_never_affect_text_requests(defect: str, config: EngineConfig, prompts: list[int]) -> None:
    with_defect = EngineConfig(
        num_gpu_blocks=config.num_gpu_blocks,
        num_speculative_tokens=config.num_speculative_tokens,
        async_scheduling=config.async_scheduling,
        dialect=DEFECTS[defect].dialect,
        defects=frozenset([defect]),
    )
    loop = closed_loop(
        Engine(with_defect), iter([EngineRequest(f"r{n}", p, 9) for n, p in enumerate(prompts)]), users=8
    )
    assert loop.fault is None
    assert set(loop.tokens.values()) == {9}


@BOUNDED
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 8)), max_size=60))
def test_block_pool_blocks_are_free_or_held(operations: list[tuple[int, int, int]]) -> None:
    pool = BlockPool(24, 16, caching=True)
    held: list[list[int]] = []
    for what, size, name in operations:
        if what <= 1:
            matched = pool.match([name * 100 + n for n in range(size)], size)
            fresh = pool.allocate(size - len(matched)) if pool.room_beside(matched) >= size - len(matched) else None
            if fresh is None:
                continue
            # taken in the order the scheduler takes them: what was matched first
            pool.release(fresh)
            pool.share(matched)
            fresh = pool.allocate(size - len(matched)) or []
            for n, block in enumerate(matched + fresh):
                pool.remember(block, name * 100 + n)
            held.append(matched + fresh)
        elif what == 2 and held:
            pool.release(held.pop(size % len(held)))
        in_use = {block for blocks in held for block in blocks}
        assert round(pool.usage * 24) == len(in_use)
    for blocks in held:
        pool.release(blocks)
    assert pool.usage == 0
    assert pool.forget_prefixes() is True
