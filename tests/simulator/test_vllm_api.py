"""vLLM's API compared with captures of vLLM 0.32.0 and 0.22.1."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.conftest import Png, Server, Start
from tests.waiting import until


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    return start(
        model="tiny",
        max_model_len=4096,
        limit_mm_per_prompt={"image": 2, "video": 0},
        num_speculative_tokens=2,
        draft_acceptance=0.9,
        speed=4,
    )


def events(body: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


CASES = json.loads((Path(__file__).parent / "captures" / "vllm_0.32_errors.json").read_text())


@pytest.mark.parametrize("name", sorted(CASES))
def test_vllm_refusal_has_the_real_status_and_body(server: Server, name: str) -> None:
    case = CASES[name]
    method, path = case["request"].split()
    kind = None if name == "no_content_type" or method == "GET" else "application/json"
    status, body = server.raw(method, path, case["sent"], kind)
    expected = re.sub(r"Vocabulary size: \d+", "", case["body"])
    assert (status, re.sub(r"Vocabulary size: \d+", "", body)) == (case["status"], expected)


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("choice", "flags"),
    [
        (None, "--enable-auto-tool-choice and --tool-call-parser"),
        ("required", "--tool-call-parser"),
        ({"type": "function", "function": {"name": "weather"}}, "--tool-call-parser"),
        ("none", None),
    ],
)
def test_vllm_tools_need_a_parser_unless_choice_is_none(server: Server, choice: Any, flags: str | None) -> None:
    status, body = server.chat(max_tokens=3, tools=TOOLS, **({"tool_choice": choice} if choice else {}))
    assert status == (400 if flags else 200)
    assert f"requires {flags} to be set" in body if flags else "requires" not in body


def test_vllm_reads_earlier_tool_calls_and_refuses_broken_arguments(server: Server) -> None:
    def talk(arguments: str) -> Any:
        function = {"name": "weather", "arguments": arguments}
        called = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        }
        result = {"role": "tool", "tool_call_id": "a", "content": "warm"}
        return server.chat(max_tokens=3, messages=[{"role": "user", "content": "hi"}, called, result])

    answers = [talk(arguments) for arguments in ('{"place": "x"}', "{}")]
    assert [status for status, _ in answers] == [200, 200]
    longer, shorter = (json.loads(body)["usage"]["prompt_tokens"] for _, body in answers)
    assert longer > shorter
    assert talk('{"place": ')[0] == 400


def called(server: Server, *, stream: bool, choice: Any = "required") -> tuple[str, str]:
    """Arguments of a demanded call with a mark of tool parsers, and the finish reason."""
    quote = {"type": "string", "enum": ["before </tool_call> after"]}
    parameters = {"type": "object", "required": ["quote"], "properties": {"quote": quote}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    body = server.chat(max_tokens=100, tools=[tool], tool_choice=choice, stream=stream)[1]
    choices = [c for e in (events(body)[:-1] if stream else [json.loads(body)]) for c in e["choices"]]
    calls = [call for c in choices for call in c["delta" if stream else "message"].get("tool_calls") or ()]
    return "".join(c["function"].get("arguments", "") for c in calls), choices[-1]["finish_reason"]


@pytest.mark.parametrize("stream", [True, False])
def test_vllm_call_is_whole_unless_its_parser_ends_it_at_a_mark(shared: Start, stream: bool) -> None:
    flags = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    whole = '{"quote":"before </tool_call> after"}'
    assert called(shared(**flags), stream=stream) == (whole, "tool_calls")
    named = {"type": "function", "function": {"name": "f"}}
    assert called(shared(**flags), stream=stream, choice=named) == (whole, "stop")
    broken = shared(**flags, defects=("call_cut_at_mark",))
    assert called(broken, stream=stream) == ('{"quote":"before ', "tool_calls")


def test_vllm_tools_are_accepted_with_a_parser(shared: Start) -> None:
    status, _ = shared(enable_auto_tool_choice=True, tool_call_parser="hermes").chat(max_tokens=3, tools=TOOLS)
    assert status == 200


def test_vllm_stream_begins_with_the_role_and_ends_with_usage_and_done(server: Server) -> None:
    status, body = server.chat(max_tokens=12, ignore_eos=True, stream=True, stream_options={"include_usage": True})
    first, *chunks, usage, done = events(body)
    assert status == 200
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert done == "[DONE]"
    words = "".join(c["choices"][0]["delta"]["content"] for c in chunks).split()
    assert len(words) == 12
    assert len(chunks) < 12, "accepted drafts come in one chunk with the token they follow"
    assert len({c["id"] for c in [first, *chunks, usage]}) == 1


def test_vllm_answer_counts_its_tokens(server: Server) -> None:
    body = json.loads(server.chat(max_tokens=7, ignore_eos=True)[1])
    assert body["object"] == "chat.completion"
    assert body["usage"]["completion_tokens"] == 7
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 7
    assert body["choices"][0]["finish_reason"] == "length"


def test_vllm_greedy_answer_depends_on_the_prompt_alone(server: Server) -> None:
    def answer(content: str, **fields: Any) -> str:
        return str(json.loads(server.chat(content, max_tokens=8, **fields)[1])["choices"][0]["message"]["content"])

    assert answer("one", temperature=0) == answer("one", temperature=0)
    assert answer("one", temperature=0) != answer("two", temperature=0)
    assert answer("one", seed=5) == answer("one", seed=5)
    assert answer("one", seed=5) != answer("one", seed=6)


def test_vllm_answer_ends_before_a_stop_text(server: Server) -> None:
    whole = json.loads(server.chat("stop", max_tokens=20, temperature=0)[1])["choices"][0]["message"]["content"]
    stop = whole.split()[4]
    choice = json.loads(server.chat("stop", max_tokens=20, temperature=0, stop=[stop])[1])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop
    assert choice["message"]["content"] == whole[: whole.index(stop)]


def test_vllm_n_answers_come_in_one_body(server: Server) -> None:
    body = json.loads(server.chat(max_tokens=3, n=3, temperature=1)[1])
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 9


def test_vllm_token_ids_prompt_has_an_exact_context_limit(server: Server) -> None:
    longest = {"prompt": [1000] * 4095, "max_tokens": 2}
    assert json.loads(server.post("/v1/completions", longest)[1])["usage"]["completion_tokens"] == 1
    status, body = server.post("/v1/completions", {"prompt": [1000] * 4097, "max_tokens": 1})
    assert status == 400
    assert json.loads(body)["error"]["message"] == (
        "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
        "(parameter=input_tokens, value=4097)"
    )


def test_vllm_text_far_too_long_is_refused_before_tokenizing(server: Server) -> None:
    status, body = server.chat("x" * 90_000)
    assert status == 400
    assert "(more than 81920 characters, which is the upper bound for 4096 input tokens)" in body


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(1, 1, 64), (336, 336, 100), (512, 512, 256), (1024, 1024, 1024), (1920, 1080, 2040)],
)
def test_vllm_image_tokens_are_those_of_qwen3_vl(
    server: Server, png: Png, width: int, height: int, tokens: int
) -> None:
    text = json.loads(server.chat([{"type": "text", "text": "hi"}], max_tokens=1)[1])["usage"]["prompt_tokens"]
    content = [png(width, height), {"type": "text", "text": "hi"}]
    status, body = server.chat(content, max_tokens=1)
    assert status == 200
    assert json.loads(body)["usage"]["prompt_tokens"] == text + tokens + 2
    counted = json.loads(server.post("/tokenize", {"messages": [{"role": "user", "content": content}]})[1])
    assert counted["count"] == text + tokens + 2


def test_vllm_too_many_images_are_refused(server: Server, png: Png) -> None:
    status, body = server.chat([png(8, 8)] * 3)
    assert status == 400
    assert json.loads(body)["error"]["message"] == "At most 2 image(s) may be provided in one prompt. (parameter=image)"


def test_vllm_images_too_large_for_the_context_are_refused(server: Server, png: Png) -> None:
    status, body = server.chat([png(2048, 2048), png(1024, 1024)], max_tokens=1)
    assert status == 400
    assert "longer than the maximum model length of 4096" in body


def test_vllm_text_model_refuses_images(start: Start, png: Png) -> None:
    status, body = start(images=False, model="words").chat([png(8, 8)])
    assert status == 400
    assert "is not a multimodal model" in body


def test_vllm_tokenize_counts_the_tokens_of_a_text(server: Server) -> None:
    text = " the river, Über 12 <|im_end|>\n zz"
    tokens = json.loads(server.post("/tokenize", {"prompt": text})[1])
    assert tokens["max_model_len"] == 4096
    assert tokens["count"] == len(tokens["tokens"])


def test_vllm_models_health_and_version_answer(server: Server) -> None:
    card = json.loads(server.get("/v1/models")[1])["data"][0]
    assert (card["id"], card["max_model_len"], card["owned_by"]) == ("tiny", 4096, "vllm")
    assert server.get("/health") == (200, "")
    assert server.get("/version") == (200, '{"version":"0.32.0"}')


def families(page: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))


def test_vllm_metrics_have_the_real_names_types_and_labels(server: Server, captures: Path) -> None:
    server.chat(max_tokens=2)
    page = server.get("/metrics")[1]
    real = json.loads((captures / "vllm_metric_names.json").read_text())
    ours = families(page)
    assert {name: real["types"].get(name) for name in ours} == ours
    for line in page.splitlines():
        name = re.match(r"[\w:]+", line)
        if name and name.group() in real["labels"]:
            labels = set(re.findall(r'(\w+)="', line)) - {"le"}
            assert sorted(labels) == real["labels"][name.group()], line
    for needed in ("vllm:iteration_tokens_total", "vllm:spec_decode_num_drafts_total", "process_start_time_seconds"):
        assert needed in ours
    assert re.search(r'vllm:cache_config_info\{.*block_size="16".*num_gpu_blocks="\d+"', page)


def metric(server: Server, name: str) -> float:
    return sum(
        float(x) for x in re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    )


def test_vllm_metrics_count_requests_and_tokens(server: Server, png: Png) -> None:
    names = (
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "mm_cache_queries_total",
        "mm_cache_hits_total",
    )
    before = [metric(server, name) for name in names]
    image = png(64, 64, 991)
    usage = [json.loads(server.chat([image], max_tokens=5, ignore_eos=True)[1])["usage"] for _ in range(2)]
    grown = [metric(server, name) - b for name, b in zip(names, before, strict=True)]
    assert grown == [sum(u["prompt_tokens"] for u in usage), 10, 2, 2, 1]


def test_vllm_image_uuid_is_its_cache_key(server: Server, png: Png) -> None:
    before = metric(server, "mm_cache_hits_total")
    for name, image in (("a", png(64, 64, 5)), ("b", png(64, 64, 5)), ("a", png(64, 64, 6))):
        part = {**image, "uuid": name}
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
        assert server.post("/v1/chat/completions", body)[0] == 200
    assert metric(server, "mm_cache_hits_total") - before == 1


def test_vllm_disconnect_aborts_the_request_in_the_engine(server: Server) -> None:
    import socket

    body = json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        client.sendall(head % len(body) + body)
        while b"text_completion" not in client.recv(65536):
            pass
        assert metric(server, "num_requests_running") == 1
    until(lambda: metric(server, "num_requests_running") == 0)


def test_vllm_development_endpoints_answer_as_measured(server: Server) -> None:
    assert server.post("/reset_mm_cache", {}) == (200, "")
    assert server.get("/reset_mm_cache") == (405, '{"detail":"Method Not Allowed"}')
    assert server.post("/reset_encoder_cache", {}) == (200, "")
    assert server.post("/reset_prefix_cache", {}) == (200, '{"success":true}')
    assert server.get("/is_sleeping") == (200, '{"is_sleeping":false}')
    assert server.post("/pause?mode=bogus", {})[0] == 400
    info = json.loads(server.get("/server_info?config_format=json")[1])
    assert info["vllm_config"]["max_model_len"] == 4096


def test_vllm_paused_server_answers_health_only_until_resume(server: Server) -> None:
    long = server.chat_beside(max_tokens=3000, ignore_eos=True, stream=True)
    until(lambda: metric(server, "num_requests_running") == 1)
    assert server.post("/pause?mode=abort", {}) == (200, '{"status":"paused"}')
    assert '"finish_reason":"abort"' in long.result(5)[1]
    assert long.result()[1].endswith("data: [DONE]\n\n")
    assert server.get("/is_paused") == (200, '{"is_paused":true}')
    late = server.chat_beside(max_tokens=1)
    assert server.get("/health")[0] == 200
    with pytest.raises(TimeoutError):
        late.result(0.3)
    assert server.post("/resume", {}) == (200, '{"status":"resumed"}')
    assert late.result(5)[0] == 200


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_vllm_0_33_refuses_requests_while_it_is_paused(shared: Start, mode: str) -> None:
    server = shared(era="0.33")
    assert server.post(f"/pause?mode={mode}", {}) == (200, '{"status":"paused"}')
    status, body = server.chat(max_tokens=1)
    assert (status, json.loads(body)["error"]["type"]) == (503, "ServiceUnavailableError")
    status, body = server.chat(max_tokens=1, stream=True)
    assert status == 200
    assert "Generation is paused" in body
    assert server.post("/resume", {}) == (200, '{"status":"resumed"}')
    assert server.chat(max_tokens=1)[0] == 200


def test_vllm_0_33_lets_requests_wait_where_the_pause_keeps(shared: Start) -> None:
    server = shared(era="0.33")
    assert server.post("/pause?mode=keep", {})[0] == 200
    late = server.chat_beside(max_tokens=1)
    with pytest.raises(TimeoutError):
        late.result(0.3)
    assert server.post("/resume", {})[0] == 200
    assert late.result(5)[0] == 200


def test_vllm_abort_requests_ends_running_requests(server: Server) -> None:
    long = server.chat_beside(max_tokens=3000, ignore_eos=True)
    until(lambda: metric(server, "num_requests_running") == 1)
    assert server.post("/abort_requests", {"abort_all": True}) == (200, '{"status":"aborted","aborted":1}')
    assert json.loads(long.result(5)[1])["choices"][0]["finish_reason"] == "abort"


def test_vllm_development_endpoints_need_development_mode(start: Start) -> None:
    server = start(dev_mode=False)
    for path in ("/reset_mm_cache", "/sleep", "/pause", "/abort_requests"):
        assert server.post(path, {}) == (404, '{"detail":"Not Found"}')


@pytest.mark.parametrize(
    ("era", "present", "absent"),
    [
        ("0.8.1", "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("0.18", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ],
)
def test_vllm_era_has_its_own_names_bodies_and_endpoints(start: Start, era: str, present: str, absent: str) -> None:
    server = start(era=era)
    names = families(server.get("/metrics")[1])
    assert present in names
    assert absent not in names
    error = json.loads(server.chat(model="nope")[1])
    assert ("error" in error) is (era == "0.18")
    assert server.post("/reset_mm_cache", {})[0] == (200 if era == "0.18" else 404)


def test_vllm_requests_with_the_same_id_are_all_served(server: Server) -> None:
    import httpx

    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        answers.append(httpx.post(url, json=body, headers={"x-request-id": "same"}, timeout=10))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [(a.status_code, a.json()["id"], a.json()["usage"]["completion_tokens"]) for a in answers] == [
        (200, "cmpl-same", 200)
    ] * 3


def rendered(server: Server, path: str, body: Any) -> Any:
    status, text = server.post(f"/v1/{path}/render", body)
    return json.loads(text) if status == 200 else (status, json.loads(text).get("error", text))


def test_vllm_render_returns_the_prompt_of_the_engine(start: Start, png: Png) -> None:
    server = start(era="0.22.1", limit_mm_per_prompt=2, max_model_len=4096)
    content = [png(512, 512), {"type": "text", "text": "hi"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    found = rendered(server, "chat/completions", body)
    assert len(found["token_ids"]) == json.loads(server.chat(content, max_tokens=1)[1])["usage"]["prompt_tokens"]
    (place,) = found["features"]["mm_placeholders"]["image"]
    assert place["length"] == 256
    assert len(set(found["token_ids"][place["offset"] : place["offset"] + 256])) == 1
    texts = rendered(server, "completions", {"prompt": [" the of", " the"], "add_special_tokens": False})
    assert [len(one["token_ids"]) for one in texts] == [2, 1]
    status, error = rendered(server, "chat/completions", {"messages": [{"role": "user", "content": [png(8, 8)] * 3}]})
    assert (status, error["message"]) == (400, "At most 2 image(s) may be provided in one prompt. (parameter=image)")
    status, error = rendered(server, "completions", {"prompt": " the" * 5000, "max_tokens": 1})
    assert (status, "maximum context length is 4096 tokens" in error["message"]) == (400, True)


def test_vllm_render_is_off_in_newer_eras_by_default(server: Server, start: Start) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert rendered(server, "chat/completions", body) == (
        403,
        {  # verbatim from 0.32.0
            "message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
            "type": "PermissionDeniedError",
            "param": None,
            "code": 403,
        },
    )
    assert "token_ids" in rendered(start(enable_scale_out=True), "chat/completions", body)
    assert rendered(start(era="0.17"), "chat/completions", body)[0] == 404
