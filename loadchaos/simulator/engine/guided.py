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

from loadchaos.simulator.body import Body, inside, objects

_DEPTH = 12
_CALLS = 0.5
"""Share of answers that are tool calls where the model decides."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Guided(NamedTuple):
    """The text of a guided answer; with `tool`, the arguments of its call. `named`: the request named the tool."""

    text: str
    tool: str = ""
    named: bool = False


def guided_answer(body: Body, seed: int) -> Guided | None:
    """Make the answer that the body's rule allows; None without a rule."""
    rng = Random(seed)
    tools, choice = body.get("tools"), body.get("tool_choice")
    if isinstance(tools, list) and tools and _calls(choice, rng):
        named = inside(inside(choice).get("function")).get("name")
        functions = [inside(tool.get("function")) for tool in objects(tools)]
        function = next((f for f in functions if f.get("name") == named), rng.choice(functions))
        text = _json(inside(function.get("parameters")), rng)
        return Guided(text, str(function.get("name")), named is not None)
    form = inside(body.get("response_format"))
    given = body.get("structured_outputs")
    given = given if isinstance(given, Mapping) else {k: body.get(f"guided_{k}") for k in ("json", "regex", "choice")}
    is_schema = form.get("type") == "json_schema"
    schema = inside(form.get("json_schema")).get("schema") if is_schema else given.get("json")
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


def _json(schema: Body, rng: Random) -> str:
    return orjson.dumps(_value(schema, schema, rng, 0)).decode()


def _value(schema: object, root: Body, rng: Random, depth: int) -> object:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: object = root
        for part in reference[2:].split("/"):
            target = inside(target).get(part, {})
        return _value(target, root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if isinstance(enum := schema.get("enum"), list):
        return rng.choice(enum)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(arms := schema.get(key), list) and arms:
            return _value(arms[0], root, rng, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return _typed(kind[0] if isinstance(kind, list) else kind, schema, root, rng, depth)


def _typed(kind: object, schema: Body, root: Body, rng: Random, depth: int) -> object:
    if kind == "object":
        properties, required = inside(schema.get("properties")), schema.get("required")
        always = required if isinstance(required, list) else ()
        kept = [name for name in properties if name in always or rng.random() < 0.5]
        return {name: _value(properties[name], root, rng, depth + 1) for name in kept}
    if kind == "array":
        least = _bound(schema, "minItems", 0)
        most = min(_bound(schema, "maxItems", least + 3), least + 3)
        return [_value(schema.get("items", {}), root, rng, depth + 1) for _ in range(rng.randint(least, most))]
    if kind in ("integer", "number"):
        low = _bound(schema, "minimum", _bound(schema, "exclusiveMinimum", -1) + 1)
        high = _bound(schema, "maximum", _bound(schema, "exclusiveMaximum", low + 1000) - 1)
        return rng.randint(low, max(low, high))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if isinstance(pattern := schema.get("pattern"), str):
        return _match(pattern, rng)
    least = _bound(schema, "minLength", 1)
    most = min(_bound(schema, "maxLength", least + 8), least + 8)
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(min(least, most), most)))


def _bound(schema: Body, key: str, default: int) -> int:
    value = schema.get(key)
    return int(value) if isinstance(value, int | float) else default


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
