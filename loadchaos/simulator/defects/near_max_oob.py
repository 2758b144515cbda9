"""The embedding look-up of a prompt near the maximum is out of bounds. The last chunk's look-up is padded past the
table.
"""

from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.rules import EngineRules
from loadchaos.simulator.engine.types import EngineConfig

NAME = "near_max_oob"
ABOUT = "a prompt within 1000 tokens of max_model_len indexes past the embedding table: device-side assert"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/16157"
REMEDIES: dict[str, object] = {}

MARGIN = 1000
"""Tokens by which the look-up of a prompt's last chunk is padded."""
_BLOCK_THREADS = 128
_MOST_LINES = 256  # a real death prints thousands; these are enough to recognise and to fold
_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_LAYERS = "vllm/model_executor"
MESSAGE = (
    "RuntimeError: CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)
_FRAMES: tuple[crash_text.Frame, ...] = (
    *crash_text.EXECUTE_MODEL,
    (_RUNNER, 3500, "execute_model", "model_output = self._model_forward("),
    (f"{_LAYERS}/models/llama4.py", 430, "forward", "hidden_states = self.get_input_embeddings(input_ids)"),
    (f"{_LAYERS}/layers/vocab_parallel_embedding.py", 408, "forward", "output_parallel = self.quant_method.embedding("),
    (f"{_LAYERS}/layers/vocab_parallel_embedding.py", 47, "embedding", "return F.embedding(input_, layer.weight)"),
)


def plant(rules: EngineRules) -> None:
    rules.before_step.append(check)


def check(batch: Batch, config: EngineConfig) -> None:
    for request, epoch, start, count, _ in batch.planned:
        beyond = request.prompt + MARGIN - config.max_model_len
        last_chunk = start < request.prompt <= start + count
        if last_chunk and beyond > 0 and request.epoch == epoch:
            raise crash_text.death(config, batch, MESSAGE, _FRAMES, assertions(beyond))


def assertions(threads: int) -> list[str]:
    return [
        "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:94: operator(): "
        f"block: [{n // _BLOCK_THREADS},0,0], thread: [{n % _BLOCK_THREADS},0,0] "
        'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
        for n in range(min(threads, _MOST_LINES))
    ]
