"""A prompt is computed with the adapter of another one in its step."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "wrong_adapter"
ABOUT = "of prompts with different LoRA adapters in one step, the later ones are computed with the adapter of the first"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/38606"
REMEDIES: dict[str, object] = {"max_loras": 1}


def plant(rules: EngineRules) -> None:
    """Use the adapter of the step's first prompt for requests with an adapter. It takes two adapters, or an adapter and
    the base model, in prefill in one step.
    """
    rules.adapter_of_first_prompt = True
