"""A client that leaves takes its last block of the KV cache with it: nobody gives that block back."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "kv_leak_on_abort"
ABOUT = "the last KV block of a running request that is aborted is never given back; no log line says so"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}


def plant(rules: EngineRules) -> None:
    """One block an abort: kill nothing, and after enough clients that left the cache is full of what nobody needs."""
    rules.blocks_leaked_on_abort = 1
