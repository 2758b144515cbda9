import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from loadchaos.core.errors import OptionError, TargetError
from loadchaos.core.model import Facts, TextFacts
from loadchaos.load import request_builder
from loadchaos.load.registry import traffic_registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.steps import steps
from loadchaos.run import compatibility
from loadchaos.run.prepare import facts_line
from tests.discovering import discovering

NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
LMDEPLOY_NO_PARSER = "Please launch the api_server with --tool-call-parser if you want to use tool."
TOOLS = {"tools": {"count": 2}, "text": {"tokens": 900}}
AUDIO = {"audio": {"seconds": 1}}
COUNTED = TextFacts(10, ((" the", 1),), " the", "tokenize")
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def refused(text: str, status: int = 400) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": text, "type": "BadRequestError", "code": status}})


def profile(*payloads: dict[str, Any], attacks: Any = (), **more: Any) -> Profile:
    traffic = [{"name": f"t{i}", "payload": p, **more} for i, p in enumerate(payloads)]
    load = [{"users": 1, "requests": 1}]
    return from_mapping({"name": "p", "traffic": traffic, "load": load, "attacks": list(attacks)}, traffic_registry())


def tried(wanted: Profile, answer: httpx.Response, dialect: str = "vllm", **known: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    facts = Facts("http://s", "http://s", dialect, model="base", **{"text": COUNTED, **known})

    def serve(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "base"}, {"id": "one"}]})
        whole = request.headers["content-type"] != "application/json"
        sent.append({"multipart": request.content} if whole else json.loads(request.content))
        return answer

    async def ask() -> None:
        async with discovering(serve=serve) as asker:
            await asker.ask("GET", "/v1/models")
            compatibility.require_models(asker, wanted)
            await compatibility.require_payloads(asker, wanted, facts)

    asyncio.run(ask())
    return sent


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (
            {"image_tokens": {"448x448": 198}},
            "an image of 448x448 has 198 tokens, and a prompt with its text has 199 at",
        ),
        ({"long_images": ("448x448",)}, "an image of 448x448 is longer than the context of the server"),
        ({"image_tokens": {"448x448": 150}}, None),
        ({"image_tokens": {"256x256": 500}}, None),
    ],
)
def test_compatibility_names_an_image_that_does_not_fit_the_context(known: dict[str, Any], told: str | None) -> None:
    facts = Facts("http://s", "http://s", "vllm", max_model_len=200, **known)
    wanted = profile({"text": {}}, {"images": {"size": "448x448"}})
    if told is None:
        compatibility.require_image_room(wanted, facts)
        return
    with pytest.raises(TargetError, match=rf"traffic\.1\.payload\.images\.size \(traffic t1\): {told}"):
        compatibility.require_image_room(wanted, facts)
    refused = profile({"images": {"size": "448x448"}}, expect=["ok", "rejected"])
    compatibility.require_image_room(refused, facts)


@pytest.mark.parametrize(
    ("text", "output", "told"),
    [
        ({"tokens": 20000}, {"max": 8}, "199 tokens of text instead of 20000"),
        ({"tokens": "300..400"}, {"max": 8}, "199 tokens of text instead of"),
        ({"tokens": "32..400"}, {"max": 8}, None),
        ({"tokens": 100}, {"exact": 128}, "100 tokens of output instead of 128"),
        ({"tokens": 100}, {"max": 128}, None),
        ({"tokens": 2}, {"max": 8}, "11 prompt tokens instead of 2: the chat template needs that many"),
        ({"tokens": "2..64"}, {"max": 8}, None),
    ],
)
def test_compatibility_refuses_a_length_that_no_request_can_have(
    text: dict[str, Any], output: dict[str, int], told: str | None
) -> None:
    known = COUNTED
    facts = Facts("http://s", "http://s", "vllm", max_model_len=200, text=known)
    wanted = profile({"text": text}, output=output)
    if told is None:
        compatibility.require_room(wanted, facts, 0)
        return
    with pytest.raises(OptionError, match=rf"traffic\.0 \(traffic t0\) does not fit the server: {told}"):
        compatibility.require_room(wanted, facts, 0)


def test_compatibility_names_a_model_that_is_not_served() -> None:
    wanted = profile({"text": {}}, {"sampling": {"models": {"one": 1, "other": 2, "third": 1}}})
    with pytest.raises(
        TargetError,
        match=r"traffic\.1\.payload\.sampling\.models \(traffic t1\).*serve other, third \(it serves: base, one\)",
    ):
        tried(wanted, httpx.Response(200, text=CHUNK))


def test_compatibility_ignores_models_not_sent_or_loaded_by_an_attack() -> None:
    other = {"sampling": {"models": {"one": 1, "other": 0}}}
    assert len(tried(profile(other), httpx.Response(200, text=CHUNK))) == 1
    loads = [{"admin": "load_lora_adapter", "every": "5s"}]
    later = {"sampling": {"models": {"later": 1}}}
    assert len(tried(profile(later, attacks=loads), httpx.Response(200, text=CHUNK))) == 1


IN_STREAM = httpx.Response(200, text=f"data: {json.dumps({'error': {'message': NO_PARSER, 'code': 400}})}\n\n")


@pytest.mark.parametrize(
    ("dialect", "answer", "wants"),
    [
        ("vllm", refused(NO_PARSER), r"400 .*server with --enable-auto-tool-choice and --tool-call-parser, or leave"),
        ("lmdeploy", refused(LMDEPLOY_NO_PARSER), r"the server with --tool-call-parser, or .* --set traffic\.0\.weight=0"),
        ("openai", refused("no tools here", 422), r"422 no tools here\. The profile .* fit the server: change the payload"),
        ("vllm", IN_STREAM, "--enable-auto"),
    ],
)  # fmt: skip
def test_compatibility_names_the_option_for_a_rejected_payload(
    dialect: str, answer: httpx.Response, wants: str
) -> None:
    with pytest.raises(TargetError, match=r"traffic\.0\.payload\.tools \(traffic t0\): .*" + wants):
        tried(profile(TOOLS), answer, dialect)


def test_compatibility_names_a_field_of_the_body_that_is_refused() -> None:
    field = {"text": {"tokens": 50}, "extra_body": {"enable_wonders": True}}
    with pytest.raises(TargetError, match=r"traffic\.0\.payload\.extra_body .*400 Extra inputs are not permitted"):
        tried(profile(field), refused("Extra inputs are not permitted"), "openai")


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(200, text=CHUNK), refused("index out of range"), refused("boom", 500), refused("later", 429)],
)
def test_compatibility_ignores_errors_that_are_no_rejection(answer: httpx.Response) -> None:
    (body,) = tried(profile(TOOLS), answer)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get_weather_0", "get_weather_1"]
    assert (body["tool_choice"], body["stream"], body["max_tokens"]) == ("auto", True, 16)
    assert len(body["messages"][0]["content"]) < 500, "a small request"


def test_compatibility_sends_one_request_for_each_kind() -> None:
    schema = {"structured": {"json_schema": "deep"}}
    wanted = profile({"text": {"tokens": 50}}, TOOLS, {**TOOLS, "text": {"tokens": 5}}, schema, {"images": {}})
    assert [set(body) & {"tools", "response_format"} for body in tried(wanted, httpx.Response(200, text=CHUNK))] == [
        {"tools"},
        {"response_format"},
    ]
    assert tried(profile({"text": {}}, {"images": {}}, {"conversation": {}}), refused(NO_PARSER)) == []
    assert tried(profile(TOOLS, expect="rejected"), refused(NO_PARSER)) == []


def test_compatibility_tries_plain_text_on_a_server_that_answered_nothing_before() -> None:
    guessed: dict[str, Any] = {"dialect": "openai", "text": None}
    answer = refused("Unsupported parameter: 'max_tokens' is not supported with this model.")
    with pytest.raises(TargetError, match=r"traffic\.0 \(traffic t0\): the server rejects such requests: 400 Unsupp"):
        tried(profile({"text": {}}), answer, **guessed)
    assert len(tried(profile({"text": {}}), httpx.Response(200, text=CHUNK), **guessed)) == 1


def test_compatibility_tries_audio_that_the_load_does_not_send_again() -> None:
    with pytest.raises(
        TargetError, match=r"payload\.audio \(traffic t0\): .*At most 0 audio.*\. The profile does not fit"
    ):
        tried(profile(AUDIO), refused("At most 0 audio(s) may be provided in one prompt."))
    (body,) = tried(profile(AUDIO), httpx.Response(200, text=CHUNK))
    part = body["messages"][0]["content"][0]
    first = next(iter(steps(profile(AUDIO), seed=0)))
    load = json.loads(bytes(request_builder.build(first, Facts("http://s", "http://s", "vllm", model="base")).body))
    assert part["type"] == load["messages"][0]["content"][0]["type"] == "input_audio"
    assert part not in load["messages"][0]["content"]


def test_compatibility_sends_the_body_of_an_endpoint_that_takes_no_json() -> None:
    wanted = profile({**AUDIO, "sampling": {"temperature": 0.5}}, endpoint="transcriptions")
    (body,) = tried(wanted, httpx.Response(200, text=CHUNK))
    assert b'name="temperature"\r\n\r\n0.5\r\n' in body["multipart"]
    assert b"RIFF" in body["multipart"]


def test_compatibility_keeps_the_length_of_unstreamed_answers() -> None:
    sent = tried(profile(TOOLS, stream=False, output={"max": 64}), httpx.Response(200, json={"choices": []}))
    assert [("stream" in body, body["max_tokens"]) for body in sent] == [(False, 64)]


def test_compatibility_says_that_a_model_has_no_image_input() -> None:
    facts = Facts("http://x", "http://x", "vllm", "m", "0.18.0", images=False)
    assert "no image input" in facts_line(facts)
    assert "images" not in facts_line(replace(facts, images=None))
