import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from loadchaos.core import typed_json
from loadchaos.core.model import Facts, Step, TextFacts
from loadchaos.core.units import Range
from loadchaos.load.payloads import conversation, sampling, structured, text, tools
from loadchaos.load.request_builder import build
from loadchaos.load.wire.request import Request
from tests.load.payloads.conftest import Steps, body_of, messages

EACH_TURN = 7
CJK = (("cjk", ((" 你好", 4), (" 世界", 3), (" 東京", 5))),)


@pytest.fixture
def knowing(facts: Facts) -> Facts:
    assert facts.text is not None
    return replace(facts, text=replace(facts.text, turn_overhead=EACH_TURN, scripts=CJK))


def counted(request: Request, known: TextFacts) -> int:
    costs = {w.strip(): n for w, n in (*known.words, *(pair for _, words in known.scripts for pair in words))}
    all_messages = messages(request)
    words = [w for m in all_messages for w in m["content"].split()]
    return known.overhead + sum(costs[w] for w in words) + len(all_messages) // 2 * EACH_TURN


def talk(**options: Any) -> dict[str, Any]:
    return {"conversation": conversation.Options.model_validate(options)}


def test_conversation_grows_turn_by_turn_to_its_length(knowing: Facts, step: Steps) -> None:
    assert knowing.text is not None
    payload = talk(turns=5, tokens=500, parallel=2)
    requests = [build(step(payload, n), knowing) for n in range(20)]
    for n, request in enumerate(requests):
        number = n // 2 % 5
        roles = [m["role"] for m in messages(request)]
        assert roles == ["user", "assistant"] * number + ["user"]
        assert counted(request, knowing.text) == request.tokens
        assert (request.tokens == 500) is (number == 4)


def test_conversation_turn_begins_with_all_of_the_previous_one(knowing: Facts, step: Steps) -> None:
    payload = talk(turns=4, tokens="300..600", parallel=3)
    for first in range(3):
        turns = [messages(build(step(payload, first + 3 * t), knowing)) for t in range(4)]
        for before, after in pairwise(turns):
            assert after[: len(before)] == before
    openings = {messages(build(step(payload, n), knowing))[0]["content"] for n in range(24)}
    assert len(openings) == 6, "two rounds of three conversations"


def test_conversation_is_shortened_to_the_servers_limit(knowing: Facts, step: Steps) -> None:
    assert knowing.text is not None
    small = replace(knowing, max_model_len=256)
    request = build(step(talk(turns=3, tokens=2000, parallel=1), 2), small)
    assert counted(request, knowing.text) == request.tokens == 255
    assert "255 tokens instead of 2000" in request.fitted


def test_conversation_length_is_unknown_without_a_known_template(facts: Facts, step: Steps) -> None:
    payload = talk(turns=3, tokens=300, parallel=1)
    lengths = [build(step(payload, n), facts).tokens for n in range(3)]
    assert lengths[0] is not None
    assert lengths[1:] == [None, None]


def test_conversation_cost_is_in_explain() -> None:
    options = conversation.Options(turns=4, tokens=Range(400, 400))
    assert options.per_request().tokens == 250
    assert "4 turns that grow to 400 tokens" in options.describe()


# --- scripts ----------------------------------------------------------------------------------------------------------


def test_text_in_another_script_is_exact(knowing: Facts, step: Steps) -> None:
    assert knowing.text is not None
    payload = {"text": text.Options.model_validate({"tokens": "20..400", "script": "cjk"})}
    for n in range(30):
        request = build(step(payload, n), knowing)
        assert counted(request, knowing.text) == request.tokens
        assert "你好" in messages(request)[0]["content"]


def test_text_in_an_unmeasured_script_is_latin_with_a_note(knowing: Facts, step: Steps) -> None:
    payload = {"text": text.Options(script="emoji")}
    assert "Latin instead of emoji" in build(step(payload), knowing).fitted


def test_text_mixed_draws_a_script_per_prompt(knowing: Facts, step: Steps) -> None:
    payload = {"text": text.Options.model_validate({"tokens": 60, "script": "mixed"})}
    ascii_only = {messages(build(step(payload, n), knowing))[0]["content"].isascii() for n in range(40)}
    assert ascii_only == {True, False}


# --- fields of the body -----------------------------------------------------------------------------------------------


def body(step: Step, facts: Facts) -> dict[str, Any]:
    return body_of(build(step, facts))


def test_sampling_sends_given_fields_only(facts: Facts, step: Steps) -> None:
    options = sampling.Options.model_validate({"n": "2..3", "logprobs": 5, "temperature": 0.7})
    bodies = [body(step({"sampling": options}, n), facts) for n in range(20)]
    assert {b["n"] for b in bodies} == {2, 3}
    assert all((b["logprobs"], b["top_logprobs"], b["temperature"]) == (True, 5, 0.7) for b in bodies)
    assert not {"top_p", "prompt_logprobs"} & bodies[0].keys()
    assert "n 2..3" in options.describe()


def test_sampling_several_answers_get_a_temperature(facts: Facts, step: Steps) -> None:
    """vLLM: `n must be 1 when using greedy sampling, got 2.`"""
    assert body(step({"sampling": sampling.Options.model_validate({"n": 2})}), facts)["temperature"] == 1.0
    assert body(step({"sampling": sampling.Options.model_validate({"n": 1})}), facts)["temperature"] == 0


def test_sampling_sends_how_tokens_are_drawn_with_a_seed_of_each_request(facts: Facts, step: Steps) -> None:
    given = {"temperature": 0.8, "top_k": 20, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    options = sampling.Options.model_validate({**given, "repetition_penalty": 1.2, "seeded": True})
    bodies = [body(step({"sampling": options}, n), facts) for n in range(5)]
    assert all(b[k] == v for b in bodies for k, v in given.items())
    assert len({b["seed"] for b in bodies}) == 5
    assert all(0 <= b["seed"] < 1 << 31 for b in bodies)
    shared = body(step({"sampling": sampling.Options.model_validate({**given, "seeded": False})}), facts)
    assert shared["seed"] is None, "a request without a seed draws from the generator of the server"


def test_sampling_reasoning_options_make_the_length_unknown(facts: Facts, step: Steps) -> None:
    given = sampling.Options.model_validate({"thinking": False, "reasoning_effort": "low"})
    sent = body(step({"sampling": given}), facts)
    assert (sent["chat_template_kwargs"], sent["reasoning_effort"]) == ({"enable_thinking": False}, "low")
    assert build(step({"sampling": given}), facts).tokens is None


def test_sampling_draws_models_by_weight(facts: Facts, step: Steps) -> None:
    options = sampling.Options(models={"base": 1, "lora-a": 3, "never": 0})
    sent = [body(step({"sampling": options}, n), facts)["model"] for n in range(400)]
    assert set(sent) == {"base", "lora-a"}
    assert 240 < sent.count("lora-a") < 360


def test_sampling_draws_adapters_that_the_server_lists(facts: Facts, step: Steps) -> None:
    options = sampling.Options.model_validate({"adapters": "50%"})
    loras = replace(facts, lora_adapters=("a", "b"))
    sent = [body(step({"sampling": options}, n), loras)["model"] for n in range(400)]
    assert set(sent) == {facts.model, "a", "b"}
    assert 150 < sent.count(facts.model) < 250
    assert body(step({"sampling": options}), facts)["model"] == facts.model
    assert typed_json.from_json(Facts, json.loads(json.dumps(typed_json.to_json(loras)))) == loras


@pytest.mark.parametrize("kind", ["small", "deep", "wide", "choice", {"type": "integer"}])
def test_structured_asks_for_a_schema(kind: Any, facts: Facts, step: Steps) -> None:
    payload = {"structured": structured.Options(json_schema=kind, variants=3)}
    formats = [body(step(payload, n), facts)["response_format"] for n in range(30)]
    assert {f["type"] for f in formats} == {"json_schema"}
    different = {json.dumps(f["json_schema"]["schema"]) for f in formats}
    assert len(different) == (1 if isinstance(kind, dict) else 3)


def test_tools_are_in_the_body_and_make_the_length_unknown(facts: Facts, step: Steps) -> None:
    request = build(step({"tools": tools.Options.model_validate({"count": 2, "choice": "named"})}), facts)
    sent = json.loads(request.body)
    assert [t["function"]["name"] for t in sent["tools"]] == ["get_weather_0", "get_weather_1"]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "get_weather_0"}}
    assert request.tokens is None


@pytest.mark.parametrize(
    ("choice", "dialect", "held", "guided"),
    [
        ("named", "vllm", 1, True),
        ("required", "vllm", 3, True),
        ("auto", "vllm", 3, False),
        ("none", "vllm", 0, False),
        ("required", "lmdeploy", 3, False),
    ],
)
def test_tools_whose_arguments_are_judged_are_strict(
    facts: Facts, step: Steps, choice: str, dialect: str, held: int, guided: bool
) -> None:
    """vLLM 0.32 leaves the arguments of a required call free unless its tool is strict."""
    options = {"tools": tools.Options.model_validate({"count": 3, "choice": choice})}
    request = build(step(options), replace(facts, dialect=dialect))
    strict = [tool["function"].get("strict", False) for tool in json.loads(request.body)["tools"]]
    assert strict == [guided] * 3
    assert len(request.contract.tools if request.contract else ()) == held


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (sampling.Options, {"n": "-1..2"}, "0 or more"),
        (sampling.Options, {"n": "1..2", "temperature": 0}, "a temperature above 0"),
        (sampling.Options, {"models": {"a": 0}}, "above 0"),
        (tools.Options, {"count": 0}, "at least one tool"),
        (conversation.Options, {"tokens": 0}, "at least 1 token"),
    ],
)
def test_payload_options_reject_nonsense(model: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model.model_validate(given)
