"""The rotary embedding ends at position 32,768, whatever the context."""

from loadchaos.simulator.defects.near_max_oob import MESSAGE, assertions
from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.rules import EngineRules
from loadchaos.simulator.engine.types import EngineConfig

NAME = "position_overflow"
ABOUT = "an answer that grows over position 32,768 indexes past the table of rotary embeddings: device-side assert"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}

TABLE = 32_768
"""Positions in the table."""
_FRAMES: tuple[crash_text.Frame, ...] = (
    *crash_text.EXECUTE_MODEL,
    ("vllm/v1/worker/gpu_model_runner.py", 3500, "execute_model", "model_output = self._model_forward("),
    ("vllm/model_executor/models/qwen2.py", 190, "forward", "q, k = self.rotary_emb(positions, q, k)"),
    (
        "vllm/model_executor/layers/rotary_embedding/base.py",
        147,
        "forward_cuda",
        "ops.rotary_embedding(positions, query, key, self.head_size, cos_sin_cache, self.is_neox_style)",
    ),
)


def plant(rules: EngineRules) -> None:
    rules.before_step.append(check)


def check(batch: Batch, config: EngineConfig) -> None:
    """Raise EngineFault when an answer grows over the end of the table. A prompt that is longer takes another table,
    which is large enough.
    """
    for request, epoch, start, count, _ in batch.planned:
        decodes = start >= request.target and request.epoch == epoch
        if decodes and start < TABLE <= start + count:
            raise crash_text.death(config, batch, MESSAGE, _FRAMES, assertions(start + count - TABLE + 1))
