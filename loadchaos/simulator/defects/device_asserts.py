"""Defects that look up a position behind the end of a table on the device."""

from __future__ import annotations

from loadchaos.simulator.defects.defect import Defect
from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.types import EngineConfig

_MARGIN = 1000
"""Tokens by which the look-up of a prompt's last chunk is padded."""
_ROTARY_POSITIONS = 32_768
_BLOCK_THREADS = 128
_MOST_LINES = 256  # a real death prints thousands; these are enough to recognise and to fold
_LAYERS = "vllm/model_executor"
_MESSAGE = crash_text.cuda_error("device-side assert triggered")
_FORWARD: tuple[crash_text.Frame, ...] = (
    *crash_text.EXECUTE_MODEL,
    ("vllm/v1/worker/gpu_model_runner.py", 3500, "execute_model", "model_output = self._model_forward("),
)
_EMBEDDING: tuple[crash_text.Frame, ...] = (
    *_FORWARD,
    (f"{_LAYERS}/models/llama4.py", 430, "forward", "hidden_states = self.get_input_embeddings(input_ids)"),
    (f"{_LAYERS}/layers/vocab_parallel_embedding.py", 408, "forward", "output_parallel = self.quant_method.embedding("),
    (f"{_LAYERS}/layers/vocab_parallel_embedding.py", 47, "embedding", "return F.embedding(input_, layer.weight)"),
)
_ROTARY: tuple[crash_text.Frame, ...] = (
    *_FORWARD,
    (f"{_LAYERS}/models/qwen2.py", 190, "forward", "q, k = self.rotary_emb(positions, q, k)"),
    (
        f"{_LAYERS}/layers/rotary_embedding/base.py",
        147,
        "forward_cuda",
        "ops.rotary_embedding(positions, query, key, self.head_size, cos_sin_cache, self.is_neox_style)",
    ),
)


def _check_embeddings(batch: Batch, config: EngineConfig) -> None:
    for request, epoch, start, count, _ in batch.planned:
        beyond = request.prompt + _MARGIN - config.max_model_len
        last_chunk = start < request.prompt <= start + count
        if last_chunk and beyond > 0 and request.epoch == epoch:
            raise crash_text.death(config, batch, _MESSAGE, _EMBEDDING, _assertions(beyond))


def _check_positions(batch: Batch, config: EngineConfig) -> None:
    for request, epoch, start, count, _ in batch.planned:
        end = start + count
        # a longer prompt takes another table, which is large enough
        if start >= request.target and request.epoch == epoch and start < _ROTARY_POSITIONS <= end:
            raise crash_text.death(config, batch, _MESSAGE, _ROTARY, _assertions(end - _ROTARY_POSITIONS + 1))


def _assertions(threads: int) -> list[str]:
    return [
        "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:94: operator(): "
        f"block: [{n // _BLOCK_THREADS},0,0], thread: [{n % _BLOCK_THREADS},0,0] "
        'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
        for n in range(min(threads, _MOST_LINES))
    ]


DEFECTS = (
    Defect(
        "near_max_oob",
        "a prompt within 1000 tokens of max_model_len indexes past the embedding table: device-side assert",
        plant=lambda rules: rules.before_step.append(_check_embeddings),
        upstream="https://github.com/vllm-project/vllm/issues/16157",
    ),
    Defect(
        "position_overflow",
        "an answer that grows over position 32,768 indexes past the table of rotary embeddings: device-side assert",
        plant=lambda rules: rules.before_step.append(_check_positions),
    ),
)
