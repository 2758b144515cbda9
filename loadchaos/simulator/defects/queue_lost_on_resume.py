"""Requests that wait when the engine resumes or wakes are forgotten."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "queue_lost_on_resume"
ABOUT = "requests that wait when the engine resumes or wakes up are never served; no log line says so"
UPSTREAM = ""
REMEDIES: dict[str, object] = {}


def plant(rules: EngineRules) -> None:
    """Clear the queue on resume. Without a pause under load no request is lost."""
    rules.forgets_queue_on_resume = True
