"""Two requests that start in one step get each other's tokens."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "streams_swapped"
ABOUT = "two requests whose first tokens are sampled in one step get each other's answers; no log line says so"
UPSTREAM = "https://github.com/ggml-org/llama.cpp/issues/28286"
REMEDIES: dict[str, object] = {"max_num_seqs": 1}


def plant(rules: EngineRules) -> None:
    """Swap rows where two prompts end in one step."""
    rules.swap_joint_starts = True
