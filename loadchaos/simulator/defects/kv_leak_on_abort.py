"""An aborted request never gives back its last KV block."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "kv_leak_on_abort"
ABOUT = "the last KV block of a running request that is aborted is never given back; no log line says so"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}


def plant(rules: EngineRules) -> None:
    """Leak one block per abort. It kills nothing; after enough aborts the KV cache is full."""
    rules.blocks_leaked_on_abort = 1
