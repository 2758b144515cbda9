"""Encoder entries are freed as soon as the tokens that need them are scheduled, before the GPU has run them."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules

NAME = "encoder_free_on_scheduled"
ABOUT = "encoder entries are freed when the tokens that need them are scheduled, before the drafter has fetched them"
UPSTREAM = "https://github.com/vllm-project/vllm/pull/38907"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Free once more when the prompt chunk that reads an image was counted, as if it had already run."""

    def read_position_after_planning(request: ScheduledRequest) -> int:
        return min(request.computed, request.target)

    rules.read_position_after_planning = read_position_after_planning
