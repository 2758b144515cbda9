"""A prompt rest of K+1 tokens is taken for a decode step with K drafts."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules, RequestStep, Spoil

NAME = "prompt_taken_for_decode"
ABOUT = "a prompt of which exactly K+1 tokens are not in the cache is computed as a decode; its answer is wrong"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/49918"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Take prompts with K+1 tokens to compute for decode steps."""
    drafts = rules.config.num_speculative_tokens

    def spoil(request: ScheduledRequest, _: RequestStep) -> Spoil | None:
        return "derailed" if drafts and request.prompt - request.cached_tokens == drafts + 1 else None

    rules.spoilers.append(spoil)
