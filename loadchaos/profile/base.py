"""What every part of a profile is: a model whose unknown keys are mistakes and whose values never change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Base of every part: unknown keys are mistakes, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
