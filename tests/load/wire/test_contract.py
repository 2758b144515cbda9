import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from loadchaos.core.model import Facts, Step
from loadchaos.load.payloads import structured
from loadchaos.load.payloads.body_contract import contract_of_body
from loadchaos.load.request_builder import build
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.contract import AnswerContract, SchemaRule, ToolCall, asked_tokens
from loadchaos.load.wire.decision import _longest_run, text_ratio, wrong_parts
from tests.load.payloads.conftest import facts, step

__all__ = ["facts", "step"]
PERSON = SchemaRule(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 4},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize(
    ("answer", "where"),
    [
        ('{"name": "Ann"}', None),
        ('\n {"tags": ["a"], "name": ""}\n', None),
        ('{"name": "Annabel"}', "$.name"),
        ('{"name": "Ann", "tags": ["a", "c"]}', "$.tags[1]"),
        ('{"name": "Ann", "age": 3}', "$"),
        ('{"tags": []}', "$"),
        ('{"name": "An', "$: not JSON"),
        ("", "$: not JSON"),
    ],
)
def test_schema_violation_names_the_instance_path(answer: str, where: str | None) -> None:
    found = AnswerContract(PERSON).violation(answer, [])
    assert (found is None) == (where is None)
    assert found is None or found.text.startswith(f"{where}:")


def test_regex_and_choices_hold_for_the_whole_text() -> None:
    regex = AnswerContract(regex=re.compile(r"[ab]+"))
    assert regex.violation("abba", []) is None
    assert regex.violation("abba!", []) is not None
    choices = AnswerContract(choices=frozenset({"yes", "no"}))
    assert choices.violation("yes", []) is None
    assert choices.violation("yes, of course", []) is not None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"name": "A\x11nn"}', "schema_control_character"),
        ('{"name": "A\tnn"}', "schema_control_character"),
        ('{"name":\n\t"A\x04"\r}', "schema_control_character"),
        ('{"name": "A\x11nn", "age": "x"}', "schema_violated"),
        ('{"name": "A\x11nn"', "schema_violated"),
        ('{"name": 1}', "schema_violated"),
    ],
)
def test_control_character_alone_has_an_id_of_its_own(text: str, name: str) -> None:
    """xgrammar 0.2.8 allows it in strings with maxLength; vLLM 0.32.0 answered so."""
    for contract, calls in (
        (AnswerContract(PERSON), []),
        (AnswerContract(tools={"person": PERSON}, must_call=True), [ToolCall("person", text)]),
    ):
        found = contract.violation(text, calls)
        assert found is not None
        assert found.id == name
        assert ("is not escaped" in found.text) == (name == "schema_control_character")


def test_tool_arguments_are_checked_with_the_schema_of_their_tool() -> None:
    contract = AnswerContract(tools={"person": PERSON}, must_call=True)
    assert contract.violation("", [ToolCall("person", '{"name": "Ann"}')]) is None
    wrong = contract.violation("", [ToolCall("person", '{"name": "Ann"}'), ToolCall("person", '{"name": 1}')])
    assert wrong is not None
    assert wrong.text.startswith("tool_calls[1].arguments $.name:")
    assert contract.violation("text", []) is not None


def test_tokens_of_two_choices_together_cut_neither() -> None:
    """Each may have 8 of them: 9 of both are no reason for a text that breaks off."""
    rules = AnswerRules(contract=AnswerContract(tools={"person": PERSON}, must_call=True), answers=2, most_tokens=8)
    answer = AnswerReader(rules, asked_stream=False, declared_stream=False)
    call = {"id": "1", "type": "function", "function": {"name": "person", "arguments": '{"name": "A'}}
    message = {"content": "", "tool_calls": [call]}
    choices = [{"index": i, "message": message, "finish_reason": "tool_calls"} for i in range(2)]
    usage = {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}
    answer.feed(1, orjson.dumps({"choices": choices, "usage": usage}))
    answer.close(2, complete=True)
    assert {part["id"] for part in wrong_parts(answer)} == {"schema_violated"}


@pytest.mark.parametrize(("used", "wrong"), [(7, ["schema_violated"]), (8, []), (None, ["schema_violated"])])
def test_call_cut_at_max_tokens_breaks_no_contract(used: int | None, wrong: list[str]) -> None:
    """vLLM 0.29 ends a required call that is cut there with finish_reason tool_calls."""
    rules = AnswerRules(contract=AnswerContract(tools={"person": PERSON}, must_call=True), most_tokens=8)
    answer = AnswerReader(rules, asked_stream=False, declared_stream=False)
    call = {"id": "1", "type": "function", "function": {"name": "person", "arguments": '{"name": "A'}}
    choice = {"index": 0, "message": {"content": "", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": used, "total_tokens": 1 + used} if used else None
    answer.feed(1, orjson.dumps({"choices": [choice], "usage": usage}))
    answer.close(2, complete=True)
    assert [part["id"] for part in wrong_parts(answer)] == wrong


def test_limit_of_tokens_is_the_last_in_the_body(facts: Facts, step: Callable[..., Step]) -> None:
    request = build(step({"structured": structured.Options.model_validate({"choices": ["a"]})}), facts)
    assert asked_tokens(request.body) == orjson.loads(request.body)["max_tokens"]
    assert asked_tokens(orjson.dumps({"messages": '{"max_tokens":7}', "max_completion_tokens": 9})) == 9
    assert asked_tokens(b'{"max_tokens": 12}') == 12
    assert asked_tokens(b'{"messages":[]}') is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"json_schema": {"type": "objet"}}, "no valid JSON schema: \\$.type"),
        ({"json_schema": {"type": "string", "pattern": "(["}}, "no valid JSON schema: \\$.pattern"),
        ({"regex": "(["}, "no valid regex"),
        ({"regex": "a", "choices": ["a"]}, "one of json_schema, regex and choices"),
    ],
)
def test_rule_that_cannot_be_checked_is_refused_before_the_load(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        structured.Options.model_validate(options)


@pytest.mark.parametrize("kind", ["small", "deep", "wide", "choice"])
def test_structured_payload_checks_the_schema_that_it_sends(kind: str, facts: Facts, step: Callable[..., Step]) -> None:
    request = build(step({"structured": structured.Options.model_validate({"json_schema": kind})}), facts)
    sent = orjson.loads(request.body)["response_format"]["json_schema"]["schema"]
    assert request.contract is not None
    assert request.contract.content is not None
    assert request.contract.content._validator.schema == sent
    assert request.contract.violation("[]", []) is not None


@pytest.mark.parametrize(
    ("dialect", "version", "fields"),
    [
        ("vllm", "0.32.0", {"structured_outputs": {"regex": "a\\ b|c"}}),
        ("vllm", "0.10.2", {"guided_regex": "a\\ b|c"}),
        ("sglang", None, {"regex": "a\\ b|c"}),
        ("lmdeploy", "0.18.0", {"response_format": {"type": "regex_schema", "regex_schema": "a\\ b|c"}}),
    ],
)
def test_choices_are_asked_for_as_each_server_takes_them(
    dialect: str, version: str | None, fields: dict[str, Any], facts: Facts, step: Callable[..., Step]
) -> None:
    options = structured.Options.model_validate({"choices": ["a b", "c"]})
    request = build(step({"structured": options}), replace(facts, dialect=dialect, version=version))
    assert fields.items() <= orjson.loads(request.body).items()
    assert request.contract is not None
    assert request.contract.violation("a b", []) is None
    assert request.contract.violation("a", []) is not None


def test_request_of_a_file_is_held_to_its_own_schema() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "integer"}}}
    held = contract_of_body({"response_format": form})
    assert held is not None
    assert held.violation('"text"', []) is not None
    assert contract_of_body({"guided_choice": ["a"]}) == AnswerContract(choices=frozenset({"a"}))
    assert contract_of_body({"structured_outputs": {"regex": "(["}}) is None
    assert contract_of_body({}) is None


def test_text_ratio_of_repetition_is_far_below_that_of_prose() -> None:
    prose = (
        "A request is answered when every choice has its finish reason and the stream ends as the protocol says it "
        "must. Nothing that follows can mend what was broken before, and nothing that came before proves the rest of it, "
        "so each part is judged by what arrived on the wire and by the time at which it came to us from the server."
    )
    low, high = text_ratio("la " * 200), text_ratio(prose)
    assert low is not None
    assert high is not None
    assert low < 0.15 < 0.5 < high
    assert text_ratio("short") is None
    mixed = text_ratio(prose * 3 + "!" * 600)
    assert mixed is not None
    assert mixed < 0.15, "the end counts"


@pytest.mark.parametrize(
    ("pieces", "longest"), [(["a"] * 40, 40), ([str(i) for i in range(60)], 1), (["x", *["a"] * 30, "y"], 30)]
)
def test_longest_run_counts_equal_pieces_in_a_row(pieces: list[str], longest: int) -> None:
    assert _longest_run(pieces) == longest
