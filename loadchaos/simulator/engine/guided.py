"""Guided answers: a text that follows the rule of a body. The rule is a schema, a regex or choices. A tool call gets
arguments that follow the schema of its tool. With the choice `auto` every second answer calls a tool. The same body
gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import orjson

_DEPTH = 12
_CALLS = 0.5
"""Share of answers that are tool calls where the model decides."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Guided(NamedTuple):
    """The text of a guided answer; with `tool`, the arguments of its call. `named`: the request named the tool."""

    text: str
    tool: str = ""
    named: bool = False


def guided_answer(body: Mapping[str, Any], seed: int) -> Guided | None:
    """Make the answer that the body's rule allows; None without a rule."""
    rng = Random(seed)
    tools, choice = body.get("tools"), body.get("tool_choice")
    if isinstance(tools, list) and tools and _calls(choice, rng):
        named = (choice.get("function") or {}).get("name") if isinstance(choice, Mapping) else None
        functions = [t.get("function") or {} for t in tools]
        function = next((f for f in functions if f.get("name") == named), rng.choice(functions))
        return Guided(_json(function.get("parameters") or {}, rng), str(function.get("name")), named is not None)
    form = body.get("response_format")
    form = form if isinstance(form, Mapping) else {}
    given = body.get("structured_outputs")
    given = given if isinstance(given, Mapping) else {k: body.get(f"guided_{k}") for k in ("json", "regex", "choice")}
    schema = (form.get("json_schema") or {}).get("schema") if form.get("type") == "json_schema" else given.get("json")
    if isinstance(schema, Mapping):
        return Guided(_json(schema, rng))
    regex = given.get("regex") or body.get("regex")
    regex = form.get("regex_schema") if form.get("type") == "regex_schema" else regex
    if isinstance(regex, str):
        return Guided(_match(regex, rng))
    choices = given.get("choice")
    return Guided(str(rng.choice(choices))) if isinstance(choices, list) and choices else None


def _calls(choice: object, rng: Random) -> bool:
    if choice in (None, "auto"):
        return rng.random() < _CALLS
    return choice == "required" or isinstance(choice, Mapping)


def _json(schema: Mapping[str, Any], rng: Random) -> str:
    return orjson.dumps(_value(schema, schema, rng, 0)).decode()


def _value(schema: Any, root: Mapping[str, Any], rng: Random, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part, {}) if isinstance(target, Mapping) else {}
        return _value(target, root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(list(schema["enum"]))
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _value(schema[key][0], root, rng, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return _typed(kind[0] if isinstance(kind, list) else kind, schema, root, rng, depth)


def _typed(kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], rng: Random, depth: int) -> Any:
    if kind == "object":
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        kept = [name for name in properties if name in required or rng.random() < 0.5]
        return {name: _value(properties[name], root, rng, depth + 1) for name in kept}
    if kind == "array":
        least = int(schema.get("minItems", 0))
        most = min(int(schema.get("maxItems", least + 3)), least + 3)
        return [_value(schema.get("items", {}), root, rng, depth + 1) for _ in range(rng.randint(least, most))]
    if kind in ("integer", "number"):
        low = int(schema.get("minimum", int(schema.get("exclusiveMinimum", -1)) + 1))
        high = int(schema.get("maximum", int(schema.get("exclusiveMaximum", low + 1000)) - 1))
        return rng.randint(low, max(low, high))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if isinstance(schema.get("pattern"), str):
        return _match(schema["pattern"], rng)
    least = int(schema.get("minLength", 1))
    most = min(int(schema.get("maxLength", least + 8)), least + 8)
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(min(least, most), most)))


def _match(regex: str, rng: Random) -> str:
    parser = re._parser  # type: ignore[attr-defined]  # the parse tree has no public name
    return _pieces(parser.parse(regex), rng)


def _pieces(items: Any, rng: Random) -> str:
    return "".join(_piece(str(op), value, rng) for op, value in items)


def _piece(op: str, value: Any, rng: Random) -> str:
    if op == "LITERAL":
        return chr(value)
    if op == "NOT_LITERAL":
        return next(c for c in _LETTERS if ord(c) != value)
    if op == "ANY":
        return rng.choice(_LETTERS)
    if op == "IN":
        return _of_set(value, rng)
    if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, items = value
        times = rng.randint(least, min(int(most), least + 4))
        return "".join(_pieces(items, rng) for _ in range(times))
    if op == "BRANCH":
        return _pieces(rng.choice(value[1]), rng)
    if op in ("SUBPATTERN", "ATOMIC_GROUP"):
        return _pieces(value[-1] if op == "SUBPATTERN" else value, rng)
    return ""  # an anchor


def _of_set(value: Any, rng: Random) -> str:
    if str(value[0][0]) == "NEGATE":
        refused = {chr(v) for o, v in value[1:] if str(o) == "LITERAL"}
        return next(c for c in _LETTERS if c not in refused)
    kind, one = rng.choice(value)
    op = str(kind)
    if op == "RANGE":
        return chr(rng.randint(one[0], one[1]))
    if op == "CATEGORY":
        return {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "w"}.get(str(one), "x")
    return chr(one)
