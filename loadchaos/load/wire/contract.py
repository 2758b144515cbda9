"""Contract of an answer: the schema, regex, choices or tools it must obey.

A payload makes the contract from the same fields that it sends. An answer with finish_reason length is not held to it,
and neither is one that used all the tokens it may have: vLLM ends a required tool call there with finish_reason tool_calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

Schema = dict[str, Any]


OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields of a body that limit the tokens of its answer."""
ANY_ARGUMENTS: Schema = {"type": "object"}
"""Schema of the arguments of a call that the server does not guide."""
_TOKEN_LIMITS = tuple(f'"{name}":'.encode() for name in OUTPUT_LIMITS)
_MOST_DIGITS = 12
_NUMBER = re.compile(rb" ?(\d+)")


def asked_tokens(body: bytes) -> int | None:
    """Read the limit of tokens from a JSON body; the last one counts. It is not parsed: it may have images."""
    at = max(found + len(key) if (found := body.rfind(key)) >= 0 else -1 for key in _TOKEN_LIMITS)
    number = _NUMBER.match(body, at, at + _MOST_DIGITS) if at >= 0 else None
    return int(number[1]) if number else None


class Violation(NamedTuple):
    """A broken rule: the place in the answer, the rule and what stood there. `id`: id of the failure."""

    text: str
    expected: str
    got: str
    id: str = "schema_violated"


class ToolCall(NamedTuple):
    """A tool call as the stream brought it: name, joined arguments, id."""

    name: str
    arguments: str
    id: str = ""


class SchemaRule:
    """A JSON schema, ready to check answers. Raises ValueError for a schema that jsonschema refuses."""

    def __init__(self, schema: Schema) -> None:
        # Imported here: only structured answers need it, and its import takes 0.1 s.
        import jsonschema
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        kind = validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError as e:
            raise ValueError(f"no valid JSON schema: {e.json_path}: {e.message}") from e
        self._best_match = jsonschema.exceptions.best_match
        self._validator = kind(schema)
        self.size = max(len(orjson.dumps(value, default=str)) for value in schema.get("enum") or (schema,))

    def violation(self, text: str) -> Violation | None:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as e:
            return self._of_control_character(text) or Violation(
                f"$: not JSON: {e}", "JSON that follows the schema", text
            )
        if self._validator.is_valid(value):
            return None
        error = self._best_match(self._validator.iter_errors(value))
        rule = orjson.dumps({str(error.validator): error.validator_value}, default=str).decode()
        return Violation(f"{error.json_path}: {error.message}", rule, text)

    def _of_control_character(self, text: str) -> Violation | None:
        """Violation of a text that only lacks the escape of a control character: a known bug of a grammar library."""
        try:
            json.loads(text)
            return None
        except json.JSONDecodeError as e:
            position = e.pos
        try:
            value = json.loads(text, strict=False)
        except ValueError:
            return None
        if not self._validator.is_valid(value):
            return None
        what = f"the control character U+{ord(text[position]):04X} at {position} is not escaped"
        return Violation(what, "JSON that follows the schema", text, "schema_control_character")


def compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as e:
        raise ValueError(f"no valid regex: {pattern!r}: {e}") from e


@dataclass(frozen=True)
class AnswerContract:
    """Rules of one kind of request: `content` of the text, `tools` of the arguments by the name of a tool. With
    `must_call` an answer without a tool call breaks the contract, without `may_call` one with a call.
    """

    content: SchemaRule | None = None
    regex: re.Pattern[str] | None = None
    choices: frozenset[str] = frozenset()
    tools: Mapping[str, SchemaRule] = field(default_factory=dict)
    must_call: bool = False
    may_call: bool = True

    @property
    def size(self) -> int:
        """Bytes of the largest rule that each answer has to obey; 0: there is none."""
        rules = [rule.size for rule in self.tools.values()] if self.must_call else []
        if self.content is not None:
            rules.append(self.content.size)
        return max([*rules, *map(len, self.choices), len(self.regex.pattern) if self.regex else 0])

    def violation(self, text: str, calls: Sequence[ToolCall]) -> Violation | None:
        if self.tools:
            found = self._of_calls(text, calls)
            return found if found is None or self.must_call else found._replace(id="tool_call_invalid")
        if calls and not self.may_call:
            return Violation(
                "a tool was called, and tool_choice is none", "no call", calls[0].name, "tool_call_invalid"
            )
        if calls:
            return None  # the contract of the text does not hold for a call
        if self.content is not None:
            return self.content.violation(text)
        if self.regex is not None and self.regex.fullmatch(text) is None:
            return Violation("the text does not match the regex", self.regex.pattern, text)
        if self.choices and text.strip() not in self.choices:
            return Violation("the text is none of the choices", ", ".join(sorted(self.choices)), text)
        return None

    def _of_calls(self, text: str, calls: Sequence[ToolCall]) -> Violation | None:
        known = ", ".join(self.tools)
        if not calls and self.must_call:
            return Violation("no tool was called", f"a call of {known}", text)
        for n, call in enumerate(calls):
            rule = self.tools.get(call.name)
            if rule is None:
                return Violation(f"tool_calls[{n}]: no tool has this name", known, call.name)
            found = rule.violation(call.arguments)
            if found is not None:
                return found._replace(text=f"tool_calls[{n}].arguments {found.text}")
        return None
