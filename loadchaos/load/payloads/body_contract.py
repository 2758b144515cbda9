"""Rules that the answer to a body must obey, read from the body itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import orjson

from loadchaos.load.payloads.structured import schema_contract
from loadchaos.load.wire.contract import ANY_ARGUMENTS, AnswerContract, SchemaRule, compiled

_SIGNS = (b'"json_schema"', b'"structured_outputs"', b'"guided_', b'"tools"')
"""Names of fields without which a body has no rule; a body with images is long to parse."""


def contract_of_body(body: Mapping[str, object]) -> AnswerContract | None:
    """Make the contract of a body with strict structured output. None without a rule, or with one that is invalid: the
    file may test the server's reaction to it.
    """
    given = body.get("structured_outputs")
    given = given if isinstance(given, dict) else {k: body.get(f"guided_{k}") for k in ("json", "regex", "choice")}
    form = _form(body)
    schema = form.get("schema") if form.get("strict") is True else given.get("json")
    try:
        if isinstance(schema, dict):
            return schema_contract(orjson.dumps(schema))
        if isinstance(regex := given.get("regex"), str):
            return AnswerContract(regex=compiled(regex))
    except ValueError:
        return None
    choices = given.get("choice")
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) for c in choices):
        return None
    return AnswerContract(choices=frozenset(choices))


@functools.lru_cache(maxsize=1024)
def contract_of_recording(file: Path, *, guides_tools: bool) -> AnswerContract | None:
    """Contract of a recorded body. With it a replay finds the wrong answers that its run found. `guides_tools`: the
    server generates required calls by the schema of their tool.
    """
    return contract_of_request(file.read_bytes(), guides_tools=guides_tools)


def contract_of_request(data: bytes, *, guides_tools: bool) -> AnswerContract | None:
    """Contract of the JSON body of somebody else's request."""
    if not any(sign in data for sign in _SIGNS):
        return None
    body = orjson.loads(data)
    return contract_of_body(body) or _contract_of_tools(body, guides_tools=guides_tools)


def _form(body: Mapping[str, object]) -> Mapping[str, object]:
    """The `json_schema` of chat, or the `text.format` of responses. Empty without one."""
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        found = form.get("json_schema")
        return found if isinstance(found, dict) else {}
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    return form if isinstance(form, dict) and form.get("type") == "json_schema" else {}


def _contract_of_tools(body: Mapping[str, object], *, guides_tools: bool) -> AnswerContract | None:
    choice = body.get("tool_choice")
    named = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    if choice != "required" and named is None:
        return None
    tools = body.get("tools")
    rules: dict[str, SchemaRule] = {}
    for function in [t.get("function") or {} for t in tools if isinstance(t, dict)] if isinstance(tools, list) else ():
        if guides_tools and (function.get("strict") is not True or not isinstance(function.get("parameters"), dict)):
            return None
        if named in (None, function.get("name")):
            try:
                schema = function["parameters"] if guides_tools else ANY_ARGUMENTS
                rules[str(function.get("name"))] = SchemaRule(schema)
            except ValueError:
                return None
    return AnswerContract(tools=rules, must_call=True) if rules else None
