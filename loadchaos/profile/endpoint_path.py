"""`endpoint` of a traffic: the name of an endpoint, or a path that is sent as it is and whose end names the endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, urlencode

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from loadchaos.core.errors import did_you_mean
from loadchaos.core.secret_patterns import secret_name
from loadchaos.profile.base import ProfilePart

if TYPE_CHECKING:
    from loadchaos.profile.profile import EndpointSpec


def _text(value: object) -> object:
    """Text of a value that YAML reads as a number or, as 2024-10-21, as a date."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | date) else value


class EndpointPath(ProfilePart):
    """A path after the target's URL, and its query."""

    path: str = Field(pattern=r"^/[!-\"$-~]*$", description="a path such as /api/v3/chat/completions")
    query: Mapping[str, Annotated[str, BeforeValidator(_text)]] = {}

    @model_validator(mode="after")
    def _without_secret(self) -> EndpointPath:
        if secret := next((n for n, _ in parse_qsl(self.sent.partition("?")[2]) if secret_name(n)), None):
            raise ValueError(f"{secret} in a query is a secret: give it by --api-key-env VAR or --header NAME=env:VAR")
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> object:
        return handler(self) if self.sent else self.path

    @property
    def sent(self) -> str:
        """The path with its query; empty for a name."""
        if not self.path.startswith("/"):
            return ""
        return self.path + (("&" if "?" in self.path else "?") + urlencode(self.query) if self.query else "")


def _spelled_out(value: object) -> object:
    if isinstance(value, str):
        return {"path": value} if value.startswith("/") else EndpointPath.model_construct(path=value)
    return value


NameOrPath = Annotated[EndpointPath, BeforeValidator(_spelled_out, json_schema_input_type=str | EndpointPath)]
BY_NAME = EndpointPath.model_construct(path="chat")


def endpoint_of(given: object, endpoints: Mapping[str, EndpointSpec]) -> object:
    """Name of the endpoint of a traffic as it is written; a path that no endpoint has, or a wrong type, stays."""
    path = given.get("path") if isinstance(given, Mapping) else given
    if not isinstance(path, str) or not path.startswith("/"):
        return path
    return name_at(path, endpoints) or path


def name_at(path: str, endpoints: Mapping[str, EndpointSpec]) -> str | None:
    """Name of the endpoint that a path ends with."""
    bare = path.partition("?")[0].rstrip("/")
    return next((name for name, e in endpoints.items() if bare.endswith(e.path.removeprefix("/v1"))), None)


def unknown_path(path: str, endpoints: Mapping[str, EndpointSpec]) -> str:
    """Message for a path that no endpoint has."""
    ends = [endpoint.path.removeprefix("/v1/") for endpoint in endpoints.values()]
    bare = path.partition("?")[0].rstrip("/")
    tails = {"/".join(bare.split("/")[-n:]) for n in (1, 2)}
    near = next((found for tail in sorted(tails) if (found := did_you_mean(tail, ends))), "")
    return f"a path that ends with one of {', '.join(ends)} was expected (got {path!r}){near}"
