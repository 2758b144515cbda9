"""Base model of every part of a profile."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class ProfilePart(BaseModel):
    """Immutable part of a profile, in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


def spelled_out(value: object) -> object:
    """Accept `wait`, and `{wait: null}`, for `{wait: {}}`."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, Mapping):
        return {name: {} if options is None else options for name, options in value.items()}
    return value
