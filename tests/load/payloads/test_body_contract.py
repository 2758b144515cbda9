from pathlib import Path
from typing import Any

import orjson
import pytest

from loadchaos.load.payloads.body_contract import contract_of_recording
from loadchaos.load.wire.contract import ToolCall

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "get", "parameters": SCHEMA, "strict": True}}
LOOSE = {"type": "function", "function": {"name": "get", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "get"}}


def recorded(folder: Path, body: dict[str, Any]) -> Path:
    file = folder / "body.json"
    file.write_bytes(orjson.dumps({"messages": [], **body}))
    return file


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
def test_recorded_schema_is_a_contract(body: dict[str, Any], tmp_path: Path) -> None:
    contract = contract_of_recording(recorded(tmp_path, body), guides_tools=True)
    assert contract is not None
    assert contract.violation('{"a": 1}', []) is None
    assert contract.violation('{"a": "1"}', []) is not None


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_recorded_call_that_is_demanded_is_a_contract(choice: Any, tmp_path: Path) -> None:
    file = recorded(tmp_path, {"tools": [TOOL], "tool_choice": choice})
    contract = contract_of_recording(file, guides_tools=True)
    assert contract is not None
    assert contract.violation("", [ToolCall("get", '{"a": 1}')]) is None
    assert contract.violation("", [ToolCall("get", '{"a": "1"}')]) is not None
    assert contract.violation("text", []) is not None
    unguided = contract_of_recording(file, guides_tools=False)
    assert unguided is not None
    assert unguided.violation("", [ToolCall("get", '{"a": "1"}')]) is None
    assert unguided.violation("text", []) is not None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": False}}},
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [LOOSE], "tool_choice": "required"},
        {"structured_outputs": {"regex": "(["}},
    ],
)
def test_recorded_body_without_a_strict_rule_has_no_contract(body: dict[str, Any], tmp_path: Path) -> None:
    assert contract_of_recording(recorded(tmp_path, body), guides_tools=True) is None
