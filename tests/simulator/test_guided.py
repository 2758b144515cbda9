import re
from typing import Any

import orjson
import pytest

from loadchaos.load.payloads import structured
from loadchaos.load.wire.contract import SchemaRule
from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.guided import guided_answer

LISTS = {
    "type": "object",
    "properties": {
        "many": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 2, "maxItems": 2},
        "either": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-\\d{2,4}$"},
        "fixed": {"const": "x y"},
    },
    "required": ["many", "either", "code", "fixed"],
    "$defs": {"n": {"type": "integer", "minimum": 3, "maximum": 9}},
}


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


@pytest.mark.parametrize("schema", [*(make(1) for make in structured._SCHEMAS.values()), LISTS])
def test_guided_answer_follows_its_schema(schema: dict[str, Any]) -> None:
    rule = SchemaRule(schema)
    for seed in range(30):
        guided = guided_answer(form(schema), seed)
        assert guided is not None
        assert rule.violation(guided.text) is None
        assert tokenizer.decode(tokenizer.encode(guided.text)) == guided.text


@pytest.mark.parametrize("regex", [r"[A-Z]{2}\d+", r"(yes|no), (it|that) is", r"\w+@\w+\.com", r"[^ab]x?", "a.c"])
def test_guided_answer_matches_its_regex(regex: str) -> None:
    for body in ({"structured_outputs": {"regex": regex}}, {"guided_regex": regex}, {"regex": regex}):
        for seed in range(10):
            guided = guided_answer(body, seed)
            assert guided is not None
            assert re.fullmatch(regex, guided.text)


def test_required_tool_is_called_with_valid_arguments() -> None:
    parameters = {"type": "object", "required": ["place"], "properties": {"place": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": parameters}} for i in range(3)]
    for choice in ("required", {"type": "function", "function": {"name": "f1"}}):
        guided = guided_answer({"tools": tools, "tool_choice": choice}, 5)
        assert guided is not None
        assert guided.tool in {"f0", "f1", "f2"} if choice == "required" else guided.tool == "f1"
        assert orjson.loads(guided.text)["place"]


@pytest.mark.parametrize("choice", ["auto", None])
def test_model_with_tools_calls_one_in_half_of_its_answers(choice: str | None) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"tools": tools, **({"tool_choice": choice} if choice else {})}
    called = [guided_answer(body, seed) is not None for seed in range(200)]
    assert 70 < sum(called) < 130
    assert called == [guided_answer(body, seed) is not None for seed in range(200)]
    assert all(guided_answer({**body, "tool_choice": "none"}, seed) is None for seed in range(20))


def test_answer_without_a_rule_is_free() -> None:
    assert guided_answer({"messages": []}, 1) is None
