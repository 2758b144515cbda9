"""Structured output: answers that follow a JSON schema, regex or choices.

It exercises grammar compilation and guided decoding under load. Each answer is checked against the same rule
(wire/contract.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, get_args

import orjson
from pydantic import BeforeValidator, Field, field_validator, model_validator

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng, hash64
from loadchaos.load.payloads.base import Payload
from loadchaos.load.wire.contract import AnswerContract, Schema, SchemaRule, compiled
from loadchaos.load.wire.request import Request
from loadchaos.server.dialects import DIALECTS, UNKNOWN

Kind = Literal["small", "deep", "wide", "choice"]
_KINDS: tuple[Kind, ...] = get_args(Kind)


def _check_schema(value: object) -> object:
    if isinstance(value, dict):
        SchemaRule(value)
        return value
    if value in _KINDS:
        return value
    raise ValueError(f"{', '.join(_KINDS)} or a JSON schema of your own was expected (got {value!r})")


class Options(Payload):
    """`json_schema`: `small`, `deep`, `wide`, `choice`, or your own schema.

    `deep` nests objects, `wide` has many fields, `choice` is an enumeration. `variants` different schemas of the kind make
    the server's cache of compiled grammars miss. In its place, `regex` asks for a text that matches, `choices` for one of
    some texts. Answers are checked against the rule, unless `strict` is false or their finish_reason is length.
    """

    ORDER: ClassVar[int] = 31
    json_schema: Annotated[Kind | Schema, BeforeValidator(_check_schema)] = "small"
    regex: str | None = Field(default=None, min_length=1)
    choices: tuple[str, ...] = ()
    variants: int = Field(default=1, gt=0)
    strict: bool = True

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            compiled(value)
        return value

    @model_validator(mode="after")
    def _one_rule(self) -> Options:
        given = [name for name in ("json_schema", "regex", "choices") if name in self.model_fields_set]
        if len(given) > 1:
            raise ValueError(f"one of json_schema, regex and choices was expected (got {' and '.join(given)})")
        return self

    def describe(self) -> str:
        if self.regex is not None:
            return f"answers that match the regex {self.regex}"
        if self.choices:
            return f"answers that are one of {len(self.choices)} choices"
        kind = self.json_schema if isinstance(self.json_schema, str) else "given"
        many = f" ({self.variants} different schemas)" if self.variants > 1 else ""
        return f"answers in a {kind} JSON schema{many}"

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Ask for an answer that follows the rule, and hold it to the rule."""
        variant = rng.bits() % self.variants
        if self.regex is not None or self.choices:
            regex = self.regex or "|".join(re.escape(choice) for choice in self.choices)
            field = DIALECTS.get(facts.dialect, UNKNOWN).at(facts.version).regex_field
            if field:
                request.extra |= _regex_fields(field, regex)
                request.contract = _regex_contract(regex, self.choices) if self.strict else None
                return
            # A server that takes no regex gets the schema of a JSON string.
            text: Schema = {"type": "string", "pattern": f"^(?:{regex})$"}
            schema: Schema = {"enum": list(self.choices)} if self.choices else text
        else:
            kind = self.json_schema
            schema = dict(kind) if isinstance(kind, Mapping) else _SCHEMAS[kind](variant)
        request.extra["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": f"answer_{variant}", "schema": schema, "strict": self.strict},
        }
        request.contract = schema_contract(orjson.dumps(schema)) if self.strict else None


def _regex_fields(field: str, regex: str) -> dict[str, object]:
    if field == "response_format":
        return {"response_format": {"type": "regex_schema", "regex_schema": regex}}
    return {"structured_outputs": {"regex": regex}} if field == "structured_outputs" else {field: regex}


@functools.lru_cache(maxsize=64)
def _regex_contract(regex: str, choices: tuple[str, ...]) -> AnswerContract:
    return AnswerContract(choices=frozenset(choices)) if choices else AnswerContract(regex=compiled(regex))


@functools.lru_cache(maxsize=1024)
def schema_contract(schema: bytes) -> AnswerContract:
    """Make the contract of a schema once for each process."""
    return AnswerContract(SchemaRule(orjson.loads(schema)))


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _small(variant: int) -> Schema:
    return _object({f"name_{variant}": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}})


def _deep(variant: int) -> Schema:
    inner = _small(variant)
    for level in range(6):
        inner = _object(
            {f"level_{level}": inner, "items": {"type": "array", "items": {"type": "number"}, "maxItems": 3}}
        )
    return inner


def _wide(variant: int) -> Schema:
    kinds: list[Schema] = [{"type": "boolean"}, {"type": "integer"}, {"enum": ["a", "b"]}, {"type": "null"}]
    return _object({f"field_{variant}_{i}": kinds[hash64(variant, i) % len(kinds)] for i in range(40)})


def _choice(variant: int) -> Schema:
    return {"enum": [f"choice {variant} {i}" for i in range(100)]}


_SCHEMAS = {"small": _small, "deep": _deep, "wide": _wide, "choice": _choice}
