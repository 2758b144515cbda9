"""LMDeploy's log of the server's start, KV capacity and end."""

from __future__ import annotations

from loadchaos.simulator.engine.limits import (
    LMDEPLOY_BLOCK_BYTES,
    LMDEPLOY_CACHE_MEMORY_BYTES,
    input_limit,
    lmdeploy_blocks,
)
from loadchaos.simulator.http.logs import LifecycleLog

_MB = 1024 * 1024


class LmdeployLifecycleLog(LifecycleLog):
    """Writer of the log of one API server. Before 0.7.3 it tells the capacity that loadchaos reads, at INFO or DEBUG."""

    def start(self) -> None:
        engine = self._options.engine
        text = (
            f"input backend=pytorch, backend_config=PytorchEngineConfig(dtype='auto', tp=1, "
            f"session_len={engine.max_model_len}, "
            f"max_batch_size={engine.max_num_seqs}, cache_max_entry_count={engine.cache_max_entry_count}, "
            f"block_size={engine.block_size}, num_cpu_blocks=0, num_gpu_blocks=0, "
            f"enable_prefix_caching={engine.enable_prefix_caching})"
        )
        self._log.line("INFO", "async_engine.py:133", text)

    def failed_start(self) -> None:
        self._log.line("ERROR", "api_server.py:1031", "Engine main loop failed.")

    def listening(self, port: int) -> None:
        if self._options.engine.release < (0, 7, 3):
            self._capacity()
        super().listening(port)

    def death(self) -> None:
        if self._options.engine.release >= (0, 12, 0):
            self._log.line("ERROR", "health.py:142", "PyTorch ZMQ engine process is not alive.")
        else:
            self._log.line("ERROR", "engine.py:928", "Engine loop failed with error: engine process ended")

    def _capacity(self) -> None:
        engine, log = self._options.engine, self._log
        blocks, size = engine.num_gpu_blocks, engine.block_size
        config = (
            f"CacheConfig(max_batches={engine.max_num_seqs}, block_size={size}, num_cpu_blocks={engine.max_num_seqs}, "
            f"num_gpu_blocks={blocks}, window_size=-1, cache_max_entry_count={engine.cache_max_entry_count}, "
            f"max_prefill_token_num={engine.max_num_batched_tokens}, enable_prefix_caching={engine.enable_prefix_caching})"
        )
        share = engine.cache_max_entry_count
        free = 5061 + LMDEPLOY_CACHE_MEMORY_BYTES // _MB
        if lmdeploy_blocks(share) != blocks:  # a number of blocks was given: log the memory that gives it
            free = round(5061 + blocks * LMDEPLOY_BLOCK_BYTES / _MB / max(share, 0.01))
        log.line("DEBUG", "model_agent.py:93", f"device<0> free gpu memory: {free} mb")
        log.line("DEBUG", "model_agent.py:94", "estimated max runtime memory: 5061 mb")
        log.line("DEBUG", "model_agent.py:130", f"block num: {blocks}")
        log.line("INFO", "cache_engine.py:34", f"build CacheEngine with config:{config}")
        text = f"Initialize cache engine with {blocks} gpu blocks and {engine.max_num_seqs} cpu blocks."
        log.line("DEBUG", "cache_engine.py:62", text)
        log.line("INFO", "engine.py:161", f"max_input_len={input_limit(engine)}")
