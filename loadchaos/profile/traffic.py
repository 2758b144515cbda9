"""`traffic` of a profile: kinds of request, with what each sends, how long its answers are and how its clients behave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, model_validator

from loadchaos.core.model import Outcome
from loadchaos.core.units import IntRange, Range
from loadchaos.profile.base import Part


class OutputOptions(Part):
    """`max` is a cap; `exact` makes the server go on to that length, where it has the means."""

    max: IntRange | None = None
    exact: IntRange | None = None

    @model_validator(mode="after")
    def _one(self) -> OutputOptions:
        if (self.max is None) == (self.exact is None):
            raise ValueError("either max or exact was expected, e.g. {max: 128}")
        low = (self.max or self.exact or Range(1, 1)).low
        if low < 1:
            raise ValueError(f"an answer has at least 1 token (got {low})")
        return self


@dataclass(frozen=True)
class Chosen:
    """A behaviour of the shelf with the share of the traffic that behaves so, and its options (a shelf's model)."""

    name: str
    share: float
    options: BaseModel


def _behaviours(value: object) -> object:
    """`slow_read` is `{slow_read: {}}`; options may be left out."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, Mapping):
        return {name: {} if options is None else options for name, options in value.items()}
    return value


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Traffic(Part):
    """One kind of request with its weight (as in Locust). `payload` and `behaviour` are judged by their shelves."""

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", description="a name of letters, digits, _ and - that begins with a letter"
    )
    weight: float = Field(default=1.0, ge=0)
    payload: dict[str, dict[str, Any]] = Field(min_length=1)
    output: OutputOptions = OutputOptions(max=Range(128, 128))
    behaviour: Annotated[dict[str, dict[str, Any]], BeforeValidator(_behaviours)] = Field(default={})
    stream: bool = True
    expect: Annotated[tuple[Outcome, ...], BeforeValidator(_one_or_more)] = ("ok",)

    _options: dict[str, BaseModel] = PrivateAttr(default_factory=dict)
    _chosen: list[Chosen] = PrivateAttr(default_factory=list)
    _plain: BaseModel | None = PrivateAttr(default=None)

    @property
    def payload_options(self) -> Mapping[str, BaseModel]:
        """Each payload's options as its shelf's model."""
        return self._options

    @property
    def behaviours(self) -> list[Chosen]:
        """What part of the requests behaves how; the rest is plain."""
        return self._chosen

    @property
    def plain_options(self) -> BaseModel | None:
        """The options of the behaviour `plain`, which the rest gets."""
        return self._plain
