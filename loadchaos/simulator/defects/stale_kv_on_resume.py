"""A preempted request comes back to KV blocks that were given to others meanwhile: it goes on with their context."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "stale_kv_on_resume"
ABOUT = "a request that was preempted reads other requests' KV blocks when it resumes; its answer goes wrong, silently"
UPSTREAM = ""
REMEDIES: dict[str, object] = {"num_gpu_blocks": 8192}


def plant(rules: EngineRules) -> None:
    """It takes pressure on the KV cache: without a preemption every answer is right."""
    rules.stale_after_preemption = True
