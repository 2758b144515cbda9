"""An abort frees blocks of a prefix that another request still uses."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "shared_block_freed"
ABOUT = "an abort frees the blocks of a shared prefix while another request holds them; the next hit on one kills the engine"
UPSTREAM = ""
REMEDIES: dict[str, object] = {"enable_prefix_caching": False}


def plant(rules: EngineRules) -> None:
    """Free shared blocks on abort. It takes an abort of a running request whose prefix another running request shares,
    and a later hit on that prefix.
    """
    rules.frees_shared_blocks_on_abort = True
