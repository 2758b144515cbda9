"""Encoder entries are freed by a count that includes drafts in flight. When the drafts are rejected, the entry is gone."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import REDO_AFTER_REJECTIONS, EngineRules

NAME = "encoder_free_on_speculated"
ABOUT = "encoder entries are freed by a count that includes drafts in flight; after a rejection the drafter wants them"
UPSTREAM = "https://github.com/vllm-project/vllm/pull/39544"
REMEDIES: dict[str, object] = {"async_scheduling": False, "num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Count drafts in flight as computed. Without async scheduling no step is in flight while the next is planned, so
    the two counts are the same.
    """

    def read_position(request: ScheduledRequest) -> int:
        if request.computed < request.target:
            return request.computed
        if request.computed >= request.target + REDO_AFTER_REJECTIONS:
            return request.target
        return request.chunk_start

    rules.read_position = read_position
