import asyncio
import contextlib
import json
from pathlib import Path

import httpx
import pytest

from loadchaos.core import typed_json
from loadchaos.core.errors import OptionError, TargetError
from loadchaos.core.model import Facts
from loadchaos.server.discovery import calibrate
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient, parse_target
from loadchaos.server.discovery.server_config import with_configuration
from tests.discovering import discovering
from tests.http_server import Asked, answering


def learn(url: str, wanted: CalibrationRequest) -> tuple[Facts, DiscoveryClient]:
    async def ask() -> tuple[Facts, DiscoveryClient]:
        async with discovering(url) as asker:
            return await calibrate.calibrate(asker, await calibrate.identify_server(asker, wanted), wanted), asker

    return asyncio.run(ask())


VLLM = ["--flag", "limit_mm_per_prompt=3"]


@pytest.mark.parametrize("embedded", [VLLM], indirect=True)
def test_calibrate_vllm_limits_text_and_images(embedded: str) -> None:
    facts, asker = learn(embedded, CalibrationRequest(((1024, 1024), (448, 448)), images_per_request=5))
    assert (facts.dialect, facts.version, facts.max_model_len) == ("vllm", "0.18.0", 16384)
    assert facts.images is True
    assert facts.max_images == 3
    assert facts.image_tokens == {"1024x1024": 1026, "448x448": 198}  # 1024 and 196, and two marks around each
    assert facts.text is not None
    assert facts.text.source == "tokenize"
    assert facts.sources["image_tokens"] == "/render, checked by usage"
    assert (facts.speculative_decoding, facts.development_endpoints) == (True, True)
    assert asker.generations == 2, "one for text, one for images"


@pytest.mark.parametrize("embedded", [["--flag", "max_model_len=1024"]], indirect=True)
@pytest.mark.parametrize("sizes", [((1024, 1024), (448, 448)), ((448, 448), (1024, 1024))])
def test_calibrate_remembers_images_that_are_longer_than_the_context(
    embedded: str, sizes: tuple[tuple[int, int], ...]
) -> None:
    facts, _ = learn(embedded, CalibrationRequest(sizes, images_per_request=1))
    assert facts.images is True
    assert facts.image_tokens == {"448x448": 198}
    assert facts.long_images == ("1024x1024",)
    assert "maximum model length of 1024" in facts.sources["long_images"]
    assert typed_json.from_json(Facts, typed_json.to_json(facts)) == facts


@pytest.mark.parametrize("embedded", [[]], indirect=True)
@pytest.mark.parametrize(
    ("told", "most", "source"),
    [(8, 8, "/server_info"), (None, None, "a request with 4 was accepted"), (1, None, "a request with 4 was accepted")],
)
async def test_accepted_images_do_not_replace_the_source_of_a_limit_and_refute_a_lower_one(
    embedded: str, told: int | None, most: int | None, source: str
) -> None:
    wanted = CalibrationRequest(((448, 448),), images_per_request=4)
    async with discovering(embedded) as asker:
        facts = await calibrate.identify_server(asker, wanted)
        known = {} if told is None else {"max_images": (told, "/server_info")}
        facts = await calibrate.calibrate(asker, with_configuration(facts, known), wanted)
    assert (facts.max_images, facts.sources["max_images"]) == (most, source)


NEW_LMDEPLOY = ["--dialect", "lmdeploy", "--era", "0.18", "--flag", "num_gpu_blocks=21"]


@pytest.mark.parametrize("embedded", [NEW_LMDEPLOY], indirect=True)
def test_calibrate_lmdeploy_reads_blocks_and_prompt_limit(embedded: str) -> None:
    facts, _ = learn(embedded, CalibrationRequest())
    assert (facts.dialect, facts.kv_blocks, facts.capacity_tokens, facts.input_limit) == ("lmdeploy", 21, 1344, 1216)
    assert facts.version is not None
    assert facts.text is not None
    assert facts.text.source == "encode"


@pytest.mark.parametrize("embedded", [VLLM], indirect=True)
@pytest.mark.parametrize(("name", "length"), [("another name", 16384), ("sim", 16384)])
async def test_identify_reads_the_context_behind_a_gateway(embedded: str, name: str, length: int) -> None:
    models = {"data": [{"id": name, "object": "model", "owned_by": "openai"}]}
    with answering(lambda asked: (200, models) if asked.path == "/v1/models" else (404, {})) as url:
        async with discovering(url, admin_url=embedded) as asker:
            facts = await calibrate.identify_server(asker, CalibrationRequest())
    assert (facts.dialect, facts.model, facts.max_model_len) == ("vllm", name, length)


@pytest.mark.parametrize("embedded", [["--flag", "images=false"]], indirect=True)
def test_calibrate_text_model_takes_no_images(embedded: str) -> None:
    facts, _ = learn(embedded, CalibrationRequest(((448, 448),), images_per_request=1))
    assert facts.images is False
    assert "400" in facts.sources["images"]


@pytest.mark.parametrize(("text", "images"), [(200, False), (400, None)])
def test_calibrate_text_model_without_usage_takes_no_images(text: int, images: bool | None) -> None:
    """A server that refuses text as well says nothing about images."""

    def reply(asked: Asked) -> tuple[int, object]:
        if asked.path == "/v1/models":
            return 200, {"data": [{"id": "m", "object": "model"}]}
        if asked.path != "/v1/chat/completions":
            return 404, {}
        if b"image_url" in asked.content:
            return 400, {"error": {"message": "m is not a multimodal model", "code": 400}}
        return text, {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "length"}]}

    with answering(reply) as url:
        facts, _ = learn(url, CalibrationRequest(((448, 448),), images_per_request=1))
    assert (facts.text, facts.images) == (None, images)


LMDEPLOY_LOG = """\
2024-12-10 09:59:59,000 - lmdeploy - INFO - async_engine.py:1 - input backend=pytorch, backend_config=PytorchEngineConfig(dtype='auto', tp=1, session_len=None, max_batch_size=128, block_size=64, num_cpu_blocks=0, num_gpu_blocks=0)
2024-12-10 10:00:00,000 - lmdeploy - DEBUG - engine.py:1 - block num: 21
2024-12-10 10:00:00,001 - lmdeploy - INFO - cache_engine.py:1 - build CacheEngine with config:CacheConfig(max_batches=128, block_size=64, num_cpu_blocks=128, num_gpu_blocks=21, window_size=-1)
"""  # noqa: E501 - a real line


@pytest.mark.parametrize(
    ("version", "limit"),
    [
        ("0.8", 1344),
        ("0.9.2", 1280),
        ("0.11.0", 1280),
        ("0.18", 1216),
        ("0.13 or earlier", None),
        ("0.9 to 0.10", None),
        ("0.11 to 0.13", None),
        ("0.14 to 0.15", 1216),
        ("0.16 or later", 1216),
    ],
)
def test_with_log_reads_blocks_of_old_lmdeploy(version: str, limit: int | None) -> None:
    facts = calibrate.with_log(Facts("u", "u", "lmdeploy", version=version), LMDEPLOY_LOG)
    assert (facts.kv_blocks, facts.capacity_tokens, facts.input_limit) == (21, 1344, limit)
    assert facts.sources["capacity_tokens"] == "the server's log"


def test_with_log_reads_context_length_of_lmdeploy() -> None:
    line = "2026-01-01 10:00:00,000 - lmdeploy - INFO - async_engine.py:1 - {} backend_config=PytorchEngineConfig({})\n"
    log = line.format("input", "tp=1, session_len=None") + line.format(
        "updated", "tp=1, session_len=8192, block_size=64"
    )
    facts = calibrate.with_log(Facts("u", "u", "lmdeploy", version="0.18", kv_blocks=200, input_limit=12672), log)
    assert (facts.max_model_len, facts.input_limit) == (8192, 12672)
    assert facts.sources["max_model_len"] == "the server's log"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("https://gw.example.com/team/llm/v1", "https://gw.example.com/team/llm"),
        ("127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_parse_target_keeps_the_path_prefix(text: str, url: str) -> None:
    assert parse_target(text) == url


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "http://user:secret@h:1"])
def test_parse_target_refuses_what_is_no_url(text: str) -> None:
    with pytest.raises(OptionError):
        parse_target(text)


def test_shipped_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loadchaos.core import resources

    monkeypatch.chdir(tmp_path)
    assert "mtp_mm" in resources.profiles()


@pytest.mark.parametrize(("model", "refused"), [("tiny-text", None), ("nonsense", "Server is pinned to")])
async def test_named_model_of_a_server_with_an_empty_list_is_asked(model: str, refused: str | None) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"object": "list", "data": []})
        if json.loads(request.content)["model"] != "tiny-text":
            detail = "Server is pinned to 'tiny-text'; requested 'nonsense'."
            return httpx.Response(400, json={"detail": detail})
        return httpx.Response(200, json={"choices": [{"message": {"content": "a"}}]})

    with pytest.raises(TargetError, match=refused) if refused else contextlib.nullcontext():
        async with discovering(serve=answer) as asker:
            facts = await calibrate.identify_server(asker, CalibrationRequest(model=model))
        assert facts.model == model


async def test_usage_that_does_not_grow_with_the_prompt_is_ignored() -> None:
    """Words that cost nothing would never fill a prompt."""
    body = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    with answering(lambda asked: (200, body) if asked.path == "/v1/chat/completions" else (404, {})) as url:
        async with discovering(url) as asker:
            facts = Facts(url, url, "openai", model="m")
            assert (await calibrate.calibrate(asker, facts, CalibrationRequest())).text is None
