"""Servers whose answers say nothing about their prompts, and a healthy one, as a user tests them."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.run.conftest import Start
from tests.run.odd_server import Prompt, Write, cut, odd_server

WORDS = ("alpha", "beta", "gamma", "delta", "sun", "moon", "cat", "dog", "tree", "river")
TEXT = [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 24}}]
LOAD = [{"rate": "20/s", "law": "constant", "for": "2s", "max_in_flight": 32}]
OPENAI = {"dialect": "openai"}
_lengths = itertools.cycle(range(12, 20))


def own_words(prompt: Prompt) -> Any:
    rng = random.Random(prompt.text)
    return cut(" ".join(rng.choice(WORDS) for _ in range(200)), prompt.most)


def ended(start: Start, write: Write, name: Callable[[int], str] = str, **parts: Any) -> Any:
    with odd_server(write, name=name) as url:
        run = start("--target", url, **{"target": OPENAI, "traffic": TEXT, "load": LOAD, **parts})
        run.ends(90)
    return run


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (lambda _: "I am happy to help you with anything that you need today.", "answers_equal"),
        (lambda prompt: cut(prompt.text, prompt.most), "answers_copy_prompt"),
        pytest.param(lambda prompt: f"Answer {prompt.n} is ready.", "answers_equal", marks=pytest.mark.slow),
        pytest.param(lambda _: "<|im_end|>", "answers_of_special_tokens", marks=pytest.mark.slow),
        pytest.param(lambda _: "\0" * 20, "answers_of_control_characters", marks=pytest.mark.slow),
    ],
)
def test_answers_that_say_nothing_about_their_prompt_fail(start: Start, write: Write, found: str) -> None:
    run = ended(start, write)
    verdict = run.verdict()
    (failure,) = verdict["failures"]
    assert (verdict["exit_code"], failure["id"]) == (1, found)
    assert failure["count"] == 40
    assert failure["wrong_answers"][0]["got"]
    assert [e["verdict"] for e in verdict["expectations"] if e["name"] == "wrong_answers"] == ["fail"]


def test_answers_of_their_own_to_each_prompt_pass(start: Start) -> None:
    assert ended(start, own_words).verdict()["exit_code"] == 0


@pytest.mark.parametrize("accept", [[], [{"id": "answer_repeated", "because": "cache", "until": "2099-01-01"}]])
@pytest.mark.slow  # the rules themselves: tests/analysis/detectors
def test_answers_that_a_gateway_gives_again_fail_unless_accepted(start: Start, accept: list[Any]) -> None:
    def replay(prompt: Prompt) -> Any:
        return cut(" ".join(random.Random(prompt.n // 4).choices(WORDS, k=20)), prompt.most)

    verdict = ended(start, replay, lambda n: f"chatcmpl-{n // 4}", accept=accept).verdict()
    assert verdict["exit_code"] == (0 if accept else 1)
    (failure,) = verdict["failures"]
    assert failure["id"] == "answer_repeated"
    assert 25 <= failure["count"] <= 30


@pytest.mark.slow  # the rules themselves: tests/analysis/detectors
def test_answers_of_one_id_pass_with_a_note(start: Start) -> None:
    verdict = ended(start, own_words, lambda _: "chatcmpl-123").verdict()
    assert (verdict["exit_code"], verdict["failures"]) == (0, [])
    assert any("'chatcmpl-123'" in note for note in verdict["notes"])


@pytest.mark.slow  # the rules themselves: tests/analysis/detectors
def test_answers_of_one_word_from_the_begin_are_unknown(start: Start) -> None:
    verdict = ended(start, lambda _: "!" * next(_lengths)).verdict()
    assert (verdict["exit_code"], verdict["failures"]) == (3, [])
    assert {c["name"] for c in verdict["checks"] if c["verdict"] == "unknown"} == {"degeneration"}


def test_questions_that_nothing_answers_right_are_unknown_unless_accepted(start: Start) -> None:
    asked = {"probes": {"every": "500ms", "kinds": ["copy"]}}
    run = ended(start, own_words, correctness=asked)
    assert run.verdict()["exit_code"] == 3
    top = " ".join(run.output.partition("UNKNOWN")[2].split())
    assert "nothing was judged: the idle server answered no kind right every time (copy)" in top[:300]
    accepted = {"id": "answers_not_judged", "because": "random weights", "until": "2099-01-01"}
    assert ended(start, own_words, correctness=asked, accept=[accepted]).verdict()["exit_code"] == 0


@pytest.mark.slow  # the rules themselves: tests/analysis/detectors
def test_schema_that_every_answer_leaves_by_its_length_is_unknown(start: Start) -> None:
    traffic = [{**TEXT[0], "payload": {"structured": {"json_schema": "small"}}, "output": {"max": 64}}]
    verdict = ended(start, lambda _: ('{"name_0": "x', "length"), traffic=traffic).verdict()
    assert (verdict["exit_code"], verdict["failures"]) == (3, [])
    (wrong,) = [e for e in verdict["expectations"] if e["name"] == "wrong_answers"]
    assert "0 of 40 answers were held to their schema" in wrong["actual"]


@pytest.mark.parametrize(
    ("count", "healthy", "found"), [(4, False, "result_wrong"), (1, False, "answers_equal"), (4, True, None)]
)
@pytest.mark.slow  # the rules themselves: tests/analysis/detectors
def test_equal_vectors_of_different_texts_fail(start: Start, count: int, healthy: bool, found: str | None) -> None:
    def vector(text: str) -> list[float]:
        rng = random.Random(text if healthy else 1)
        return [rng.uniform(-1, 1) for _ in range(16)]

    payload = {"text": {"tokens": 32}, "batch": {"count": count}}
    traffic = [{"name": "vectors", "endpoint": "embeddings", "payload": payload}]
    with odd_server(own_words, vector) as url:
        run = start("--target", url, target=OPENAI, traffic=traffic, load=LOAD)
        run.ends(90)
    failures = {f["id"] for f in run.verdict()["failures"]}
    assert failures == ({found} if found else set())
