"""A stream repeats a token beside another request's prompt."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules, RequestStep, Spoil

NAME = "repeated_token"
ABOUT = "a step that rejects a draft beside another request's prompt gives a token of the answer twice"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/39273"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Repeat a token where drafts are rejected beside a prompt."""
    rules.spoilers.append(_spoil)


def _spoil(_: ScheduledRequest, step: RequestStep) -> Spoil | None:
    return "repeated" if step.prefills and step.rejected and step.running > 1 else None
