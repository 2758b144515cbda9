"""The runner drops evicted encoder entries before its drafter reads them."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "encoder_pop_before_draft"
ABOUT = "within a step, evicted encoder entries are popped before the drafter gathers them"
UPSTREAM = "https://github.com/vllm-project/vllm/pull/39543"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0}


def plant(rules: EngineRules) -> None:
    """Drop entries before the drafter runs. It shows when an entry's last reader and its successor are planned in the
    same step.
    """
    rules.drop_before_draft = True
