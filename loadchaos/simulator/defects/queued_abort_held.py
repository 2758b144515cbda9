"""A request that is aborted while it waits stays in the queue."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "queued_abort_held"
ABOUT = "a request that is aborted before it was scheduled stays in the queue for ever; no log line says so"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}


def plant(rules: EngineRules) -> None:
    """Keep requests that are aborted in the queue. It takes a queue: an abort of a running request is handled
    correctly.
    """
    rules.holds_queued_aborts = True
