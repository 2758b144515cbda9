"""A stream loses a token beside another request's prompt."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules, RequestStep, Spoil

NAME = "lost_token"
ABOUT = "a step that accepts a draft beside another request's prompt loses a token of the answer; usage counts it"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/30099"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Lose a token where drafts are accepted beside a prompt."""
    rules.spoilers.append(_spoil)


def _spoil(_: ScheduledRequest, step: RequestStep) -> Spoil | None:
    return "lost" if step.prefills and step.drafts > step.rejected and step.running > 1 else None
