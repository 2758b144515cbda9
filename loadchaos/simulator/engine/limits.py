"""Longest input of an engine, and the KV blocks its memory flags give."""

from __future__ import annotations

from dataclasses import replace

from loadchaos.simulator.engine.types import EngineConfig

# The capture behind kv_capacity_as_500: InternVL2-8B in pytorch, 8 MiB a block of 64 tokens, and this much memory left
# for the cache; 0.1 of it makes the 21 blocks seen there.
LMDEPLOY_CACHE_MEMORY_BYTES = (6784 - 5061) * 1024 * 1024
LMDEPLOY_BLOCK_BYTES = 8388608


def lmdeploy_blocks(cache_max_entry_count: float) -> int:
    """Return the GPU blocks of LMDeploy's pytorch engine. int(free memory after its own needs x share / block size)."""
    return int(LMDEPLOY_CACHE_MEMORY_BYTES * cache_max_entry_count / LMDEPLOY_BLOCK_BYTES)


def with_kv_blocks(config: EngineConfig) -> EngineConfig:
    """Return the config with its number of KV blocks. LMDeploy's `num_gpu_blocks` 0 means "from cache_max_entry_count"."""
    if config.dialect == "lmdeploy" and config.num_gpu_blocks == 0:
        return replace(config, num_gpu_blocks=lmdeploy_blocks(config.cache_max_entry_count))
    return config


def input_limit(config: EngineConfig) -> int:
    """Return the longest prompt in tokens; one token more is refused. vLLM: max_model_len - 1, since at least one token
    is to be generated. LMDeploy: `_get_max_session_len` of its pytorch engine, which changed with 0.9.2, 0.10 and 0.12
    (blocks x size; less a block; of that the smaller; less a reserved block as well).
    """
    size, longest = config.block_size, config.max_model_len
    if config.dialect != "lmdeploy":
        return longest - 1
    capacity = with_kv_blocks(config).num_gpu_blocks * size
    if config.release >= (0, 12):
        return min(capacity - 2 * size, longest)
    if config.release >= (0, 10):
        return min(capacity - size, longest)
    if config.release >= (0, 9, 2):
        return min(capacity, longest) - size
    return min(capacity, longest)
