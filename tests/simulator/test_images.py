import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.processor_cache import ProcessorCache
from loadchaos.simulator.media.images import ImageReader
from loadchaos.simulator.media.processor import AspectRatioError, Processor
from tests.simulator.conftest import Png


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (28, 28, 64), (224, 224, 64), (448, 448, 196), (512, 512, 256), (1280, 720, 880), (1920, 1080, 2040),
        (3840, 2160, 8160), (4096, 4096, 16384), (28, 5600, 175),
    ],
)  # fmt: skip
def test_processor_tokens_follow_the_published_formula(width: int, height: int, tokens: int) -> None:
    assert Processor().tokens(width, height) == tokens


def test_processor_refuses_an_image_over_200_to_1() -> None:
    with pytest.raises(AspectRatioError, match="must be smaller than 200"):
        Processor().tokens(1, 201)


def test_image_hash_covers_trailing_bytes_from_0_13(png: Png) -> None:
    def digest(hash_pixels: bool, tail: bytes) -> str:
        url = png(8, 8, tail=tail)["image_url"]["url"]
        return asyncio.run(ImageReader(Processor(hash_pixels=hash_pixels)).read(url)).hash

    assert digest(False, b"") != digest(False, b"1")
    assert digest(True, b"") == digest(True, b"1")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tokenizer_round_trip_loses_nothing(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.sampled_from(tokenizer.WORDS), min_size=1))
def test_tokenizer_makes_one_token_of_a_common_word(words: list[str]) -> None:
    assert len(tokenizer.encode("".join(f" {word}" for word in words))) == len(words)


def test_block_hash_covers_the_prefix_and_its_images() -> None:
    ids = list(range(64))
    plain = tokenizer.block_hashes(ids, 16)
    assert len(plain) == 4
    changed = tokenizer.block_hashes([9, *ids[1:]], 16)
    assert not set(plain) & set(changed)
    with_image = tokenizer.block_hashes(ids, 16, [(20, 4, 77)])
    assert with_image[0] == plain[0]
    assert with_image[1] != plain[1]


@given(st.lists(st.integers(0, 9)), st.integers(0, 4))
def test_processor_cache_sides_hold_the_same(order: list[int], items: int) -> None:
    sender, receiver = ProcessorCache(items), ProcessorCache(items)
    for name in order:
        known = sender.look_up(str(name))
        assert receiver.look_up(str(name), keep=not known) == known
    assert (sender.queries, sender.hits) == (receiver.queries, receiver.hits)
