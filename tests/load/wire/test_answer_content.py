import orjson
import pytest

from loadchaos.load.wire.answer_content import blank_kind, copies, text_digest
from loadchaos.load.wire.decision import one_word

PROMPT = "the red fox jumps over twelve lazy dogs and one sleeping cat near the old river"
BODY = orjson.dumps({"messages": [{"role": "user", "content": PROMPT}]})


@pytest.mark.parametrize("text", ["!" * 12, " word" * 7, "the the the the the the the th", "ab" * 9, "\ufffd" * 14])
def test_one_word_again_and_again_is_a_sign(text: str) -> None:
    assert one_word(text)


@pytest.mark.parametrize("text", ["", "!" * 6, "no no no no no no", "a b a b a c a b a b", "hello there", "1,000,000"])
def test_text_of_several_words_is_no_sign(text: str) -> None:
    assert not one_word(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<|im_end|>", "special_tokens"), ("<pad><pad>", "special_tokens"), ("</s>\n", "special_tokens"),
        ("\0\0\0", "control_characters"), (" \n\t", "control_characters"), ("\u200b\ufeff", "control_characters"),
        ("", None), ("OK", None), ("<b>yes</b>", None), ("<|im_end|> yes", None), ("[1]", None),
    ],
)  # fmt: skip
def test_blank_text_is_named_by_what_it_has(text: str, kind: str | None) -> None:
    assert blank_kind(text) == kind


@pytest.mark.parametrize("text", [PROMPT, PROMPT[:50], f"You said: {PROMPT}", f"{PROMPT} "])
def test_piece_of_a_prompt_is_a_copy(text: str) -> None:
    assert copies(text, BODY, written=True)


def test_answer_about_a_prompt_is_no_copy() -> None:
    assert not copies("This is a list of words, with the red fox and one cat among them", BODY, written=True)
    assert not copies("the red fox", BODY, written=True)
    assert not copies(PROMPT[:50], BODY, written=False), "a prompt of the user may ask to repeat a part of it"
    assert copies(PROMPT, BODY, written=False)


def test_digest_leaves_out_digits_and_punctuation() -> None:
    assert text_digest("Answer 17: Hello.") == text_digest("answer 18, hello")
    assert text_digest("17") != text_digest("18")
    assert text_digest("") == ""
