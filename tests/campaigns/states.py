"""Deciders of searches in tests, and the file in which they save their decisions."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from loadchaos.campaigns.campaign import Campaign, SavedState
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import SCHEMA, Decider


def decider_of(
    attempt: Callable[[Reduction], Awaitable[bool | None]], file: Path | None = None, budget_s: float = 60.0
) -> Decider:
    """A decider by this attempt, which saves in a file or nowhere."""
    state = None if file is None else SavedState(Campaign(file.parent, lambda _: None), file.name, SCHEMA, {})
    return Decider(attempt, state, lambda _: None, budget_s)
