"""/v1/responses and /v1/messages of the embedded server beside captures of vLLM 0.32.0."""

import base64
import http.client
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from loadchaos.load.payloads.audio import wav
from tests.simulator.conftest import Server, Start

CAPTURED = json.loads((Path(__file__).parent / "captures" / "vllm_0.32_typed.json").read_text())
PROMPT = "the of and to"
ASKED = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 3, "ignore_eos": True},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3},
}
ADDED_SINCE = {
    "phase", "metadata", "instructions", "top_logprobs", "max_tool_calls", "prompt", "reasoning", "text", "user",
    "presence_penalty", "frequency_penalty", "kv_transfer_params", "ec_transfer_params", "input_messages",
    "output_messages",
}  # fmt: skip
"""Fields of a response that are null there, and not needed by a client."""


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    return start(model="tiny", num_speculative_tokens=0, async_scheduling=False)


def typed(body: str) -> list[list[Any]]:
    blocks = [block.split("\n") for block in body.strip().split("\n\n")]
    return [[kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))] for kind, data in blocks]


def keys(value: Any) -> Any:
    """The names in a value, however deep, without null extensions and details of usage."""
    if isinstance(value, list):
        return [keys(item) for item in value]
    if not isinstance(value, dict):
        return None
    return {k: keys(v) for k, v in value.items() if k not in ADDED_SINCE and not k.endswith("_details")}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_typed_stream_has_the_events_of_the_real_server(server: Server, path: str) -> None:
    status, body = server.post(path, {**ASKED[path], "stream": True, "model": "tiny"})
    captured = CAPTURED[f"{path.removeprefix('/v1/')}_stream"]
    assert status == 200
    assert [[kind, keys(data)] for kind, data in typed(body)] == [[kind, keys(data)] for kind, data in captured]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_typed_answer_has_the_fields_of_the_real_server(server: Server, path: str) -> None:
    status, body = server.post(path, {**ASKED[path], "model": "tiny"})
    captured = CAPTURED[path.removeprefix("/v1/")]
    assert status == 200
    assert keys(json.loads(body)).keys() - {"stop_sequence"} == keys(captured).keys()
    status_of = (json.loads(body).get("status"), json.loads(body).get("stop_reason"))
    assert status_of == (captured.get("status"), captured.get("stop_reason"))


def test_typed_refusals_are_those_of_the_real_server(server: Server) -> None:
    assert server.post("/v1/messages", {**ASKED["/v1/messages"], "model": "tiny2"}) == (
        404,
        json.dumps(CAPTURED["messages_unknown_model"], separators=(",", ":")),
    )
    body = {**ASKED["/v1/responses"], "previous_response_id": "resp_nope"}
    status, text = server.post("/v1/responses", body)
    assert (status, json.loads(text)) == (404, CAPTURED["responses_unknown_id"])


def test_responses_go_on_from_an_earlier_one(server: Server) -> None:
    _, first = server.post("/v1/responses", {**ASKED["/v1/responses"], "request_id": "resp_one"})
    assert json.loads(first)["id"] == "resp_one"
    _, second = server.post("/v1/responses", {**ASKED["/v1/responses"], "previous_response_id": "resp_one"})
    tokens = [json.loads(text)["usage"]["input_tokens"] for text in (first, second)]
    assert tokens[1] > 2 * tokens[0]  # both questions, and the first answer


def test_typed_endpoints_are_missing_in_old_eras(start: Start) -> None:
    old = start(era="0.9")
    assert [old.post(path, body)[0] for path, body in ASKED.items()] == [200, 404, 404]


def test_typed_streams_end_as_in_the_real_server_when_the_engine_dies(start: Start) -> None:
    server = start(model="tiny", speed=0.2)
    ended: dict[str, str] = {}
    begun = threading.Barrier(len(ASKED) + 1)

    def ask(path: str, body: dict[str, Any]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        limit = {k: 3000 for k in body if k.startswith("max_")}
        asked = json.dumps({**body, **limit, "stream": True})
        connection.request("POST", path, asked, {"content-type": "application/json"})
        answer = connection.getresponse()
        read = answer.readline()
        begun.wait(20)
        try:
            ended[path] = (read + answer.read()).decode()
        except http.client.IncompleteRead:
            ended[path] = "cut"
        connection.close()

    threads = [threading.Thread(target=ask, args=item) for item in ASKED.items()]
    for thread in threads:
        thread.start()
    begun.wait(20)
    time.sleep(0.1)  # so that tokens are on their way
    server.core.kill()
    for thread in threads:
        thread.join(20)
    assert "EngineCore encountered an issue" in ended["/v1/completions"]
    assert ended["/v1/responses"] == "cut"
    kind, error = typed(ended["/v1/messages"])[-1]
    real = typed(CAPTURED["messages_death"])[0][1]
    assert (kind, error["error"]["type"]) == ("error", real["error"]["type"])
    assert error["error"]["message"].splitlines()[-3:] == real["error"]["message"].splitlines()[-3:]


def test_pooling_endpoints_answer_each_text(server: Server) -> None:
    _, body = server.post("/v1/embeddings", {"input": ["the of", "and to", "the of"]})
    data = json.loads(body)
    vectors = [d["embedding"] for d in data["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(v * v for v in vectors[0]) == pytest.approx(1)
    assert data["usage"]["prompt_tokens"] == 12  # two words and two special tokens each
    for path in ("/score", "/v1/score"):
        _, body = server.post(path, {"text_1": "the", "text_2": ["of", "and"]})
        assert [d["index"] for d in json.loads(body)["data"]] == [0, 1]
    _, body = server.post("/v1/rerank", {"query": "the", "documents": ["of", "and", "to"]})
    scores = [r["relevance_score"] for r in json.loads(body)["results"]]
    assert scores == sorted(scores, reverse=True)
    assert json.loads(body)["usage"]["prompt_tokens"] == 15


def test_pooling_endpoints_refuse_what_they_cannot_read(server: Server) -> None:
    assert server.post("/v1/embeddings", {"text": "a"})[0] == 400
    assert server.post("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})[0] == 400
    status, body = server.post("/v1/embeddings", {"input": "the " * 50_000})
    assert (status, "maximum context length" in body) == (400, True)


def test_transcriptions_read_a_form_with_a_file(server: Server) -> None:
    def ask(file: bytes, **fields: str) -> tuple[int, str]:
        parts = [f'--b\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
        head = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        body = ("".join(parts) + head).encode() + file + b"\r\n--b--\r\n"
        answer: tuple[int, str] = server.raw(
            "POST", "/v1/audio/transcriptions", body, "multipart/form-data; boundary=b"
        )
        return answer

    file = wav(2, bytes(16), 0)
    status, body = ask(file, max_completion_tokens="3")
    assert status == 200
    assert json.loads(body)["usage"] == {"type": "duration", "seconds": 2}
    status, body = ask(file, max_completion_tokens="3", stream="true", stream_include_usage="true")
    *chunks, done = [line.removeprefix("data: ") for line in body.strip().split("\n\n")]
    assert (status, done, json.loads(chunks[-1])["usage"]["completion_tokens"]) == (200, "[DONE]", 3)
    assert json.loads(chunks[-2])["choices"][0]["finish_reason"] == "length"
    assert ask(b"RIFFnothing")[0] == 400
    assert server.post("/v1/audio/transcriptions", {"file": "a"})[0] == 400


def test_chat_takes_audio_where_the_model_does(server: Server, start: Start) -> None:
    data = base64.b64encode(wav(2, bytes(16), 0)).decode()
    content = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}, {"type": "text", "text": "hi"}]
    status, body = server.chat(content, max_tokens=2)
    assert (status, "At most 0 audio(s) may be provided in one prompt." in body) == (400, True)
    hearing = start(model="tiny", limit_mm_per_prompt={"audio": 1})
    status, body = hearing.chat(content, max_tokens=2)
    text_only = json.loads(hearing.chat("hi", max_tokens=2)[1])["usage"]["prompt_tokens"]
    assert (status, json.loads(body)["usage"]["prompt_tokens"]) == (200, text_only + 50)  # 25 tokens a second
