"""A prompt chunk ends inside an image: more rows than placeholders. The encoder's output stays whole."""

from loadchaos.simulator.defects.defect import Defect
from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.types import EngineConfig

_MODEL = "vllm/model_executor/models"
_FRAMES: tuple[crash_text.Frame, ...] = (
    ("vllm/v1/engine/core.py", 400, "run_engine_core", "engine_core.run_busy_loop()"),
    ("vllm/v1/engine/core.py", 425, "run_busy_loop", "outputs = step_fn()"),
    ("vllm/v1/engine/core.py", 200, "step", "output = self.model_executor.execute_model(scheduler_output)"),
    (
        "vllm/v1/worker/gpu_worker.py",
        242,
        "execute_model",
        "output = self.model_runner.execute_model(scheduler_output)",
    ),
    ("vllm/v1/worker/gpu_model_runner.py", 999, "execute_model", "inputs_embeds = self.model.get_input_embeddings("),
    (f"{_MODEL}/internvl.py", 889, "get_input_embeddings", "inputs_embeds = merge_multimodal_embeddings("),
    (f"{_MODEL}/utils.py", 455, "merge_multimodal_embeddings", "return _merge_multimodal_embeddings("),
    (f"{_MODEL}/utils.py", 397, "_merge_multimodal_embeddings", "raise ValueError("),
)


def _check(batch: Batch, config: EngineConfig) -> None:
    rows: list[int] = []
    placeholders = 0
    for request, epoch, start, count, _ in batch.planned:
        if not request.items or request.epoch != epoch or start >= request.target:
            continue
        for item in request.items:
            first, last = max(item.offset, start), item.offset + item.tokens
            if first < start + count and last > start:
                rows.append(last - first)
                placeholders += min(last, start + count) - first
    if sum(rows) != placeholders:
        expression = " + ".join(f"1 x {n}" for n in rows)
        message = f"Attempted to assign {expression} = {sum(rows)} multimodal tokens to {placeholders} placeholders"
        raise crash_text.death(config, batch, f"ValueError: {message}", _FRAMES)


DEFECT = Defect(
    "mm_chunk_split",
    "the token budget cuts an image, its encoder output stays whole: multimodal tokens do not fit the placeholders",
    plant=lambda rules: rules.before_step.append(_check),
    remedies={"disable_chunked_mm_input": True},
    upstream="https://github.com/vllm-project/vllm/issues/15764",
)
