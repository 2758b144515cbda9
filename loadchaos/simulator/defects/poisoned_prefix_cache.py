"""Wrong KV blocks stay in the prefix cache and spoil every later hit."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules, RequestStep, Spoil

NAME = "poisoned_prefix_cache"
ABOUT = "KV blocks of prompts that share a step are wrong and stay in the prefix cache: later hits are wrong, too"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/37076"
REMEDIES: dict[str, object] = {"max_num_seqs": 1}


def plant(rules: EngineRules) -> None:
    """Keep blocks of prompts that share a step, and spoil their hits."""
    size = rules.config.block_size
    poisoned: set[int] = set()

    def spoil(request: ScheduledRequest, step: RequestStep) -> Spoil | None:
        if request.outputs > step.new_tokens:
            return None  # the prompt was computed before
        hashes = request.original.prefix_hashes
        hits = request.cached_tokens // size
        if step.prefills > 1:
            poisoned.update(hashes[hits:])
            return "derailed"
        return "derailed" if poisoned.intersection(hashes[:hits]) else None

    rules.spoilers.append(spoil)
