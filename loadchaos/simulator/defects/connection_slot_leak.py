"""A connection that closes in the middle of a request keeps its place."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "connection_slot_leak"
ABOUT = "clients who leave amid a request keep their places in the HTTP layer; without a place no client is served"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}

PLACES = 20


def plant(rules: EngineRules) -> None:
    """Leak a place for each unfinished request. Without half-open clients every connection is answered."""
    rules.most_unfinished_connections = PLACES
