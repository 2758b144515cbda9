import random
from dataclasses import replace
from typing import Any

import orjson
import pytest

from loadchaos.core.model import Facts
from loadchaos.load.payloads import conversation, quote, secret_word, text
from loadchaos.load.payloads.secret_word import SecretWords
from loadchaos.load.payloads.text import alphabets_of
from loadchaos.load.request_builder import build
from loadchaos.load.wire.request import Request
from tests.load.payloads.conftest import Steps


def prompt(request: Request) -> str:
    content = orjson.loads(request.body)["messages"][-1]["content"]
    return str(content)


def words(n: int, *, blank: bool = True) -> tuple[tuple[str, int], ...]:
    alphabet = "bcdfghjklmnpqrstvwxyz"
    drawn = [f"{alphabet[i % 21]}a{alphabet[i // 21]}{'o' * (i % 3)}" for i in range(n)]
    return tuple((f" {w}" if blank else w, 1 + i % 2) for i, w in enumerate(drawn))


@pytest.mark.parametrize("count", [2, 3, 12, 40, 58])
@pytest.mark.parametrize("blank", [True, False])
def test_code_is_read_back_from_any_place_of_a_text(count: int, blank: bool) -> None:
    book = secret_word.Alphabet(words(count, blank=blank))
    for owner in (0, 1, 17, 3_000_000_017, secret_word.of_conversation(99, 3, 12)):
        written = book.write(secret_word.encode(owner, 7), 10_000)
        assert written is not None
        assert book.read(f"It says: {written[0]}, twice{written[0]}", 7) == [owner, owner]
        assert book.read(written[0], 8) == [], "the seed of another run"


def test_word_that_is_cut_or_damaged_names_nobody() -> None:
    book = secret_word.Alphabet(words(58))
    written = book.write(secret_word.encode(17, 7), 10_000)
    assert written is not None
    parts = written[0].split(" ")
    for lost in range(1, len(parts)):
        assert book.read(" ".join(parts[:lost] + parts[lost + 1 :]), 7) == []


def test_random_text_of_the_same_words_names_nobody() -> None:
    rng, letters = random.Random(1), words(12)
    book = secret_word.Alphabet(letters)
    noise = "".join(rng.choice(letters)[0] for _ in range(200_000))
    assert noise.count(book.marker) > 20
    assert book.read(noise[:100_000], 7) == book.read(noise[100_000:], 7) == []


def test_alphabet_of_one_word_writes_nothing() -> None:
    assert secret_word.Alphabet(((" a", 1),)).write(5, 1000) is None
    assert secret_word.Alphabet(((" a", 1),)).read(" a a a", 1) == []


def test_answer_with_the_word_of_another_workers_request_names_it(facts: Facts, step: Steps) -> None:
    payload = {"text": text.Options.model_validate({"tokens": "64..200"})}
    mine, other = (build(step(payload, n), facts) for n in (4, 5))
    check = SecretWords(alphabets_of(facts.text), 3, "abc").checker(mine.owner)
    assert mine.owner != other.owner
    assert check(prompt(mine)) is None
    assert check(f"You wrote {prompt(other)}.") == f"lc-abc-{other.step.index}"
    assert check("You said canary-0123456789") == "canary-0123456789"


def test_short_prompt_has_no_secret_word(facts: Facts, step: Steps) -> None:
    short = build(step({"text": text.Options.model_validate({"tokens": 17})}), facts)
    assert short.owner is None
    assert short.nonce


def test_conversation_may_repeat_the_words_of_its_own_turns_only(facts: Facts, step: Steps) -> None:
    options = conversation.Options.model_validate({"turns": 3, "tokens": 400, "parallel": 2})
    turns = [build(step({"conversation": options}, n), facts) for n in range(6)]
    bodies = ["".join(m["content"] for m in orjson.loads(r.body)["messages"]) for r in turns]
    checks = [SecretWords(alphabets_of(facts.text), 3, "abc").checker(r.owner) for r in turns]
    for n, check in enumerate(checks):
        own, others = (
            [b for i, b in enumerate(bodies) if i % 2 == n % 2],
            [b for i, b in enumerate(bodies) if i % 2 != n % 2],
        )
        assert [check(b) for b in own] == [None] * 3
        assert all((check(b) or "").startswith("conversation ") for b in others)


def test_words_of_other_scripts_are_found(facts: Facts, step: Steps) -> None:
    assert facts.text is not None
    known = replace(facts, text=replace(facts.text, scripts=(("cjk", words(40, blank=False)),)))
    payload: dict[str, Any] = {"text": text.Options.model_validate({"tokens": 200, "script": "cjk"})}
    other = build(step(payload, 5), known)
    assert SecretWords(alphabets_of(known.text), 3, "abc").checker(3)(prompt(other)) == f"lc-abc-{other.step.index}"


def test_word_at_the_begin_of_an_answer_is_read_without_its_blank() -> None:
    book = secret_word.Alphabet(words(58))
    written = book.write(secret_word.encode(17, 7), 10_000)
    assert written is not None
    assert book.read(written[0].strip(), 7) == [17]


def test_quote_orders_the_own_word_within_the_tokens_of_the_text(facts: Facts, step: Steps) -> None:
    payload = {"text": text.Options(tokens="400"), "quote": quote.Options(times=3)}
    one, other = (build(step(payload, n), facts) for n in (1, 2))
    before, _, order = prompt(one).partition(text.QUOTE_ORDER)
    assert order == f" {one.nonce}" * 3
    assert before.startswith(f" {one.nonce}")
    costs = {word.strip(): cost for word, cost in facts.text.words} if facts.text else {}
    assert sum(costs.get(w, 2) for w in prompt(one).split()) + 9 <= 400
    assert one.tokens is None
    assert orjson.loads(one.body)["temperature"] == 0
    foreign = SecretWords(alphabets_of(facts.text), 3, "run").checker(one.owner)
    assert foreign(order.strip()) is None
    assert foreign(prompt(other).partition(text.QUOTE_ORDER)[2].strip()) == "lc-run-2"


def test_quote_of_a_short_prompt_is_left_out_and_noted(facts: Facts, step: Steps) -> None:
    payload = {"text": text.Options(tokens="60"), "quote": quote.Options()}
    request = build(step(payload, 1), facts)
    assert text.QUOTE_ORDER not in prompt(request)
    assert "no quote: the prompt is too short" in request.fitted
