"""Admission ends for good once preempted requests fill the batch."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "admission_stops"
ABOUT = (
    "when running and preempted requests together reach max_num_seqs, no request is admitted any more; /health says 200"
)
UPSTREAM = "https://github.com/vllm-project/vllm/issues/53130"
REMEDIES: dict[str, object] = {"num_gpu_blocks": 8192}


def plant(rules: EngineRules) -> None:
    """Count preempted requests as running, and never look again. Upstream counts requests that are held for another
    reason. Without a preemption every request is admitted.
    """
    rules.stops_admitting_when_full = True
