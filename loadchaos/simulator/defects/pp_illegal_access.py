"""A burst into an idle pipeline causes an illegal memory access. Stages send metadata on a stream of its own; with cold
buffers it races the hidden states.
"""

from loadchaos.simulator.defects.defect import Defect
from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.types import EngineConfig

_ENOUGH_MEMORY = 0.4
"""From this share on the allocator never reuses a send buffer within one iteration."""
_PROMPT_TOKENS = 2000
"""Hidden states of fewer prompt tokens are sent before the metadata is due."""
_REQUESTS = 64
"""Metadata of fewer requests arrives before the hidden states do."""
_COLD_STEPS_A_STAGE = 8
"""After so many steps since it was idle a stage's allocator has a buffer of its own for each size.

A burst comes through HTTP over some steps, not in one: this is how long it may take and still be a burst.
"""

_FRAMES: tuple[crash_text.Frame, ...] = (
    ("vllm/v1/executor/multiproc_executor.py", 820, "worker_busy_loop", "output = func(*args, **kwargs)"),
    ("vllm/v1/worker/gpu_worker.py", 602, "execute_model", "get_pp_group().send_tensor_dict(output.tensors)"),
    ("vllm/distributed/parallel_state.py", 870, "send_tensor_dict", "self.send_tensor_and_shape(tensor, dst)"),
    ("vllm/distributed/parallel_state.py", 912, "send_tensor_and_shape", "torch.cuda.synchronize()"),
    ("torch/cuda/__init__.py", 1083, "synchronize", "return torch._C._cuda_synchronize()"),
)


def _check(batch: Batch, config: EngineConfig) -> None:
    if config.pipeline_parallel_size < 2 or config.gpu_memory_utilization >= _ENOUGH_MEMORY:
        return
    if config.cuda_launch_blocking:
        return  # nothing is asynchronous, so nothing races
    cold = batch.burst_steps <= _COLD_STEPS_A_STAGE * config.pipeline_parallel_size
    many = batch.burst_tokens >= _PROMPT_TOKENS and batch.burst_requests >= _REQUESTS
    if cold and many and batch.prompt_tokens:
        raise crash_text.death(
            config, batch, crash_text.cuda_error("an illegal memory access was encountered"), _FRAMES
        )


DEFECT = Defect(
    "pp_illegal_access",
    "a burst into an idle pipeline at low memory reads a buffer already reused: illegal memory access",
    plant=lambda rules: rules.before_step.append(_check),
    remedies={"gpu_memory_utilization": 0.4, "cuda_launch_blocking": True, "pipeline_parallel_size": 1},
)  # no upstream: seen in a modified fork only
