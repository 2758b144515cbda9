#!/usr/bin/env python
"""Run the real api_server of LMDeploy 0.6 to 0.10 on a machine without a GPU.

CLI, FastAPI app, routes, AsyncEngine, reply models and the length check of the engine's front are LMDeploy's, tried with
0.6.5 and 0.10.0. Only the engine behind it is replaced by FakeEngine. It has the blocks that 0.6 had for InternVL2-8B on a
card of 24 GB:

    VENV/bin/python run_lmdeploy_0_6.py --server-port 23333 --cache-max-entry-count 0.1   # 21 blocks of 64: 1344 tokens
    VENV/bin/python run_lmdeploy_0_6.py --server-port 23333                               # 0.8: 172 blocks

All options are those of `lmdeploy serve api_server`, except for the model, the backend and the device.
"""

import asyncio
import os
import sys

from lmdeploy.messages import EngineOutput, ResponseType
from lmdeploy.serve.async_engine import AsyncEngine
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.utils import get_logger
from lmdeploy.version import version_info

FREE_MB, RUNTIME_MB, BLOCK_BYTES = 6784, 5061, 8388608
TOKENS_PER_S = 200.0


class FakeEngine:
    """Stand-in for lmdeploy.pytorch.engine.Engine."""

    model_config = None

    def __init__(self, model_path, engine_config):
        self.engine_config = engine_config
        self.running = 0
        self.tokenizer = Tokenizer(model_path)
        free_bytes = (FREE_MB - RUNTIME_MB) * 1024 * 1024 * engine_config.cache_max_entry_count
        blocks = engine_config.num_gpu_blocks = engine_config.num_gpu_blocks or int(free_bytes / BLOCK_BYTES)
        logger = get_logger("lmdeploy")  # the lines of pytorch/engine/model_agent.py and cache_engine.py
        logger.debug(f"device<0> free gpu memory: {FREE_MB} mb")
        logger.debug(f"estimated max runtime memory: {RUNTIME_MB} mb")
        logger.debug(f"block num: {blocks}")
        logger.info(
            f"build CacheEngine with config:CacheConfig(max_batches={engine_config.max_batch_size}, "
            f"block_size={engine_config.block_size}, num_cpu_blocks=128, num_gpu_blocks={blocks}, window_size=-1, "
            f"cache_max_entry_count={engine_config.cache_max_entry_count})"
        )
        # pytorch/engine/engine.py: _get_max_session_len
        capacity = (blocks - (version_info[:3] >= (0, 9, 2))) * engine_config.block_size
        self.max_session_len = min(capacity, engine_config.session_len or capacity)

    def create_instance(self, cuda_stream_id=0):
        return FakeInstance(self)

    def start_loop(self):
        return True

    def close(self):
        pass

    def end_session(self, session_id):
        return True

    def get_schedule_metrics(self):  # since 0.9
        from lmdeploy.messages import ScheduleMetrics

        return ScheduleMetrics(active_seqs=self.running, total_blocks=self.engine_config.num_gpu_blocks)


class FakeInstance:
    """Stand-in for lmdeploy.pytorch.engine.engine_instance.EngineInstance."""

    def __init__(self, engine):
        self.engine, self.max_input_len = engine, engine.max_session_len

    async def async_cancel(self, session_id):
        return None

    async def async_end(self, session_id):
        return None

    async def async_stream_infer(self, session_id, input_ids, gen_config=None, **kwargs):
        if len(input_ids) > self.max_input_len:  # as engine_instance.py
            yield EngineOutput(ResponseType.INPUT_LENGTH_ERROR, [], 0)
            return
        wanted = gen_config.max_new_tokens if gen_config.ignore_eos else min(gen_config.max_new_tokens, 16)
        tokens = []
        self.engine.running += 1
        try:
            stop = None if wanted == gen_config.max_new_tokens else (gen_config.stop_token_ids or [None])[0]
            async for output in self.generate(len(input_ids), wanted, tokens, stop):
                yield output
        finally:
            self.engine.running -= 1
        yield EngineOutput(ResponseType.FINISH, list(tokens), len(tokens))

    async def generate(self, input_len, wanted, tokens, stop):
        count = max(1, min(wanted, self.max_input_len - input_len + 1))
        for i in range(count):
            await asyncio.sleep(1 / TOKENS_PER_S)
            ends = stop is not None and i == count - 1
            tokens.append(stop if ends else 64 + i % 26)  # some letter
            yield EngineOutput(ResponseType.SUCCESS, list(tokens), len(tokens))


def build_fake(self, model_path, backend_config=None, **kwargs):
    self.engine = FakeEngine(model_path, backend_config)
    self.backend_config = self.engine.engine_config
    self.hf_tm_cfg = None
    return self.engine


AsyncEngine._build_pytorch = build_fake

from lmdeploy.cli.entrypoint import run  # isort: skip

sys.argv = [
    *("lmdeploy", "serve", "api_server", os.path.join(sys.prefix, "models", "m_llm")),
    *("--backend", "pytorch", "--server-name", "127.0.0.1", "--model-name", "fake-model"),
    *(() if version_info[:2] >= (0, 10) else ("--chat-template", "qwen")),  # newer ones use the tokenizer's
    *("--max-batch-size", "8"),  # else it asks the GPU
    *sys.argv[1:],
]
run()
