"""Base model of every part of a profile."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ProfilePart(BaseModel):
    """Immutable part of a profile, in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
