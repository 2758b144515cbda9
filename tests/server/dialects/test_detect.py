"""Detection of servers from pages of real ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.core.http_answer import HttpAnswer
from loadchaos.server.dialects.detect import detect, probed_paths
from loadchaos.server.dialects.gateways import is_litellm


def page(data: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {"content-type": "application/json"}, json.dumps(data))


NOT_FOUND = page({"detail": "Not Found"}, 404)
VLLM_MODELS = {"object": "list", "data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 4096}]}
LMDEPLOY_MODELS = {"data": [{"id": "fake-model", "owned_by": "lmdeploy", "permission": [{"id": "modelperm-x"}]}]}
VLLM = {
    "/v1/models": page(VLLM_MODELS),
    "/version": page({"version": "0.32.0"}),
    "/health": HttpAnswer(200),
    "/metrics": HttpAnswer(200, {}, "# HELP x\nvllm:num_requests_running 0\n"),
    "/reset_mm_cache": page({"detail": "Method Not Allowed"}, 405),
    "/distserve/engine_info": NOT_FOUND,
}
LMDEPLOY = {
    "/v1/models": page(LMDEPLOY_MODELS),
    "/health": page({"status": "healthy", "message": ""}),
    "/metrics": HttpAnswer(200, {}, "lmdeploy:num_requests_running 0\n"),
    "/openapi.json": page({"paths": {"/v1/responses": {}, "/generate": {}, "/distserve/engine_info": {}}}),
    "/distserve/engine_info": page("{}"),
    "/reset_mm_cache": NOT_FOUND,
    "/version": NOT_FOUND,
}


def test_detect_vllm_in_development_mode() -> None:
    found = detect(VLLM)
    assert (found.dialect.name, found.version) == ("vllm", "0.32.0")
    assert any("owned_by vllm" in sign for sign in found.signs)


def test_detect_sees_a_gateway_that_passes_only_the_api_on() -> None:
    health = {"/health": HttpAnswer(200), "/metrics": NOT_FOUND, "/version": NOT_FOUND}
    assert detect(VLLM).own_pages
    assert detect({**LMDEPLOY, "/metrics": NOT_FOUND}).own_pages
    for pages in (VLLM, LMDEPLOY):
        behind = detect({"/v1/models": pages["/v1/models"], **health})
        assert (behind.dialect.name != "openai", behind.own_pages) == (True, False)


def test_detect_vllm_by_metrics_alone_has_no_version() -> None:
    found = detect({"/metrics": VLLM["/metrics"]})
    assert (found.dialect.name, found.version) == ("vllm", None)


def test_detect_old_vllm_gives_the_dialect_of_its_era() -> None:
    found = detect({**VLLM, "/version": page({"version": "0.8.5"})})
    assert found.dialect.health_knows_death is False


@pytest.mark.parametrize(
    ("changes", "at_least", "below", "knows_death"),
    [
        ({}, "0.16", None, True),
        ({"/openapi.json": page({"paths": {"/v1/responses": {}, "/v1/chat/interactive": {}}})}, "0.14", "0.16", True),
        ({"/openapi.json": page({"paths": {"/generate": {}, "/v1/chat/interactive": {}}})}, "0.11", "0.14", False),
        ({"/openapi.json": page({"paths": {"/v1/chat/interactive": {}}})}, None, "0.9", False),
        ({"/openapi.json": NOT_FOUND}, "0.14", None, True),
        ({"/openapi.json": NOT_FOUND, "/health": HttpAnswer(200)}, None, "0.14", False),
    ],
)
def test_detect_lmdeploy_era_by_paths_and_health(
    changes: dict[str, HttpAnswer], at_least: str | None, below: str | None, knows_death: bool
) -> None:
    found = detect({**LMDEPLOY, **changes})
    assert (found.dialect.name, found.version) == ("lmdeploy", None)
    assert (found.at_least, found.below) == (at_least, below)
    assert found.dialect.health_knows_death is knows_death


def test_detect_lmdeploy_0_15_allows_empty_answers_over_length() -> None:
    assert (
        "empty"
        in detect({**LMDEPLOY, "/openapi.json": page({"paths": {"/v1/chat/interactive": {}}})}).dialect.over_length
    )
    assert detect(LMDEPLOY).dialect.over_length == ("rejected",)


def test_detect_transformers_by_its_page_to_load_a_model() -> None:
    found = detect({
        "/v1/models": page({"object": "list", "data": []}), "/version": NOT_FOUND, "/metrics": NOT_FOUND,
        "/health": page({"status": "ok"}), "/load_model": page({"detail": "Method Not Allowed"}, 405),
    })  # fmt: skip
    assert (found.dialect.name, found.version, found.own_pages) == ("transformers", None, True)


LLAMA_MODEL = {"id": "tiny-text", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_ctx_train": 4096}}
LLAMA_PROPS = {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 2, "build_info": "b1-0c1e570"}


def test_detect_llama_cpp_and_the_context_of_its_slots() -> None:
    pages = {
        "/v1/models": page({"object": "list", "data": [LLAMA_MODEL]}), "/health": page({"status": "ok"}),
        "/metrics": HttpAnswer(200, {}, "# HELP x\nllamacpp:requests_processing 0\n"), "/props": page(LLAMA_PROPS),
    }  # fmt: skip
    found = detect(pages)
    assert (found.dialect.name, found.own_pages) == ("llamacpp", True)
    assert found.version == "b1-0c1e570"
    assert len(found.signs) == 3
    assert found.dialect.limits_page in probed_paths()
    assert found.dialect.limits(json.dumps(LLAMA_PROPS), None) == {"max_model_len": 2048}
    for other in ("{}", "[]", "not json", '{"default_generation_settings": {"n_ctx": null}}'):
        assert found.dialect.limits(other, None) == {}


SGLANG_INFO = {
    "model_path": "/models/tiny-text", "context_length": 4096, "page_size": 1, "disable_radix_cache": False, "tp_size": 1,
    "max_running_requests": None, "speculative_algorithm": None, "max_total_num_tokens": 4096, "max_req_input_len": 4090,
    "internal_states": [{}], "version": "0.5.23",
}  # fmt: skip


def test_detect_sglang_and_its_lengths() -> None:
    models = [{"id": "tiny", "owned_by": "sglang", "root": "tiny", "parent": None, "max_model_len": 4096}]
    pages = {
        "/v1/models": page({"object": "list", "data": models}), "/health": HttpAnswer(200), "/version": NOT_FOUND,
        "/get_server_info": page(SGLANG_INFO),
        "/metrics": HttpAnswer(200, {}, "sglang:num_running_reqs{} 0.0\n"),
    }  # fmt: skip
    found = detect(pages)
    assert (found.dialect.name, found.version) == ("sglang", "0.5.23")
    assert found.dialect.limits_page in probed_paths()
    limits = found.dialect.limits(json.dumps(SGLANG_INFO), "0.5.23")
    assert limits == {"capacity_tokens": 4096, "kv_block_size": 1, "input_limit": 4089, "speculative_decoding": False}
    assert found.dialect.read_settings(SGLANG_INFO).values == {"tensor_parallel_size": 1, "prefix_caching": True}
    for other in ("{}", "[]", "not json", '{"max_req_input_len": 4090, "version": "0.5.23"}'):
        assert found.dialect.limits(other, None) == {}
    assert found.dialect.read_settings([]).values == {}


def test_detect_without_signs_is_openai() -> None:
    found = detect({"/v1/models": page({"data": [{"id": "m", "owned_by": "somebody"}]}), "/health": NOT_FOUND})
    assert found.dialect.name == "openai"


@given(
    bodies=st.lists(st.text(max_size=40), min_size=len(probed_paths()), max_size=len(probed_paths())),
    status=st.integers(100, 599),
)
def test_detect_never_raises_for_a_body(bodies: list[str], status: int) -> None:
    detect({path: HttpAnswer(status, {}, body) for path, body in zip(probed_paths(), bodies, strict=True)})


@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda c: st.lists(c) | st.dictionaries(st.sampled_from(["data", "id", "owned_by", "version", "paths"]), c),
        max_leaves=8,
    )
)
def test_detect_never_raises_for_json(data: Any) -> None:
    detect({path: page(data) for path in probed_paths()})


@pytest.mark.parametrize(
    ("status", "headers", "body", "litellm"),
    [
        (200, {}, '"I\'m alive!"', True),
        (200, {"x-litellm-version": "1.80"}, "", True),
        (200, {"content-type": "text/html"}, "<html>", False),
        (404, {"x-litellm-version": "1.80"}, "", False),
        (None, {}, "", False),
    ],
)
def test_litellm_is_recognised_by_its_liveness_page(
    status: int | None, headers: dict[str, str], body: str, litellm: bool
) -> None:
    assert is_litellm(status, headers, body) is litellm
