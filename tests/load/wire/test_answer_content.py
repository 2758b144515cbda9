from dataclasses import replace
from typing import Any

import orjson
import pytest

from loadchaos.load.payloads.structured import schema_contract
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.contract import AnswerContract
from loadchaos.load.wire.decision import blank_kind, content_of, copies, one_word, text_digest
from loadchaos.load.wire.sockets import Origin
from tests.load.wire.requests import wire_request

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
        ("<SPECIAL_12><SPECIAL_9>", "special_tokens"), ("[UNUSED_TOKEN_145]", "special_tokens"),
        ("[gMASK]<sop>", "special_tokens"), ("<fim_middle>", "special_tokens"), ("[control_8]", "special_tokens"),
        ("\0\0\0", "control_characters"), (" \n\t", "control_characters"), ("\u200b\ufeff", "control_characters"),
        ("", None), ("OK", None), ("<b>yes</b>", None), ("<special>", None), ("<|im_end|> yes", None), ("[1]", None),
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


@pytest.mark.parametrize("text", ["Hello, 2 worlds_of\x1c\x00x", "a\tb\nC", "it's"])
def test_digest_of_an_ascii_text_is_that_of_any_other_with_its_words(text: str) -> None:
    assert text_digest(text) == text_digest(f"{text} \u2026")


RULE = schema_contract(b'{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}')
"""It has 77 bytes: 20 tokens are enough for it."""


def content(contract: AnswerContract, finish: str, tokens: int, most: int | None, exact: int | None = None) -> Any:
    """Content of an answer to a request with this contract and limit of tokens."""
    rules = AnswerRules(contract=contract, most_tokens=most)
    answer = AnswerReader(rules, asked_stream=False, declared_stream=False)
    choice = {"index": 0, "message": {"content": PROMPT}, "finish_reason": finish}
    answer.feed(1, orjson.dumps({"choices": [choice], "usage": {"completion_tokens": tokens}}))
    answer.close(2, complete=True)
    request = wire_request(Origin("http://127.0.0.1:1"), BODY, rules=rules)
    request.exact = exact
    return content_of(request, answer, answer.text, one_word=one_word(answer.text))


@pytest.mark.parametrize(
    ("finish", "tokens", "most", "state"),
    [
        ("stop", 18, 64, "checked"), ("length", 12, 64, "cut"), ("stop", 64, 64, "cut"), ("length", 12, None, "cut"),
        ("length", 20, 20, "cut"), ("length", 19, 19, "no_room"), ("stop", 12, 18, "checked"),
    ],
)  # fmt: skip
def test_answer_is_held_to_its_rule_where_the_limit_of_tokens_lets_it_end(
    finish: str, tokens: int, most: int | None, state: str
) -> None:
    assert content(RULE, finish, tokens, most) == {"rule": state}


def test_answer_of_an_exact_length_has_no_room_for_an_end() -> None:
    assert content(RULE, "length", 64, None, exact=64) == {"rule": "no_room"}


@pytest.mark.parametrize(("must_call", "state"), [(True, "cut"), (False, "no_room")])
def test_text_in_place_of_a_demanded_call_is_not_excused_by_its_limit(must_call: bool, state: str) -> None:
    assert content(replace(RULE, must_call=must_call), "length", 19, 19) == {"rule": state}


def test_contract_without_a_rule_judges_nothing() -> None:
    assert content(AnswerContract(), "length", 64, 64)["odd"] == "copies_prompt"
    assert "rule" not in content(AnswerContract(), "length", 64, 64)
