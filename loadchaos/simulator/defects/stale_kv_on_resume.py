"""A preempted request resumes on other requests' KV blocks."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "stale_kv_on_resume"
ABOUT = "a request that was preempted reads other requests' KV blocks when it resumes; its answer goes wrong, silently"
UPSTREAM = ""
REMEDIES: dict[str, object] = {"num_gpu_blocks": 8192}


def plant(rules: EngineRules) -> None:
    """Use stale KV blocks after a preemption. Without a preemption every answer is right."""
    rules.stale_after_preemption = True
