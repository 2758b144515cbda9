"""Servers whose answers say nothing about their prompts, and a healthy one, as a user tests them."""

import random
from typing import Any

import pytest

from tests.invoking import output_of
from tests.run.conftest import Start
from tests.run.odd_server import Prompt, Write, cut, odd_server

WORDS = ("alpha", "beta", "gamma", "delta", "sun", "moon", "cat", "dog", "tree", "river")
TEXT = [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 24}}]
LOAD = [{"rate": "20/s", "law": "constant", "for": "2s", "max_in_flight": 32}]
OPENAI = {"dialect": "openai"}


def own_words(prompt: Prompt, first: str = "so") -> Any:
    rng = random.Random(prompt.text)
    return cut(" ".join([first, *(rng.choice(WORDS) for _ in range(200))]), prompt.most)


def ended(start: Start, write: Write, **parts: Any) -> Any:
    with odd_server(write) as url:
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


def test_questions_that_nothing_answers_right_are_unknown_unless_accepted(start: Start) -> None:
    asked = {"probes": {"every": "500ms", "kinds": ["copy"]}}
    run = ended(start, own_words, correctness=asked)
    assert run.verdict()["exit_code"] == 3
    top = " ".join(run.output.partition("UNKNOWN")[2].split())
    assert "nothing was judged: the idle server answered no kind right every time (copy)" in top[:300]
    accepted = {"id": "answers_not_judged", "because": "random weights", "until": "2099-01-01"}
    run = ended(start, lambda prompt: own_words(prompt, "\ufffd"), correctness=asked, accept=[accepted])
    assert run.verdict()["exit_code"] == 0
    assert "2 checks accepted without a proof: random weights" in " ".join(run.output.split())
    accepted_checks = [check for check in run.verdict()["checks"] if check.get("accepted")]
    assert [check["name"] for check in accepted_checks] == ["degeneration", "questions"]
    said = output_of("judge", "-v", run.folder)
    assert "as right as when idle" not in said
    assert "is right; accepted: random weights" in " ".join(said.split())
    assert "could not be decoded" in accepted_checks[0]["actual"]  # no word of a full disk
    assert output_of("report", run.folder).split()[0] == str(run.folder / "report.html")


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
