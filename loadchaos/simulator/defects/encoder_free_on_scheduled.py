"""Encoder entries are freed when their tokens are scheduled. The GPU has not run them yet."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules

NAME = "encoder_free_on_scheduled"
ABOUT = "encoder entries are freed when the tokens that need them are scheduled, before the drafter has fetched them"
UPSTREAM = "https://github.com/vllm-project/vllm/pull/38907"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Free entries again once the chunk that reads them is planned. The healthy engine waits until that chunk has run."""

    def read_position_after_planning(request: ScheduledRequest) -> int:
        return min(request.computed, request.target)

    rules.read_position_after_planning = read_position_after_planning
