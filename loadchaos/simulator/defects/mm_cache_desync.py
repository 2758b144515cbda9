"""The two sides of the processor cache diverge. They age differently and are reset out of order, so one expects an item
that the other lost.
"""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "mm_cache_desync"
ABOUT = "the engine's side of the processor cache diverges from the API server's under churn or a reset in flight"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/33865"
REMEDIES: dict[str, object] = {"mm_processor_cache_items": 0}


def plant(rules: EngineRules) -> None:
    """Let a hit not refresh an entry, and delay a reset to the next step. The first needs more different images than
    the cache holds, and old images used again. The second needs images that arrive between a reset and the next step
    and are used again later.
    """
    rules.refresh_on_hit = False
    rules.reset_in_order = False
