"""A tool parser ends a call at its end mark, also inside an argument."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "call_cut_at_mark"
ABOUT = "the arguments of a tool call end before the text </tool_call> in them"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/44060"
REMEDIES: dict[str, object] = {}


def plant(rules: EngineRules) -> None:
    """End each call at the mark. So does the hermes parser of vLLM 0.32.0 in streams."""
    rules.ends_calls_at = "</tool_call>"
