"""Texts of an engine's death, as vLLM prints them. They are tracebacks with the real frames, and the log lines just
before.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.types import EngineConfig, EngineFault

SITE = "/usr/local/lib/python3.12/dist-packages"
Frame = tuple[str, int, str, str]  # file below SITE, line, function, the source line

_CORE: tuple[Frame, ...] = (
    ("vllm/v1/engine/core.py", 1090, "run_engine_core", "engine_core.run_busy_loop()"),
    ("vllm/v1/engine/core.py", 1125, "run_busy_loop", "self._process_engine_step()"),
    ("vllm/v1/engine/core.py", 1162, "_process_engine_step", "outputs, model_executed = self.step_fn()"),
)
_RUN_METHOD: tuple[Frame, ...] = (
    (
        "vllm/v1/executor/uniproc_executor.py",
        80,
        "collective_rpc",
        "result = run_method(self.driver_worker, method, args, kwargs)",
    ),
    ("vllm/v1/serial_utils.py", 459, "run_method", "return func(*args, **kwargs)"),
)
SAMPLE_TOKENS: tuple[Frame, ...] = (
    *_CORE,
    ("vllm/v1/engine/core.py", 498, "step_with_batch_queue", "future = self.model_executor.sample_tokens("),
    ("vllm/v1/executor/uniproc_executor.py", 120, "sample_tokens", "return self.collective_rpc("),
    *_RUN_METHOD,
    ("vllm/v1/worker/gpu_worker.py", 747, "sample_tokens", "return self.model_runner.sample_tokens(grammar_output)"),
)
EXECUTE_MODEL: tuple[Frame, ...] = (
    *_CORE,
    ("vllm/v1/engine/core.py", 455, "step_with_batch_queue", "exec_future = self.model_executor.execute_model("),
    ("vllm/v1/executor/uniproc_executor.py", 108, "execute_model", "output = self.collective_rpc("),
    *_RUN_METHOD,
    ("vllm/v1/worker/gpu_worker.py", 771, "execute_model", "output = self.model_runner.execute_model("),
)


def traceback(error: str, frames: Sequence[Frame]) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for file, line, function, source in frames:
        lines += [f'  File "{SITE}/{file}", line {line}, in {function}', f"    {source}"]
    return [*lines, *error.splitlines()]


def config_text(config: EngineConfig) -> str:
    """Describe an engine as vLLM logs it at its start and at its death."""
    spec = "None"
    if config.num_speculative_tokens:
        spec = f"SpeculativeConfig(method='mtp', model='sim', num_spec_tokens={config.num_speculative_tokens})"
    return (
        f"(v{config.version}) with config: model='sim', speculative_config={spec}, max_seq_len={config.max_model_len}, "
        f"pipeline_parallel_size={config.pipeline_parallel_size}, "
        f"enable_prefix_caching={config.enable_prefix_caching}, enable_chunked_prefill={config.enable_chunked_prefill}"
    )


def dump(config: EngineConfig, batch: Batch) -> list[str]:
    """Return the log lines of dump_input.py."""
    counts = {planned[0].id: planned[3] for planned in batch.planned[:8]}
    drafts = {planned[0].id: [-1] * planned[4] for planned in batch.planned[:8] if planned[4]}
    plan = (
        f"Dumping scheduler output for model execution: SchedulerOutput(num_scheduled_tokens={counts}, "
        f"total_num_scheduled_tokens={batch.tokens}, scheduled_spec_decode_tokens={drafts}, "
        f"free_encoder_mm_hashes={batch.evicted[:8]})"
    )
    return [f"Dumping input data for V1 LLM engine {config_text(config)}", plan]


def cuda_error(what: str) -> str:
    return (
        f"RuntimeError: CUDA error: {what}\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    )


def death(
    config: EngineConfig, batch: Batch, error: str, frames: Sequence[Frame], raw: Sequence[str] = ()
) -> EngineFault:
    """Return the EngineFault that the engine core reports. `error` is `Type: message`, possibly of several lines."""
    return EngineFault(error.splitlines()[0], traceback(error, frames), dump(config, batch), raw)


def encoder_miss(config: EngineConfig, batch: Batch, mm_hash: str, *, drafter: bool) -> EngineFault:
    """Return the fault of an encoder cache miss. It is an assertion up to 0.23 and a RuntimeError from 0.24, from the
    drafter or the target model.
    """
    raised = config.release >= (0, 24)
    kind = "RuntimeError" if raised else "AssertionError"
    text = 'raise RuntimeError(f"Encoder cache miss for {mm_hash}.")'
    if not raised:
        text = 'assert encoder_output is not None, f"Encoder cache miss for {mm_hash}."'
    runner = "vllm/v1/worker/gpu_model_runner.py"
    gather: Frame = (runner, 3164 if raised else 2725, "_gather_mm_embeddings", text)
    if drafter:
        frames: tuple[Frame, ...] = (
            *SAMPLE_TOKENS,
            (runner, 3756, "sample_tokens", "propose_draft_token_ids(sampler_output.sampled_token_ids)"),
            (runner, 3690, "propose_draft_token_ids", "self._draft_token_ids = self.propose_draft_token_ids("),
            (runner, 4066, "propose_draft_token_ids", "mm_embed_inputs = self._gather_mm_embeddings("),
            gather,
        )
    else:
        frames = (
            *EXECUTE_MODEL,
            (runner, 3484, "execute_model", ") = self._preprocess("),
            (runner, 2841, "_preprocess", "mm_embeds, is_mm_embed = self._gather_mm_embeddings(scheduler_output)"),
            gather,
        )
    return death(config, batch, f"{kind}: Encoder cache miss for {mm_hash}.", frames)


_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_ALLOCATE: tuple[Frame, ...] = (
    *_CORE,
    ("vllm/v1/engine/core.py", 440, "step_with_batch_queue", "scheduler_output = self.scheduler.schedule()"),
    (_SCHEDULER, 691, "schedule", "new_blocks = self.kv_cache_manager.allocate_slots("),
    ("vllm/v1/core/kv_cache_manager.py", 340, "allocate_slots", "self.coordinator.allocate_new_computed_blocks("),
    ("vllm/v1/core/single_type_kv_cache_manager.py", 182, "allocate_new_computed_blocks", "self.block_pool.touch("),
    ("vllm/v1/core/block_pool.py", 401, "touch", "self.free_block_queue.remove(block)"),
    (
        "vllm/v1/core/kv_cache_utils.py",
        306,
        "remove",
        'raise RuntimeError(f"remove() called on an invalid block: {block}")',
    ),
)


def invalid_block(config: EngineConfig, batch: Batch, block: int) -> EngineFault:
    shown = f"KVCacheBlock(block_id={block}, ref_cnt=0, _block_hash=None, prev_free_block=None, next_free_block=None)"
    return death(config, batch, f"RuntimeError: remove() called on an invalid block: {shown}", _ALLOCATE)


_RECEIVE: tuple[Frame, ...] = (
    ("vllm/v1/engine/core.py", 1340, "process_input_sockets", "request = self.preprocess_add_request(req)"),
    ("vllm/v1/engine/core.py", 745, "preprocess_add_request", "self.mm_receiver_cache.get_and_update_features("),
    ("vllm/multimodal/cache.py", 605, "get_and_update_features", "feature.data = self.get_and_update_item("),
    (
        "vllm/multimodal/cache.py",
        644,
        "get_and_update_item",
        'assert mm_item is not None, f"Expected a cached item for {mm_hash=}"',
    ),
)


def input_thread_death(missing: str) -> list[str]:
    """Return the output of an input thread killed by a desynced cache, as in eras before 0.14."""
    return ["Exception in thread Thread-1 (process_input_sockets):", *traceback(f"AssertionError: {missing}", _RECEIVE)]


def preprocessing_error(request_id: str, missing: str) -> list[str]:
    """Return the log lines of a request killed by a desynced cache. This happens from 0.14 on, where only the request
    fails.
    """
    return [
        f"Unexpected error pre-processing request {request_id}",
        *traceback(f"AssertionError: {missing}", _RECEIVE),
    ]
