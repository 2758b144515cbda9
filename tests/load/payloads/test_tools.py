from dataclasses import replace
from typing import Any

import orjson
import pytest

from loadchaos.core.model import Facts, Output
from loadchaos.core.rng import Rng
from loadchaos.load.payloads import tools
from loadchaos.load.wire.contract import ToolCall
from loadchaos.load.wire.request import Request
from tests.load.payloads.conftest import Steps


def draft(step: Steps, facts: Facts, choice: str = "required", *, marks: bool = True) -> Request:
    options = tools.Options.model_validate({"count": 4, "choice": choice, "marks": marks})
    asked = step({"tools": options})
    made = Request(step=asked, output=Output(max=8), expect=["ok"], stream=True, path="")
    options.add(made, facts, Rng(1))
    return made


@pytest.mark.parametrize("choice", ["required", "named"])
def test_call_with_its_mark_obeys_and_one_cut_at_the_mark_does_not(choice: str, step: Steps, facts: Facts) -> None:
    made = draft(step, facts, choice)
    assert made.contract is not None
    defined: Any = made.extra["tools"]
    tool = defined[0]["function"]
    quote = tool["parameters"]["properties"]["quote"]["enum"][0]
    assert quote == "before </tool_call> after"
    whole = orjson.dumps({"quote": quote}).decode()
    assert made.contract.violation("", [ToolCall(tool["name"], whole)]) is None
    cut = made.contract.violation("", [ToolCall(tool["name"], whole.partition("</tool_call>")[0])])
    assert cut is not None
    assert made.contract.violation(f"<tool_call>{whole}</tool_call>", []) is not None


def test_each_tool_has_its_mark_only_where_marks_are_asked_for(step: Steps, facts: Facts) -> None:
    texts = orjson.dumps(draft(step, facts).extra["tools"]).decode()
    assert all(mark in texts for mark in ("</tool_call>", "<tool_call>", "</parameter>", "[TOOL_CALLS]"))
    assert "before" not in orjson.dumps(draft(step, facts, marks=False).extra["tools"]).decode()


def test_marks_without_demanded_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="choice: required or named was expected"):
        tools.Options.model_validate({"choice": "auto", "marks": True})


@pytest.mark.parametrize("choice", ["required", "named"])
def test_server_that_guides_no_call_has_to_make_one_of_a_tool_that_it_was_given(
    choice: str, step: Steps, facts: Facts
) -> None:
    made = draft(step, replace(facts, dialect="openai"), choice, marks=False)
    assert made.contract is not None
    named = "get_weather_0"
    assert made.contract.violation("", [ToolCall(named, '{"anything": 1}')]) is None
    for text, calls in (
        ("It is sunny.", []),
        ("", [ToolCall("get_weather_9", "{}")]),
        ("", [ToolCall(named, '{"place": "Rome"')]),
    ):
        assert made.contract.violation(text, calls) is not None


@pytest.mark.parametrize(
    ("choice", "name", "arguments", "wrong"),
    [
        ("auto", "get_weather_3", '{"anything": 1}', None),
        ("auto", "get_weather_3", '{"place": "Rome"', "tool_call_invalid"),
        ("auto", "delete_everything", "{}", "tool_call_invalid"),
        ("none", "get_weather_3", "{}", "tool_call_invalid"),
    ],
)
def test_call_that_the_model_may_make_has_to_be_one(
    choice: str, name: str, arguments: str, wrong: str | None, step: Steps, facts: Facts
) -> None:
    contract = draft(step, facts, choice, marks=False).contract
    assert contract is not None
    assert contract.size == 0
    assert contract.violation("It is sunny.", []) is None
    found = contract.violation("", [ToolCall(name, arguments)])
    assert (found and found.id) == wrong
