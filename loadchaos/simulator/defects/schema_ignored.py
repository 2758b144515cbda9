"""A grammar is not applied to the token behind accepted drafts."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules, RequestStep, Spoil

NAME = "schema_ignored"
ABOUT = "beside other requests, an answer with a schema, regex or choices leaves its grammar behind accepted drafts"
UPSTREAM = "https://github.com/vllm-project/vllm/pull/44993"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Forget the grammar of a guided answer where drafts are accepted. Alone in the batch such a request keeps its
    grammar.
    """
    rules.spoilers.append(_spoil)


def _spoil(request: ScheduledRequest, step: RequestStep) -> Spoil | None:
    return "derailed" if request.original.guided and step.drafts > step.rejected and step.running > 1 else None
