"""LMDeploy 0.6: an input longer than the KV cache is a 500. A healthy server refuses it and names the cause."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "kv_capacity_as_500"
ABOUT = "an input longer than the KV cache surfaces as HTTP 500 through a validation error that hides the cause"
UPSTREAM = ""  # fixed with 0.7 without an issue we know of
REMEDIES: dict[str, object] = {"cache_max_entry_count": 0.8}


def plant(rules: EngineRules) -> None:
    """Answer a 500. The engine's limit is the same (limits.py): only the API server reads this rule."""
    rules.kv_error_as_500 = True
