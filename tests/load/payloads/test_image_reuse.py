import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from loadchaos.core.model import Facts
from loadchaos.load.payloads import images, jpeg, text
from loadchaos.load.payloads.image_tokens import gemma3, internvl, llama4, llava, predict, token_cost
from loadchaos.load.request_builder import build
from loadchaos.load.wire.request import Request
from tests.load.payloads.conftest import Steps


def parts(request: Request) -> list[dict[str, Any]]:
    content = json.loads(request.body)["messages"][0]["content"]
    return [p for p in content if p["type"] == "image_url"]


def file(part: dict[str, Any]) -> bytes:
    return base64.b64decode(part["image_url"]["url"].partition(",")[2], validate=True)


def dial(**options: Any) -> dict[str, Any]:
    return {"images": images.Options.model_validate(options), "text": text.Options()}


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 90), height=st.integers(1, 300), names=st.lists(st.binary(min_size=16, max_size=16), max_size=4),
    look=st.sampled_from(["flat", "photo"]),
)  # fmt: skip
def test_jpeg_images_decode_and_equal_their_base64_pieces(
    width: int, height: int, names: list[bytes], look: jpeg.Look
) -> None:
    ready = jpeg.JpegTemplate(width, height, look)
    for name in names:
        data = ready.file(name)
        assert base64.b64decode(b"".join(ready.base64(name)), validate=True) == data
        image = Image.open(io.BytesIO(data))
        image.load()
        assert (image.size, image.mode, image.format) == ((width, height), "RGB", "JPEG")


@pytest.mark.parametrize("kind", ["png", "jpeg", "photo"])
def test_images_unique_in_every_format_differ_in_bytes_and_pixels(kind: str, facts: Facts, step: Steps) -> None:
    sent = [parts(build(step(dial(size="64x64", format=kind, count=2), n), facts)) for n in range(60)]
    files = [file(p) for two in sent for p in two]
    assert len(set(files)) == 120
    assert len({Image.open(io.BytesIO(f)).tobytes() for f in files}) == 120
    assert sent[0][0]["image_url"]["url"].startswith(f"data:image/{'png' if kind == 'png' else 'jpeg'};base64,")


def test_jpeg_photo_has_the_size_of_photos() -> None:
    assert 100_000 < len(jpeg.template(1024, 1024, "photo").file(b"0" * 16)) < 500_000


def test_images_near_duplicates_differ_in_one_pixel(facts: Facts, step: Steps) -> None:
    payload = dial(size="64x64", unique="0%", near_duplicates="100%", reuse_distance=5)
    files = [file(parts(build(step(payload, n), facts))[0]) for n in range(40)]
    assert len(set(files)) == 40
    for n in range(5, 40):
        ours, before = (Image.open(io.BytesIO(f)).tobytes() for f in (files[n], files[n - 5]))
        different = {i // 3 for i in range(len(ours)) if ours[i] != before[i]}
        assert different == {0}


def test_images_shares_of_new_near_and_repeated_are_as_asked(facts: Facts, step: Steps) -> None:
    options = images.Options.model_validate(
        {"size": "8x8", "unique": "50%", "near_duplicates": "20%", "reuse_distance": 9}
    )
    found = [options.first_use(77, n, 0) for n in range(9, 4009)]
    own = sum(ordinal == n for n, (ordinal, _, _) in enumerate(found, 9))
    assert abs(own / 4000 - 0.5) < 0.03
    assert len({s for s in found if s[2]}) > 0.19 * 4000


def test_images_near_duplicates_alone_reduce_the_unique_share() -> None:
    assert images.Options.model_validate({"near_duplicates": "30%"}).new == pytest.approx(0.7)
    with pytest.raises(ValidationError, match="more than 100%"):
        images.Options.model_validate({"near_duplicates": "30%", "unique": "80%"})


def test_images_aspects_keep_the_area_and_repeats_keep_their_shape(facts: Facts, step: Steps) -> None:
    payload = dial(size="64x64", aspect=["1:1", "16:4", "1:4"], unique="40%", reuse_distance=3)
    files = [file(parts(build(step(payload, n), facts))[0]) for n in range(200)]
    assert {Image.open(io.BytesIO(f)).size for f in files} == {(64, 64), (128, 32), (32, 128)}
    assert len(set(files)) < 120


@pytest.mark.parametrize("aspect", ["wide", "16x9", "0:1", ["1:1", "x"], 3])
def test_images_aspect_rejects_nonsense(aspect: Any) -> None:
    with pytest.raises(ValidationError, match="such as 16:9"):
        images.Options.model_validate({"aspect": aspect})


def test_images_uuid_of_content_repeats_and_fresh_never_does(facts: Facts, step: Steps) -> None:
    for kind, repeats_share in (("content", True), ("fresh", False)):
        payload = dial(size="8x8", unique="0%", reuse_distance=4, uuid=kind)
        sent = [parts(build(step(payload, n), facts))[0] for n in range(12)]
        assert file(sent[0]) == file(sent[4]) == file(sent[8])
        assert (sent[0]["uuid"] == sent[4]["uuid"] == sent[8]["uuid"]) is repeats_share
        assert len({p["uuid"] for p in sent}) == (4 if repeats_share else 12)


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [(448, 448, 1), (896, 448, 3), (1344, 896, 7), (1920, 1080, 9), (4000, 3000, 13), (100, 5000, 13), (12, 1, 13)],
)
def test_image_tokens_internvl_counts_tiles_and_a_thumbnail(width: int, height: int, tiles: int) -> None:
    assert internvl(width, height) == 256 * tiles + 2


def test_image_tokens_llama4_counts_grid_separators_and_whole() -> None:
    assert llama4(336, 336) == 147
    assert llama4(672, 336) == 144 * 2 + 1 + 1 + 144 + 3
    assert llama4(1344, 1344) == 144 * 16 + 4 * 3 + 4 + 144 + 3


def test_image_tokens_family_follows_the_models_name(facts: Facts) -> None:
    of = {
        "Qwen/Qwen2.5-VL-7B-Instruct": 1369 + 2, "Qwen/Qwen3-VL-8B": 1024 + 2,
        "OpenGVLab/InternVL3-8B": internvl(1024, 1024), "llava-hf/llava-1.5-7b-hf": llava(1, 1),
        "google/gemma-3-12b-it": gemma3(1, 1),
        "meta-llama/Llama-4-Scout-17B-16E": llama4(1024, 1024), "anything": 1026,
    }  # fmt: skip
    assert {name: predict(name, 1024, 1024) for name in of} == of
    assert token_cost(facts, 64, 64) == (66, True), "what was measured counts more"
    assert predict("Qwen3-VL", 1, 300) == 0
