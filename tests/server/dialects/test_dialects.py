"""The tables of each dialect against bodies that real servers sent."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadchaos.server.dialects import DIALECTS
from loadchaos.server.dialects.base import version_key

# Bodies of vLLM 0.32.0 to 64 bad requests, cut at 600 characters.
BODIES: dict[str, tuple[int, str]] = json.loads((Path(__file__).parent / "vllm_0.32_errors.json").read_text())
NO_ROUTE = {"404_path", "405", "models_id"}
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


CB_DEAD = (
    '{"error":"CB worker died during request 9bf6860d: No requests can be scheduled and no requests can be offloaded."}',
    '{"error":"CB worker is dead and cannot accept request 71e1de5a: No requests can be scheduled"}',
)
"""Bodies of transformers serve 5.19.0, cut."""

REFUSALS: dict[str, tuple[str, ...]] = {
    "vllm": (
        "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)",
        "some_option must be positive, got -1. (parameter=some_option, value=-1)",
        "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.",
        "Request decoded media exceeds VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES=715827880 (720000000 bytes).",
        "Structured output processing only supports one backend per engine. The engine is already using 'xgrammar', but",
        'Grammar error: at 1(8): invalid regex "(?=a)b+" (in regex): regex parse error:',
        "Invalid grammar specification: Failed to convert the grammar from GBNF to Lark: Rule 'x' not found",
    ),
    "lmdeploy": (
        "Input length (5019) must be smaller than the model context length (4096).",
        "The request exceeds the model context length.",
        "The model 'nope' does not exist.",
        "9: JSON decode error",
        "temperature: Input should be a valid number, unable to parse string as a number",
        "The max_tokens 0 must be a positive integer.",
        "The top_p 0.0 must be in (0, 1].",
        "Request preprocessing failed.",
        "Multimodal input is not supported by this model.",
        "Invalid data URL: data:image/png;base64,",
        "Invalid number of data characters",
        "URL is blocked for security reasons: Blocked non-global IP detected: 127.0.0.1",
        '{"detail":[{"type":"int_parsing","loc":["body","max_tokens"]}]}',
    ),
    "sglang": (
        """{"object":"error","message":"1 validation error:","type":"Bad Request","param":null,"code":400}""",
        '{"object":"error","message":"Messages cannot be empty.","type":"BadRequestError","param":null,"code":400}',
        '{"object":"error","message":"range() arg 3 must not be zero","type":"BadRequest","param":null,"code":400}',
        '{"error": {"object": "error", "message": "Failed to compile json grammar", "type": "BAD_REQUEST", "code": 400}}',
        """{"object":"error","message":"Input length (4090 tokens) exceeds the maximum allowed length (4090 tokens)."}""",
        """{"error":{"message":"The model 'nope' does not exist","code":"model_not_found"}}""",
    ),
    "transformers": (
        """{"detail":"Unexpected fields in the request: {'ignore_eos'}"}""",
        """{"detail":"Server is pinned to 'tiny-text'; requested 'nonsense'."}""",
        '{"detail":"prompt must be a string."}',
        '{"detail":[{"type":"json_invalid","loc":["body",1],"msg":"JSON decode error","input":{}}]}',
    ),
    "llamacpp": (
        '{"error":{"code":400,"message":"request (6014 tokens) exceeds the available context size (2048 tokens)"}}',
        """{"error":{"code":400,"message":"'messages' is required","type":"invalid_request_error"}}""",
    ),
}
"""Texts that say that the client asked for what it may not have."""

FAULTS: dict[str, tuple[str, ...]] = {
    "vllm": (
        '{"detail":"Not Found"}',
        "Internal Server Error",
        DEAD,
        "The engine is currently busy and cannot accept new requests.",
        "list index out of range",
        "1 validation error for ChatCompletionResponseChoice",
        "Compiled grammar rejected: unsupported",
    ),
    "lmdeploy": (
        "Internal Server Error",
        "An internal server error occurred.",
        "internal error happened, status code ResponseType.INPUT_LENGTH_ERROR",
        "The inference engine is unavailable.",
    ),
    "sglang": ('{"object":"error","message":"Internal server error: x","code":500}',),
    "llamacpp": ('{"error":{"code":500,"message":"image input is not supported","type":"server_error"}}',),
    "transformers": (*CB_DEAD,),
}
"""Texts of servers that are broken, dead or busy."""


def hit(patterns: Sequence[re.Pattern[str]], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)


@pytest.mark.parametrize("name", [n for n, (status, _) in BODIES.items() if status < 500 and n not in NO_ROUTE])
def test_validation_of_vllm_knows_every_refusal_of_0_32(name: str) -> None:
    assert hit(DIALECTS["vllm"].validation, BODIES[name][1])


@pytest.mark.parametrize(("dialect", "text"), [(name, text) for name in REFUSALS for text in REFUSALS[name]])
def test_validation_knows_a_refusal(dialect: str, text: str) -> None:
    assert hit(DIALECTS[dialect].validation, text)


@pytest.mark.parametrize(("dialect", "text"), [(name, text) for name in FAULTS for text in FAULTS[name]])
def test_validation_lacks_a_fault_of_the_server(dialect: str, text: str) -> None:
    assert not hit(DIALECTS[dialect].validation, text)


@pytest.mark.parametrize(
    "text",
    [
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance.",
        '{"error": "The model is currently scaling. Please try again later."}',
        "Generation is paused. Please retry after it resumes.",
        '{"error": "This data-parallel rank has been retired and is awaiting shutdown."}',
    ],
)
def test_shed_of_vllm_knows_its_queue_texts(text: str) -> None:
    assert hit(DIALECTS["vllm"].shed, text)
    assert not hit(DIALECTS["vllm"].engine_dead, text)


def test_engine_dead_of_vllm_knows_its_text() -> None:
    assert hit(DIALECTS["vllm"].engine_dead, json.dumps({"error": {"message": DEAD, "code": 500}}))


def test_engine_dead_of_vllm_knows_the_text_for_clients_of_0_33() -> None:
    text = "The server had an error while processing your request."
    assert hit(DIALECTS["vllm"].engine_dead, json.dumps({"error": {"message": text, "code": 500}}))
    assert not hit(DIALECTS["vllm"].engine_dead, f"{text} Sorry about that! You can retry your request.")  # OpenAI's


def test_engine_failure_of_lmdeploy_knows_both_its_texts() -> None:
    for text in ("The inference engine is unavailable.", "PyTorch ZMQ engine process is not alive."):
        assert hit(DIALECTS["lmdeploy"].engine_failure, text)
    assert not hit(DIALECTS["lmdeploy"].engine_failure, "An internal server error occurred.")


def test_engine_dead_lacks_texts_that_have_other_causes() -> None:
    assert not hit(DIALECTS["lmdeploy"].engine_dead, "The inference engine is unavailable.")
    assert not hit(DIALECTS["sglang"].engine_dead, "Server couldn't get a response from detokenizer")


@pytest.mark.parametrize(
    ("version", "key"),
    [("0.32.0", (0, 32, 0)), ("v0.8.5.post1", (0, 8, 5)), ("0.22.1+cpu", (0, 22, 1)), ("dev", None), (None, None)],
)
def test_version_key_compares_by_numbers(version: str | None, key: tuple[int, ...] | None) -> None:
    assert version_key(version) == key


def test_dialect_at_takes_the_oldest_era_that_fits() -> None:
    lmdeploy = DIALECTS["lmdeploy"]
    assert lmdeploy.at("0.13.0").health_knows_death is False
    assert lmdeploy.at("0.15.0").health_knows_death is True
    assert lmdeploy.at("0.15.0").over_length != lmdeploy.over_length
    assert lmdeploy.at("0.18.0") == lmdeploy.at(None) == lmdeploy.at("main") == lmdeploy


def test_admin_effects_depend_on_parameters() -> None:
    sleep = DIALECTS["vllm"].admin["sleep"]
    assert "finish_abort" in sleep.effects_with({})
    assert "finish_abort" not in sleep.effects_with({"mode": "wait"})


def test_admin_reset_mm_cache_cannot_cause_an_encoder_cache_miss() -> None:
    admin = DIALECTS["vllm"].admin
    assert "encoder_cache_miss" in admin["reset_encoder_cache"].effects
    assert "encoder_cache_miss" not in admin["reset_mm_cache"].effects


def test_dialect_page_shows_the_example_that_is_tested() -> None:
    example = Path(__file__).with_name("test_add_a_dialect.py").read_text()
    page = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-dialect.md"
    assert f"```python\n{example}```\n" in page.read_text()


@pytest.mark.parametrize("text", CB_DEAD)
def test_engine_dead_of_transformers_knows_both_texts_of_its_worker(text: str) -> None:
    assert hit(DIALECTS["transformers"].engine_dead, text)


def test_caches_of_a_shared_server_are_emptied_in_the_words_of_each_dialect() -> None:
    found = {name: {o.name for o in d.admin.values() if o.empties_a_cache} for name, d in DIALECTS.items()}
    assert found["sglang"] == {"flush_cache"}
    assert "reset_prefix_cache" in found["vllm"]
    assert not found["openai"]
