"""`traffic` of a profile: kinds of request and their clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from loadchaos.core.model import DEFAULT_OUTPUT_TOKENS, Outcome
from loadchaos.core.unit_fields import IntRange
from loadchaos.core.units import Range
from loadchaos.profile.base import ProfilePart, spelled_out
from loadchaos.profile.endpoint_path import BY_NAME, NameOrPath
from loadchaos.profile.request_options import BehaviourOptions, PayloadOptions, SessionContent


class OutputOptions(ProfilePart):
    """Length of an answer in tokens. `max` is a limit. `exact` makes the server generate that many tokens, if it
    supports this.
    """

    max: IntRange | None = None
    exact: IntRange | None = None

    @model_validator(mode="after")
    def _one(self) -> OutputOptions:
        if (self.max is None) == (self.exact is None):
            raise ValueError("either max or exact was expected, e.g. {max: 128}")
        if self.bounds.low < 1:
            raise ValueError(f"an output length of at least 1 was expected (got {self.bounds.low})")
        return self

    @property
    def bounds(self) -> Range:
        return self.exact or self.max or Range(1, 1)


@dataclass(frozen=True)
class BehaviourShare:
    """A client behaviour, its options, and its share of the traffic (0 to 1)."""

    name: str
    share: float
    options: BehaviourOptions


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Traffic(ProfilePart):
    """One kind of request and its weight, as in Locust. The registry's models check `payload` and `behaviour`."""

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", description="a name of letters, digits, _ and - that begins with a letter"
    )
    weight: float = Field(default=1.0, ge=0)
    payload: dict[str, dict[str, object]] = Field(min_length=1)
    output: OutputOptions = OutputOptions(max=Range(DEFAULT_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS))
    behaviour: Annotated[dict[str, dict[str, object]], BeforeValidator(spelled_out)] = Field(default={})
    sent_to: NameOrPath = Field(
        default=BY_NAME,
        alias="endpoint",
        description="name of an endpoint, e.g. completions, or its path; docs/traffic.md lists them",
    )
    stream: bool = True
    expect: Annotated[tuple[Outcome, ...], BeforeValidator(_one_or_more)] = ("ok",)

    _options: dict[str, PayloadOptions] = PrivateAttr(default_factory=dict)
    _behaviour_shares: list[BehaviourShare] = PrivateAttr(default_factory=list)
    _plain: BehaviourOptions | None = PrivateAttr(default=None)
    _endpoint_streams: bool = PrivateAttr(default=True)
    _generates: bool = PrivateAttr(default=True)
    _endpoint: str = PrivateAttr(default="chat")

    @property
    def payload_options(self) -> Mapping[str, PayloadOptions]:
        return self._options

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @property
    def session(self) -> SessionContent | None:
        """Average content of a session; None for traffic of single requests."""
        found = (options.per_session(self._options) for options in self._options.values())
        return next((session for session in found if session is not None), None)

    @property
    def behaviours(self) -> list[BehaviourShare]:
        return self._behaviour_shares

    @property
    def prompts_differ(self) -> bool:
        """True if no two prompts have equal first words. False for behaviours that may send a request again."""
        return not self._behaviour_shares and all(options.prompts_differ for options in self._options.values())

    @property
    def streams(self) -> bool:
        return self.stream and self._endpoint_streams

    @property
    def generates(self) -> bool:
        """True if the endpoint's answers have a length that is asked for."""
        return self._generates

    @property
    def plain_options(self) -> BehaviourOptions | None:
        """Options of the behaviour `plain`, which all other requests have."""
        return self._plain
