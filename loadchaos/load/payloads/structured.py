"""Structured output: answers that must follow a JSON schema.

It sets `response_format`, and exercises grammar compilation and guided decoding under load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from loadchaos.core.model import Facts, Step
from loadchaos.core.rng import Rng, hash64
from loadchaos.load.payloads.base import Draft

ORDER = 31
Kind = Literal["small", "deep", "wide", "choice"]
_KINDS: tuple[Kind, ...] = get_args(Kind)


def _check_schema(value: object) -> object:
    if value in _KINDS or isinstance(value, dict):
        return value
    raise ValueError(f"{', '.join(_KINDS)} or a JSON schema of your own was expected (got {value!r})")


class Options(BaseModel):
    """`json_schema`: `small`, `deep`, `wide`, `choice`, or your own schema.

    `deep` nests objects, `wide` has many fields, `choice` is an enumeration. `variants` different schemas of the kind make
    the server's cache of compiled grammars miss.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    json_schema: Annotated[Kind | dict[str, Any], BeforeValidator(_check_schema)] = "small"
    variants: int = Field(default=1, gt=0)
    strict: bool = True

    def describe(self) -> str:
        """Describe the payload, for `explain`."""
        kind = self.json_schema if isinstance(self.json_schema, str) else "given"
        many = f" ({self.variants} different schemas)" if self.variants > 1 else ""
        return f"answers in a {kind} JSON schema{many}"


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: Rng) -> None:  # noqa: ARG001 - the server is not asked
    """Ask for an answer that follows the schema."""
    assert isinstance(options, Options)
    variant = rng.bits() % options.variants
    kind = options.json_schema
    schema = dict(kind) if isinstance(kind, Mapping) else _SCHEMAS[kind](variant)
    name = f"answer_{variant}"
    draft.extra["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": name, "schema": schema, "strict": options.strict},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _small(variant: int) -> dict[str, Any]:
    return _object({f"name_{variant}": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}})


def _deep(variant: int) -> dict[str, Any]:
    inner = _small(variant)
    for level in range(6):
        inner = _object(
            {f"level_{level}": inner, "items": {"type": "array", "items": {"type": "number"}, "maxItems": 3}}
        )
    return inner


def _wide(variant: int) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [{"type": "boolean"}, {"type": "integer"}, {"enum": ["a", "b"]}, {"type": "null"}]
    return _object({f"field_{variant}_{i}": kinds[hash64(variant, i) % len(kinds)] for i in range(40)})


def _choice(variant: int) -> dict[str, Any]:
    return {"enum": [f"choice {variant} {i}" for i in range(100)]}


_SCHEMAS = {"small": _small, "deep": _deep, "wide": _wide, "choice": _choice}
