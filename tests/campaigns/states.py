"""Saved decisions of searches in a file of a test."""

from __future__ import annotations

from pathlib import Path

from loadchaos.campaigns.campaign import Campaign, SavedState
from loadchaos.campaigns.minimise.decider import SCHEMA


def state_in(file: Path) -> SavedState:
    return SavedState(Campaign(file.parent, lambda _: None), file.name, SCHEMA, {})
