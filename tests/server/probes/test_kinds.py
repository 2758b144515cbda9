import asyncio
import random

import pytest

from loadchaos.core.probe_names import IMAGE_KINDS, ProbeKind, is_exact, is_right
from loadchaos.core.probe_pictures import COLOURS
from loadchaos.server.probes.kinds import KINDS
from loadchaos.server.probes.pictures import draw
from loadchaos.server.probes.question import WORDS
from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.answers import AnswerText, ordered_opening
from loadchaos.simulator.media.images import ImageReader
from loadchaos.simulator.media.processor import DecodedImage, Processor


def test_words_are_500_or_more() -> None:
    assert len(set(WORDS)) == len(WORDS) > 500


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opening", ["", "bakodu lemipo\n"])
def test_embedded_server_gives_the_right_answer(kind: ProbeKind, opening: str) -> None:
    for seed in range(20):
        question = KINDS[kind](random.Random(seed))
        ids = tokenizer.encode(f"<|im_start|>user\n{opening}{question.prompt}<|im_end|>\n<|im_start|>assistant\n")
        answer = ordered_opening(ids, [read(url).content for url in question.images])
        assert AnswerText(1, answer).next_text(len(answer)) == question.expected
        assert len(answer) <= question.most_tokens


def read(url: str) -> DecodedImage:
    return asyncio.run(ImageReader(Processor()).read(url))


def test_pictures_with_one_other_pixel_have_another_hash_and_the_same_content() -> None:
    for content in ("073", "918", "452", *COLOURS):
        images = [read(draw(content, mark=mark)) for mark in (0, 1, 0xFFFFFF)]
        assert {image.content for image in images} == {content}
        assert len({image.hash for image in images}) == 3


def test_image_kinds_are_those_with_an_image() -> None:
    assert tuple(kind for kind, make in KINDS.items() if make(random.Random(1)).images) == IMAGE_KINDS


def test_question_of_the_same_seed_is_the_same() -> None:
    for make in KINDS.values():
        assert make(random.Random(3)) == make(random.Random(3)) != make(random.Random(4))


@pytest.mark.parametrize(
    ("text", "right", "exact"),
    [
        ("bako dumi", True, True), ("bako dumi\n", True, True), ("The words: bako dumi.", True, False),
        ('"bako dumi"', True, False), ("bako  dumi", True, False), ("dumi bako", False, False),
        ("bako dumix", False, False), ("bako", False, False), ("", False, False),
    ],
)  # fmt: skip
def test_answers_are_compared_by_words(text: str, *, right: bool, exact: bool) -> None:
    assert is_right("bako dumi", text) == right
    assert is_exact("bako dumi", text) == exact
