"""Built requests.

Exact lengths, valid unique images, fitted to the server.
"""

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loadchaos.core.model import REPLACED, Facts, Output
from loadchaos.load.payloads import images, near_limit, positions, text
from loadchaos.load.payloads.image_tokens import qwen
from loadchaos.load.payloads.png import template
from loadchaos.load.request_builder import build
from loadchaos.load.wire.request import Request
from tests.load.payloads.conftest import Steps

Count = Callable[[Request], int]


def pictures(request: Request) -> list[bytes]:
    content = json.loads(request.body)["messages"][0]["content"]
    urls = [p["image_url"]["url"] for p in content if p["type"] == "image_url"] if isinstance(content, list) else []
    return [base64.b64decode(url.partition(",")[2], validate=True) for url in urls]


def texts(tokens: int | str, **more: Any) -> dict[str, Any]:
    return {"text": text.Options.model_validate({"tokens": tokens, **more})}


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [10, 11, 17, 30, 64, 512, 4000])
def test_text_costs_exactly_the_planned_tokens(tokens: int, facts: Facts, step: Steps, counted: Count) -> None:
    for ordinal in range(20):
        request = build(step(texts(tokens), ordinal), facts)
        assert counted(request) == tokens == request.tokens
        assert request.fitted == ""


def test_text_prompts_differ_from_their_first_words_on(facts: Facts, step: Steps) -> None:
    requests = [build(step(texts(200), n), facts) for n in range(500)]
    assert len({r.nonce for r in requests}) == 500
    for request in requests[:20]:
        assert json.loads(request.body)["messages"][0]["content"].strip().startswith(request.nonce)


def test_build_gives_equal_bytes_for_equal_steps(facts: Facts, step: Steps) -> None:
    payload = {**texts("20..400"), "images": images.Options.model_validate({"count": "1..3", "size": "64x64"})}
    assert build(step(payload, 5), facts) == build(step(payload, 5), facts)


def test_text_shared_prefix_is_shared_within_its_group_only(facts: Facts, step: Steps, counted: Count) -> None:
    payload = texts(300, shared_prefix={"tokens": 109, "groups": 2})
    requests = [build(step(payload, n), facts) for n in range(20)]
    contents = [json.loads(r.body)["messages"][0]["content"] for r in requests]
    assert len({c[:120] for c in contents}) == 2
    assert len(set(contents)) == 20
    assert {counted(r) for r in requests} == {300}


def test_text_length_is_unknown_without_measured_words(facts: Facts, step: Steps) -> None:
    assert build(step(texts(50)), replace(facts, text=None)).tokens is None


def test_text_shorter_than_the_template_is_noted(facts: Facts, step: Steps, counted: Count) -> None:
    request = build(step(texts(3)), facts)
    assert counted(request) == request.tokens == 10
    assert "the chat template needs that" in request.fitted


# --- the body ---------------------------------------------------------------------------------------------------------


def test_build_asks_for_usage_in_streamed_bodies_only(facts: Facts, step: Steps) -> None:
    body = json.loads(build(step(texts(20)), facts).body)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ('m"1', 8, 0)
    assert "stream_options" not in json.loads(build(step(texts(20), stream=False), facts).body)


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("vllm", {"ignore_eos": True, "min_tokens": 7}),
        ("lmdeploy", {"ignore_eos": True, "min_new_tokens": 7}),
        ("openai", {}),
    ],
)
def test_build_asks_for_exact_output_as_the_dialect_does(
    dialect: str, expected: dict[str, object], facts: Facts, step: Steps
) -> None:
    request = build(step(texts(20), output=Output(exact=7)), replace(facts, dialect=dialect))
    body = json.loads(request.body)
    assert (request.exact, request.most) == ((7, None) if expected else (None, 7))
    assert {k: v for k, v in body.items() if k.startswith(("ignore", "min_"))} == expected
    assert body["max_tokens"] == 7


# --- fitting ----------------------------------------------------------------------------------------------------------


def test_build_reduces_too_many_images_with_a_note(facts: Facts, step: Steps, counted: Count) -> None:
    payload = {**texts(40), "images": images.Options.model_validate({"count": 5, "size": "64x64"})}
    request = build(step(payload), replace(facts, max_images=2))
    assert (request.images, request.image_tokens, request.tokens) == (2, 132, 172)
    assert counted(request) == 172
    assert "2 images instead of 5" in request.fitted


def test_build_sends_the_images_that_fit_the_context_with_a_note(facts: Facts, step: Steps, counted: Count) -> None:
    payload = {**texts(40), "images": images.Options.model_validate({"count": 5, "size": "64x64"})}
    small = replace(facts, max_model_len=256, image_tokens={"64x64": 66})
    request = build(step(payload), small)
    assert (request.images, request.image_tokens) == (3, 198)
    assert counted(request) == request.tokens == 238
    assert "3 images instead of 5: the server's limit" in request.fitted
    assert build(step(payload, expect=("ok", "rejected")), small).images == 5, "it means to send too much"
    assert build(step(payload), replace(small, image_tokens={})).images == 5, "their tokens are unknown"


def test_build_sends_text_to_a_model_without_images(facts: Facts, step: Steps) -> None:
    payload = {**texts(40), "images": images.Options()}
    request = build(step(payload), replace(facts, images=False))
    assert (request.images, request.tokens) == (0, 40)
    assert "does not accept images" in request.fitted


@pytest.mark.parametrize("payload", [{**texts(40), "images": images.Options()}, {"near_limit": near_limit.Options()}])
def test_build_marks_a_request_that_lost_its_subject(payload: dict[str, Any], facts: Facts, step: Steps) -> None:
    bare = replace(facts, images=False, max_model_len=None, capacity_tokens=None, input_limit=None)
    assert build(step(payload), bare).fitted.endswith(REPLACED)


def test_build_cuts_a_request_to_the_context_with_a_note(facts: Facts, step: Steps, counted: Count) -> None:
    small = replace(facts, max_model_len=256)
    request = build(step(texts(500), output=Output(max=64)), small)
    assert counted(request) == request.tokens == 255
    assert request.max_tokens == 1
    assert "instead of 500" in request.fitted
    assert build(step(texts(250), output=Output(max=64)), small).max_tokens == 6


def test_build_does_not_fit_a_step_that_expects_a_refusal(facts: Facts, step: Steps) -> None:
    request = build(step(texts(500), expect=("ok", "rejected")), replace(facts, input_limit=256))
    assert request.tokens == 500


def test_build_applies_lmdeploys_bound_to_prompt_and_answer(facts: Facts, step: Steps) -> None:
    """Test `max_session_len`: 19 of 21 blocks of 64 tokens since 0.12.

    It cuts longer answers silently.
    """
    small = replace(
        facts, dialect="lmdeploy", version="0.18", max_model_len=None, capacity_tokens=1344, input_limit=1216
    )
    request = build(step(texts(1200), output=Output(exact=64)), small)
    assert (request.tokens, request.max_tokens) == (1200, 16)
    assert "16 tokens of output instead of 64" in request.fitted
    vllm = build(step(texts(1200), output=Output(exact=64)), replace(small, dialect="vllm"))
    assert (vllm.tokens, vllm.max_tokens) == (1200, 64)


# --- images -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 90), st.integers(1, 90), st.binary(min_size=16, max_size=16))
def test_png_images_decode_and_equal_their_base64_pieces(width: int, height: int, identity: bytes) -> None:
    png = template(width, height)
    file = png.file(identity)
    assert base64.b64decode(b"".join(png.base64(identity)), validate=True) == file
    image = Image.open(io.BytesIO(file))
    image.load()
    assert (image.size, image.mode) == ((width, height), "RGB")


def test_png_large_image_decodes_and_is_small_on_the_wire() -> None:
    file = template(1024, 1024).file(b"0123456789abcdef")
    image = Image.open(io.BytesIO(file))
    image.verify()  # checks every CRC
    assert len(file) < 20_000
    assert Image.open(io.BytesIO(file)).tobytes()[:12] == b"0123456789ab"


def test_images_repeat_the_one_of_that_many_requests_earlier(facts: Facts, step: Steps) -> None:
    options = images.Options.model_validate({"size": "64x64", "unique": "40%", "reuse_distance": 7})
    sent = [pictures(build(step({**texts(40), "images": options}, n), facts))[0] for n in range(700)]
    repeats = [n for n in range(7, 700) if sent[n] == sent[n - 7]]
    assert abs(len(repeats) / 693 - 0.6) < 0.07
    assert all(sent[n] not in sent[:n] for n in range(700) if n not in set(repeats))


def test_images_differ_by_seed_and_traffic(facts: Facts, step: Steps) -> None:
    payload = {"images": images.Options.model_validate({"size": "64x64"})}
    steps = [step(payload), step(payload, run_seed=4), step(payload, traffic="u"), step(payload, phase=1)]
    assert len({pictures(build(s, facts))[0] for s in steps}) == 4


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(1, 1, 64), (1024, 1024, 1024), (1280, 720, 880), (3840, 2160, 8160), (28, 5600, 175)],
)
def test_image_tokens_qwen_matches_the_published_table(width: int, height: int, tokens: int) -> None:
    assert qwen(width, height) == tokens + 2


# --- near the limit ---------------------------------------------------------------------------------------------------


def test_near_limit_rungs_have_length_output_and_expectation(facts: Facts, step: Steps, counted: Count) -> None:
    ladder = near_limit.Options()
    for n, variant in enumerate(ladder.in_turn()):
        rung = variant.rung
        assert rung is not None
        request = build(step({"near_limit": variant}, n), facts)
        assert request.edge == rung.margin
        assert counted(request) == request.tokens == 4096 + rung.margin
        body = json.loads(request.body)
        if rung.margin >= 0:
            assert (tuple(request.expect), body["max_tokens"]) == (("rejected",), 1)
        elif rung.output == "edge":
            assert body["max_tokens"] == body["min_tokens"] == -rung.margin
            assert tuple(request.expect) == ("ok",)
        elif rung.output == "over":
            assert body["max_tokens"] == 64 - rung.margin
            assert set(request.expect) == {"ok", "rejected"}


def test_positions_cross_each_position_that_fits(facts: Facts, step: Steps, counted: Count) -> None:
    crossed = []
    for n in range(6):
        request = build(step({"positions": positions.Options()}, n), facts)
        prompt, answer = counted(request), json.loads(request.body)["max_tokens"]
        crossed.append(1 << (prompt + answer).bit_length() - 1)
        assert prompt < crossed[-1] <= prompt + answer <= 4096
    assert crossed == [1024, 2048, 1024, 2048, 1024, 2048], "4096 is the end of the context itself"


def test_positions_without_a_position_that_fits_send_a_short_prompt(facts: Facts, step: Steps) -> None:
    for options, server in (
        (positions.Options(at=(8192,)), facts),
        (positions.Options(), replace(facts, max_model_len=None)),
        (positions.Options(), replace(facts, text=None)),
    ):
        assert "sent as a short prompt" in build(step({"positions": options}), server).fitted


def test_near_limit_older_server_may_answer_nothing_above_its_limit(facts: Facts, step: Steps) -> None:
    old = replace(facts, dialect="lmdeploy", version="0.10.0")
    above = near_limit.Options().in_turn()[-1]
    assert "empty" in build(step({"near_limit": above}), old).expect


def test_near_limit_uses_the_smaller_limit_or_the_profiles(facts: Facts, step: Steps) -> None:
    first = near_limit.Options().in_turn()[0]
    assert build(step({"near_limit": first}), replace(facts, input_limit=1999)).tokens == 900
    given = near_limit.Options(limit=1344).in_turn()[0]
    assert build(step({"near_limit": given}), replace(facts, max_model_len=None)).tokens == 244
    assert build(step({"near_limit": given}), facts).tokens == 2996
    without_blocks = replace(facts, dialect="lmdeploy", version="0.6.0")
    assert build(step({"near_limit": given}), without_blocks).tokens == 244


@pytest.mark.parametrize(
    ("server", "limit", "answers"),
    [
        ({"dialect": "lmdeploy", "version": "0.18", "max_model_len": 16384, "input_limit": 10880},
         10881, {-40: 39, -20: 19, -1: 1}),  # bounded by the KV cache
        ({"dialect": "sglang", "version": "0.5.23", "max_model_len": 4096, "capacity_tokens": 4096, "input_limit": 4089},
         4090, {-40: 44, -1: 5}),  # it ends two tokens below the context
    ],
)  # fmt: skip
def test_near_limit_bounds_the_answer_as_the_server_does(
    server: dict[str, Any], limit: int, answers: dict[int, int], facts: Facts, step: Steps
) -> None:
    for margin, most in answers.items():
        for output, asked in (("one", 1), ("edge", most), ("over", most + 64)):
            variant = near_limit.Options(rung=near_limit.Rung.model_validate({"margin": margin, "output": output}))
            request = build(step({"near_limit": variant}), replace(facts, **server))
            assert (request.tokens, request.max_tokens) == (limit + margin, asked)


def test_near_limit_sends_a_short_prompt_without_a_known_limit(facts: Facts, step: Steps) -> None:
    request = build(step({"near_limit": near_limit.Options()}), replace(facts, max_model_len=None))
    assert (request.edge, request.tokens) == (None, 64)
    assert "unknown" in request.fitted
