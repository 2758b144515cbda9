import http.client
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.conftest import Start
from tests.waiting import until

LONG = {"messages": [{"role": "user", "content": " river" * 1500}], "max_tokens": 3}


def lmdeploy(start: Start, era: str, *defects: str, **flags: object) -> Any:
    return start(dialect="lmdeploy", era=era, defects=defects, cache_max_entry_count=0.1, **flags)


def test_kv_capacity_as_500_answers_a_bare_500(start: Start) -> None:
    server = lmdeploy(start, "0.6", "kv_capacity_as_500")
    assert server.post("/v1/chat/completions", LONG) == (500, "Internal Server Error")
    with pytest.raises(http.client.IncompleteRead):
        server.post("/v1/chat/completions", {**LONG, "stream": True})
    until(lambda: "1 validation error for ChatCompletionResponseStreamChoice" in server.text)
    text = server.text
    assert "pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatCompletionResponseChoice" in text
    assert "[type=literal_error, input_value='error', input_type=str]" in text
    assert '"POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error' in text
    for line in (
        "device<0> free gpu memory: 6784 mb",
        "estimated max runtime memory: 5061 mb",
        "block num: 21",
        "block_size=64, num_cpu_blocks=128, num_gpu_blocks=21",
        "Initialize cache engine with 21 gpu blocks and 128 cpu blocks.",
    ):
        assert line in text
    assert server.get("/health") == (200, "")


def test_lmdeploy_refuses_the_same_input_with_400_without_the_defect(shared: Start) -> None:
    server = lmdeploy(shared, "0.6")
    status, body = server.post("/v1/chat/completions", LONG)
    assert status == 400
    assert json.loads(body) == {
        "message": "The request exceeds the model context length.",
        "type": "invalid_request_error",
        "code": 400,
        "param": None,
        "object": "error",
    }


@pytest.mark.parametrize(
    ("era", "status", "text"),
    [
        ("0.7.3", 200, '"content":"internal error happened"'),
        ("0.10", 200, '"content":"internal error happened, status code ResponseType.INPUT_LENGTH_ERROR"'),
        ("0.18", 400, "The request exceeds the model context length."),
    ],
)
def test_lmdeploy_engine_error_has_the_form_of_its_era(shared: Start, era: str, status: int, text: str) -> None:
    server = lmdeploy(shared, era)
    for stream in (False, True):
        got, body = server.post("/v1/chat/completions", {**LONG, "stream": stream})
        assert got == (200 if stream else status)
        assert text in body
        if stream:
            assert body.endswith("data: [DONE]\n\n")


def test_lmdeploy_input_limit_is_exact(shared: Start) -> None:
    server = lmdeploy(shared, "0.18")
    info = json.loads(json.loads(server.get("/distserve/engine_info")[1]))
    assert (info["block_size"], info["num_gpu_blocks"]) == (64, 21)
    chat = json.loads(server.post("/v1/encode", {"input": " river", "do_preprocess": True})[1])["length"]

    def status(tokens: int) -> int:
        content = " river" * (tokens - chat + 1)
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        return int(server.post("/v1/chat/completions", body)[0])

    assert [status(1216), status(1217)] == [200, 400]


def test_lmdeploy_stream_has_a_role_in_every_chunk_and_usage_on_request(shared: Start) -> None:
    server = lmdeploy(shared, "0.18")
    body = server.chat(max_tokens=4, ignore_eos=True, stream=True, stream_options={"include_usage": True})[1]
    chunks = [json.loads(line[6:]) for line in body.split("\n\n") if line.startswith("data: {")]
    assert all(c["choices"][0]["delta"]["role"] == "assistant" for c in chunks[:-1])
    assert "finish_reason" not in chunks[0]["choices"][0]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert body.endswith("data: [DONE]\n\n")


def test_lmdeploy_models_contain_no_length(shared: Start) -> None:
    card = json.loads(lmdeploy(shared, "0.18").get("/v1/models")[1])["data"][0]
    assert card["owned_by"] == "lmdeploy"
    assert "max_model_len" not in card


def test_lmdeploy_bad_request_has_the_form_of_its_era(shared: Start) -> None:
    old, new = lmdeploy(shared, "0.6"), lmdeploy(shared, "0.18")
    assert old.post("/v1/chat/completions", {})[0] == 422
    assert new.post("/v1/chat/completions", {})[0] == 400
    assert json.loads(old.chat(model="nope")[1])["message"] == "The model `nope` does not exist."
    assert json.loads(new.chat(model="nope")[1])["message"] == "The model 'nope' does not exist."
    broken = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    assert old.chat(broken, max_tokens=1)[0] == 200, "up to 0.12 an image that cannot be read becomes a black one"
    assert json.loads(new.chat(broken)[1])["message"] == "Request preprocessing failed."


def test_lmdeploy_metrics_have_the_real_names(shared: Start, captures: Path) -> None:
    server = lmdeploy(shared, "0.18")
    server.chat(max_tokens=2)
    real = set(json.loads((captures / "lmdeploy_metric_names.json").read_text()))
    names = re.findall(r"^(lmdeploy:\w+)", server.get("/metrics")[1], re.MULTILINE)
    ours = {re.sub("_(bucket|count|sum)$", "", name) for name in names}
    assert ours <= real
    assert "lmdeploy:gpu_cache_usage_perc" in ours


def test_lmdeploy_health_reports_a_dead_engine_from_0_14(start: Start) -> None:
    server = lmdeploy(start, "0.18")
    server.core.kill()
    until(lambda: server.get("/health")[0] == 503)
    assert "PyTorch ZMQ engine process is not alive." in server.get("/health")[1]
    assert server.chat()[0] == 500
    assert server.process.poll() is None


def test_lmdeploy_server_ends_with_its_engine_before_0_7(start: Start) -> None:
    server = lmdeploy(start, "0.6")
    server.core.kill()
    assert server.process.wait(60) == 1
