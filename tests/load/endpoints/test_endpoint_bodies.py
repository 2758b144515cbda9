import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadchaos.core.errors import ProfileError
from loadchaos.core.ledger.rows import WrongPart
from loadchaos.core.model import Facts, TextFacts
from loadchaos.load.endpoints import ENDPOINTS, endpoint_of_path
from loadchaos.load.payloads import batch
from loadchaos.load.registry import full_registry
from loadchaos.load.request_builder import build
from loadchaos.load.wire.answer_reader import AnswerRules
from loadchaos.load.wire.request import Request
from loadchaos.profile.profile import Profile, from_mapping, load
from loadchaos.profile.steps import steps
from loadchaos.simulator.engine import tokenizer

WORDS = tuple((f" {w}", 1) for w in ("the", "of", "and", "to", "is", "water", "river", "stone", "light", "night"))
FACTS = Facts(
    "http://x", "http://x", "vllm", "m", "0.32.0", max_model_len=4096, text=TextFacts(9, WORDS, " the", "tokenize"),
    endpoints={"completions": (0, 1), "responses": (0, 9), "messages": (0, 9), "embeddings": (0, 2), "rerank": (1, 11)},
    image_tokens={"64x64": 6},
)  # fmt: skip


def profile(**traffic: Any) -> Profile:
    one = {"name": "t", "payload": {"text": {"tokens": 40}}, **traffic}
    data = {"name": "p", "traffic": [one], "load": [{"users": 1, "requests": 9}]}
    return from_mapping(data, full_registry())


def request(facts: Facts = FACTS, number: int = 0, **traffic: Any) -> tuple[Request, dict[str, Any]]:
    found = list(steps(profile(**traffic), 1))[number]
    built = build(found, facts)
    return built, json.loads(built.body)


def test_completions_body_is_a_prompt_of_the_planned_length() -> None:
    built, body = request(endpoint="completions", output={"exact": 7})
    assert built.path == "/v1/completions"
    assert len(tokenizer.encode(body["prompt"])) == 39  # and one special token
    assert (built.tokens, built.exact) == (40, 7)
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (7, 7, True)
    assert body["stream_options"] == {"include_usage": True}


def test_completions_body_counts_log_probabilities() -> None:
    _, body = request(endpoint="completions", payload={"text": {"tokens": 40}, "sampling": {"n": 2, "logprobs": 5}})
    assert (body["n"], body["logprobs"], "top_logprobs" in body) == (2, 5, False)


def test_responses_body_has_its_own_names() -> None:
    built, body = request(endpoint="responses", output={"exact": 7})
    assert isinstance(body["input"], str)
    assert (body["max_output_tokens"], body["ignore_eos"], body["stream"]) == (7, True, True)
    assert not {"max_tokens", "min_tokens", "stream_options", "messages"} & body.keys()
    assert (built.tokens, built.exact) == (40, 7)


def test_messages_body_cannot_ask_for_an_exact_length() -> None:
    built, body = request(endpoint="messages", output={"exact": 7})
    assert body["max_tokens"] == 7
    assert not {"ignore_eos", "min_tokens", "seed", "stream_options"} & body.keys()
    assert (built.exact, built.most, built.tokens) == (None, 7, 40)


@pytest.mark.parametrize(
    ("endpoint", "kind", "url"),
    [
        ("responses", "input_image", lambda part: part["image_url"]),
        ("messages", "image", lambda part: f"data:{part['source']['media_type']};base64,{part['source']['data']}"),
    ],
)
def test_images_of_an_endpoint_are_those_of_chat(endpoint: str, kind: str, url: Any) -> None:
    payload = {"text": {"tokens": 40}, "images": {"size": "64x64", "count": 2}}
    _, chat = request(payload=payload)
    built, body = request(endpoint=endpoint, payload=payload)
    (message,) = body["input"] if endpoint == "responses" else body["messages"]
    *images, _ = message["content"]
    assert [i["type"] for i in images] == [kind, kind]
    assert [url(i) for i in images] == [p["image_url"]["url"] for p in chat["messages"][0]["content"][:-1]]
    assert (built.images, built.tokens) == (2, 52)


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_conversation_of_an_endpoint_carries_earlier_turns(endpoint: str) -> None:
    payload = {"conversation": {"turns": 3, "tokens": 120, "parallel": 1}}
    _, body = request(number=2, endpoint=endpoint, payload=payload)
    messages = body["input"] if endpoint == "responses" else body["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]


def test_conversation_goes_on_from_the_response_before_it() -> None:
    payload = {"conversation": {"turns": 3, "tokens": 900, "parallel": 2, "previous_response": True}}
    turns = [request(number=n, endpoint="responses", payload=payload) for n in (0, 2, 4)]
    bodies = [body for _, body in turns]
    assert all(isinstance(body["input"], str) for body in bodies)
    assert [b.get("previous_response_id") for b in bodies] == [None, bodies[0]["request_id"], bodies[1]["request_id"]]
    assert len({b["request_id"] for b in bodies}) == 3
    assert [built.tokens is None for built, _ in turns] == [False, True, True]
    assert [tuple(built.expect) for built, _ in turns] == [("ok",), ("ok", "rejected"), ("ok", "rejected")]
    assert len({built.owner for built, _ in turns}) == 1


def test_tools_and_schemas_are_written_in_the_words_of_each_endpoint() -> None:
    payload = {"text": {"tokens": 40}, "tools": {"count": 1, "choice": "named"}}
    _, responses = request(endpoint="responses", payload=payload)
    assert responses["tools"][0]["name"] == responses["tool_choice"]["name"] == "get_weather_0"
    _, messages = request(endpoint="messages", payload=payload)
    assert messages["tools"][0]["input_schema"]["required"] == ["place"]
    assert messages["tool_choice"] == {"type": "tool", "name": "get_weather_0"}
    assert responses["tools"][0]["strict"] is messages["tools"][0]["strict"] is True
    payload = {"text": {"tokens": 40}, "structured": {"json_schema": "small"}}
    built, responses = request(endpoint="responses", payload=payload)
    assert responses["text"]["format"]["schema"]["type"] == "object"
    assert built.contract is not None
    _, messages = request(endpoint="messages", payload=payload)
    assert messages["output_config"]["format"]["type"] == "json_schema"


def test_length_is_unknown_where_the_server_did_not_tell_what_an_endpoint_adds() -> None:
    built, _ = request(replace(FACTS, endpoints={"completions": None}), endpoint="completions")
    assert built.tokens is None


@pytest.mark.parametrize(
    ("traffic", "said"),
    [
        ("endpoint: completion", "unknown endpoint 'completion'; did you mean completions?"),
        (
            "endpoint: completions, payload: {images: {size: 64x64}}",
            "cannot carry images: it takes extra_body, near_limit, ",
        ),
        (
            "endpoint: completions, payload: {images: {size: 64x64}}",
            "images goes with endpoint: chat or responses or messages",
        ),
        (
            "endpoint: messages, payload: {sampling: {n: 2}}",
            "has no such option; it goes with endpoint: chat or completions",
        ),
        ("endpoint: score, stream: true", "traffic.0.stream: the endpoint score does not stream: leave this out"),
        (
            "endpoint: score, output: {max: 4}",
            "traffic.0.output: the endpoint score generates no text, so that output has no effect",
        ),
        (
            "endpoint: score, behaviour: {abort: {at_token: 2}}",
            "aborts within a stream, but the endpoint does not stream",
        ),
    ],
)
def test_profile_names_what_an_endpoint_cannot_carry(tmp_path: Path, traffic: str, said: str) -> None:
    if "payload" not in traffic:
        traffic += ", payload: {text: {tokens: 8}}"
    file = tmp_path / "p.yaml"
    file.write_text(f"name: p\ntraffic:\n  - {{name: t, {traffic}}}\nload:\n  - {{users: 1, requests: 1}}\n")
    with pytest.raises(ProfileError) as error:
        load(file, full_registry())
    assert said in str(error.value)
    assert "p.yaml:3:" in str(error.value)


def test_batch_has_texts_of_the_planned_length_each() -> None:
    payload = {"text": {"tokens": 40}, "batch": {"count": 3}}
    built, body = request(endpoint="embeddings", payload=payload)
    assert [len(tokenizer.encode(text)) for text in body["input"]] == [38, 38, 38]  # and two special tokens each
    assert len(set(body["input"])) == 3
    assert (built.tokens, built.answers, built.max_tokens, built.stream) == (120, 3, None, False)
    built, body = request(endpoint="rerank", payload=payload)
    assert [len(tokenizer.encode(text)) for text in (body["query"], *body["documents"])] == [8, 29, 29, 29]
    assert (built.path, built.tokens, built.answers) == ("/rerank", 121, 3)
    built, body = request(endpoint="embeddings", payload={"text": {"tokens": 9000}, "batch": {"count": 2}})
    assert (built.tokens, built.fitted) == (2 * 4096, "4096 tokens a text instead of 9000: the server's limit")


def test_request_with_equal_texts_may_have_equal_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(built: Request) -> list[WrongPart]:
        rules = AnswerRules(answers=3, texts_differ=built.texts_differ)
        answer = ENDPOINTS["embeddings"].answer(rules, asked_stream=False, declared_stream=False)
        data = [{"index": i, "embedding": [1.0, 0.5]} for i in range(3)]
        answer.feed(1, orjson.dumps({"data": data, "usage": {"prompt_tokens": 9, "total_tokens": 9}}))
        answer.close(2, complete=True)
        return answer.contradictions

    payload = {"text": {"tokens": 40}, "batch": {"count": 3}}
    built, _ = request(endpoint="embeddings", payload=payload)
    assert "all 3 vectors of one answer are equal" in wrong(built)[0]["text"]
    monkeypatch.setattr(batch, "write_prompt", lambda *_: None)  # each text is the first one
    built, body = request(endpoint="embeddings", payload=payload)
    assert len(set(body["input"])) == 1
    assert wrong(built) == []


def test_endpoint_of_a_recorded_path_is_found() -> None:
    assert {name: endpoint_of_path(f"/base{e.path}") for name, e in ENDPOINTS.items()} == {n: n for n in ENDPOINTS}
    assert endpoint_of_path("/generate") == "chat"
