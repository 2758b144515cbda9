import base64
import io
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loadchaos.campaigns.recorder.shape import BLOCK_CHARS, BodyShaper, UnreadableBodyError, known_path
from loadchaos.campaigns.recorder.synthetic import body_of
from loadchaos.server.dialects import DIALECTS, Dialect


def image_url(width: int, height: int, color: int = 0) -> str:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (color, 0, 0)).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def shape(body: Any, key: bytes = b"key") -> Any:
    return BodyShaper(key).shape(json.dumps(body).encode())


FULL: dict[str, Any] = {
    "model": "org/model-7b",
    "messages": [
        {"role": "system", "content": "Zebulon guards the vault of Quixmoor"},
        {"role": "user", "name": "Wilhelmina", "content": [
            {"type": "text", "text": "Describe Brobdingnag 4711-0815 please"},
            {"type": "image_url", "image_url": {"url": image_url(40, 30), "detail": "high"}},
            {"type": "image_url", "image_url": {"url": "https://hidden.example/Xanthippe.png"}},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_Yggdrasil", "type": "function",
             "function": {"name": "lookup_Jabberwock", "arguments": '{"Snicker": "Snack", "account": 987654321}'}},
        ]},
        {"role": "tool", "tool_call_id": "call_Yggdrasil", "content": "Vorpal"},
    ],
    "tools": [{"type": "function", "function": {"name": "lookup_Jabberwock", "description": "Finds Bandersnatch",
        "parameters": {"type": "object", "properties": {"Snicker": {"type": "string", "enum": ["Snack", "Borogove"]},
            "role": {"type": "string", "default": "user"}}, "required": ["Snicker"], "$defs": {"Tumtum": {"const": 424242}}},
    }}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "Galumph", "schema": {"$ref": "#/$defs/Tumtum"}}},
    "max_tokens": 77, "temperature": 0.25, "seed": 12, "stop": ["Frumious"], "logit_bias": {"50256": -100}, "stream": True,
    "stream_options": {"include_usage": True}, "user": "Humperdinck", "metadata": {"Customer": "Rumpelstiltskin"},
    "prompt": [[31337, 31338], "Mimsy"], "Unheard-Of": {"Deep": ["Gyre", 55555, 3.14159]},
    "chat_template_kwargs": {"enable_thinking": False},
}  # fmt: skip
SECRET_WORDS = [
    "Zebulon", "guards", "vault", "Quixmoor", "Wilhelmina", "Describe", "Brobdingnag", "4711", "0815", "please", "hidden",
    "Xanthippe", "Yggdrasil", "Jabberwock", "Snicker", "Snack", "987654321", "Vorpal", "Finds", "Bandersnatch", "Borogove",
    "Tumtum", "424242", "Galumph", "Frumious", "50256", "Humperdinck", "Customer", "Rumpelstiltskin", "31337", "31338",
    "Mimsy", "Unheard", "Deep", "Gyre", "55555", "14159", "lookup", "iVBOR",
]  # fmt: skip


def test_shape_has_no_word_of_the_body() -> None:
    text = json.dumps(shape(FULL))
    assert [w for w in SECRET_WORDS if w.lower() in text.lower()] == []
    whole = json.dumps(FULL)
    assert [w for w in SECRET_WORDS if w not in whole] == []


@given(st.lists(st.from_regex(r"[A-Z][a-z]{5,12}", fullmatch=True), min_size=1, max_size=8))
def test_shape_has_no_word_of_any_place(words: list[str]) -> None:
    words = [f"q{w}q" for w in words]
    value: Any = "leaf"
    for word in words:
        value = {
            word: [word, {"content": word, "type": word, "role": word, "name": word, "url": word, "arguments": word}]
        }
        value = {"messages": [value], "properties": value, "required": [word], "tool_choice": word, "format": word}
    assert [w for w in words if w in json.dumps(shape(value))] == []


def test_shape_keeps_structure_and_settings() -> None:
    made = shape(FULL)
    assert [m["role"] for m in made["messages"]] == ["system", "user", "assistant", "tool"]
    assert {k: made[k] for k in ("model", "max_tokens", "temperature", "seed", "stream", "stream_options")} == {
        k: FULL[k] for k in ("model", "max_tokens", "temperature", "seed", "stream", "stream_options")
    }
    assert made["messages"][0]["content"]["$text"][:2] == [36, 36]
    picture = made["messages"][1]["content"][1]["image_url"]
    assert picture["url"]["$image"][:3] == ["PNG", 40, 30]
    assert made["messages"][2]["tool_calls"][0]["id"] == made["messages"][3]["tool_call_id"]
    parameters = made["tools"][0]["function"]["parameters"]
    assert parameters["type"] == "object"
    assert {parameters["required"][0]["$name"]} < set(parameters["properties"])
    assert "role" not in parameters["properties"]


def test_shared_prefixes_have_equal_hashes_until_they_differ() -> None:
    common = "".join(chr(97 + i % 26) for i in range(3 * BLOCK_CHARS))
    one, two = (
        shape({"messages": [{"role": "user", "content": common + end}]})["messages"][0]["content"]["$text"][2]
        for end in ("first end", "other end")
    )
    assert one[:3] == two[:3]
    assert one[3] != two[3]
    assert (
        shape({"prompt": list(range(128))})["prompt"]["$ids"][1][0]
        == shape({"prompt": list(range(100))})["prompt"]["$ids"][1][0]
    )


def test_hashes_of_another_key_differ() -> None:
    assert shape({"prompt": "same"}, b"one") != shape({"prompt": "same"}, b"two")


def test_equal_images_have_equal_hashes() -> None:
    def picture(url: str) -> Any:
        return shape({"messages": [{"content": [{"image_url": {"url": url}}]}]})["messages"][0]["content"][0][
            "image_url"
        ]

    assert picture(image_url(8, 8)) == picture(image_url(8, 8))
    assert picture(image_url(8, 8)) != picture(image_url(8, 8, 1))


@pytest.mark.parametrize("body", [b"", b"not json", b'{"a":', b"[" * 100 + b"]" * 100])
def test_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBodyError):
        BodyShaper(b"key").shape(body)


def test_path_keeps_only_known_words() -> None:
    assert known_path(b"/v1/chat/completions") == "/v1/chat/completions"
    assert known_path(b"/tenants/jane/v1/completions") == "/v1/completions"
    assert known_path(b"/v1/users/jane") == "other"
    assert known_path(b"/v1/rerank/") == "/v1/rerank"
    assert known_path(b"/openai/deployments/jane/chat/completions") == "/v1/chat/completions"
    for root in (b"", b"/api/v3", b"/v1beta/openai", b"/api/paas/v4", b"/openai/v1"):
        assert known_path(root + b"/chat/completions") == root.decode() + "/chat/completions"


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_path_of_an_admin_operation_is_known(dialect: Dialect) -> None:
    for operation in dialect.admin.values():
        assert known_path(operation.path.encode()) == (operation.path if operation.method == "POST" else "other")


def test_synthetic_body_has_the_recorded_lengths_and_prefixes() -> None:
    common = "word " * 200
    bodies = [
        json.loads(body_of(shape({"messages": [{"role": "user", "content": common + end}], "max_tokens": 5}), {}))
        for end in ("x" * 90, "y" * 40)
    ]
    texts = [b["messages"][0]["content"] for b in bodies]
    assert [len(t) for t in texts] == [1090, 1040]
    shared = 1000 // BLOCK_CHARS * BLOCK_CHARS
    assert texts[0][:shared] == texts[1][:shared]
    assert texts[0] != texts[1]
    assert re.fullmatch(r"[a-z ]+", texts[0])
    assert bodies[0]["max_tokens"] == 5


@pytest.mark.parametrize("text", ["ä" * 300, "漢字" * 200, "😀" * 100, "plain " * 60])
def test_synthetic_text_has_nearly_the_recorded_bytes(text: str) -> None:
    made = json.loads(body_of(shape({"prompt": text}), {}))["prompt"]
    assert len(made) == len(text)
    assert 0.8 < len(made.encode()) / len(text.encode()) < 1.25


def test_synthetic_body_has_images_tools_and_ids_of_the_recorded_shape() -> None:
    made = json.loads(body_of(shape(FULL), {"ignore_eos": True}))
    url = made["messages"][1]["content"][1]["image_url"]["url"]
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        assert (image.width, image.height, image.format) == (40, 30, "PNG")
    call = made["messages"][2]["tool_calls"][0]
    assert call["id"] == made["messages"][3]["tool_call_id"]
    assert call["function"]["name"] == made["tools"][0]["function"]["name"]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    parameters = made["tools"][0]["function"]["parameters"]
    assert set(parameters["required"]) <= set(parameters["properties"])
    reference = made["response_format"]["json_schema"]["schema"]["$ref"]
    assert reference.removeprefix("#/$defs/") in parameters["$defs"]
    assert len(made["prompt"][0]) == 2
    assert made["ignore_eos"] is True
    assert [w for w in SECRET_WORDS if w.lower() in json.dumps(made).lower() and w != "iVBOR"] == []
