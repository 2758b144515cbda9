"""What a canary's answers may be is learned from them; what proves a mix-up or a wrong answer, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from loadchaos.analysis.detectors.canary import CanaryDetector, Tolerated, foreign, learned
from loadchaos.analysis.state.machine import StateMachine

S = 1_000_000_000
COUNT = "1 2 3 4 5 6 7 8 9 10 11 12"


def test_answers_that_are_all_equal_are_held_to_the_letter() -> None:
    assert learned([COUNT, COUNT, COUNT]) == Tolerated(COUNT, whole=True)
    assert not Tolerated(COUNT, whole=True).admits(COUNT + " 13")


def test_where_answers_part_what_comes_before_is_held_and_what_comes_behind_is_not() -> None:
    tolerated = learned([COUNT, COUNT[:20] + "x y z", COUNT])
    assert tolerated == Tolerated(COUNT[:20], whole=False)
    assert tolerated.admits(COUNT[:20] + "anything")
    assert not tolerated.admits("1 2 3 5")


@pytest.mark.parametrize("answers", [[], [COUNT], [COUNT, "One two three"], [COUNT, ""]])
def test_too_few_answers_or_such_as_part_at_once_teach_nothing(answers: list[str]) -> None:
    assert learned(answers) is None


def test_a_word_of_another_canary_is_foreign_and_its_own_is_not() -> None:
    words = ["canary-1", "canary-2"]
    assert foreign("canary-2 and so on", "canary-2", words) is None
    assert foreign("canary-1 and so on", "canary-2", words) == "canary-1"


class Bird:
    """A canary's rows, as the watcher writes them."""

    def __init__(self) -> None:
        self.canaries, self.n = CanaryDetector(), 0

    def asks(self, text: str, when: str = "load", word: str = "", **more: Any) -> list[str]:
        self.n += 1
        base = {"row": "canary", "n": self.n, "kind": "echo" if word else "exact", "when": when, "word": word}
        self.canaries.feed({**base, "what": "ask", "at_ns": self.n * S})
        answer = {"what": "answer", "status": 200, "error": "", "text": text, "at_ns": self.n * S}
        self.canaries.feed({**base, **answer, **more})
        return [seen.id for seen in self.canaries.found()]

    def learns(self, text: str = COUNT, *, echoes: bool = True) -> Bird:
        for n in range(3):
            assert self.asks(text, "idle") == []
            assert self.asks(f"word-{n}" if echoes else "no", "idle", word=f"word-{n}") == []
        return self


def test_an_answer_that_changes_under_load_is_wrong_once_it_was_learned_there_too() -> None:
    bird = Bird().learns()
    assert [bird.asks(COUNT) for _ in range(5)] == [[]] * 5
    assert bird.asks("1 2 3 cat") == ["canary_changed"]
    assert bird.asks(COUNT) == []
    check = bird.canaries.check()
    assert check is not None
    assert check.actual == "7 under load, 1 wrong; held to the whole answer exactly, and its own word"


def test_answers_that_part_under_load_from_the_first_are_numerics_and_go_on_being_tolerated() -> None:
    bird = Bird().learns()
    assert [bird.asks(COUNT[:16] + f" and {n}") for n in range(20)] == [[]] * 20
    assert bird.asks("2 2 3") == ["canary_changed"]


@pytest.mark.parametrize("odd", [COUNT[:12] + " cat", "garbage", ""])
def test_corruption_among_the_first_answers_under_load_is_not_learned_as_truth(odd: str) -> None:
    bird = Bird().learns()
    assert [bird.asks(text) for text in (COUNT, odd, COUNT, COUNT, odd)] == [[]] * 5
    check = bird.canaries.check()
    assert check is not None
    assert check.verdict == "unknown"
    assert f"2 part from all others ({odd!r} came among the first 3): numerics or corruption" in check.actual


def test_what_parts_where_not_even_a_doubtful_answer_did_is_wrong() -> None:
    bird = Bird().learns()
    assert [bird.asks(text) for text in (COUNT, COUNT[:12] + " cat", COUNT)] == [[]] * 3
    assert bird.asks("2 2 3") == ["canary_changed"]


def test_a_model_that_answers_otherwise_each_time_is_held_to_nothing_exactly() -> None:
    bird = Bird()
    for n in range(3):
        bird.asks(f"{n} answers", "idle")
    assert [bird.asks(f"{n} others") for n in range(20)] == [[]] * 20
    check = bird.canaries.check()
    assert check is not None
    assert check.verdict == "unknown"


def test_another_canarys_word_proves_a_mix_up_whatever_was_learned() -> None:
    bird = Bird()
    bird.asks("no", word="word-1")
    assert bird.asks("it says word-1 here", word="word-2") == ["answer_of_another_request"]
    assert bird.asks("word-2 word-2") == ["answer_of_another_request"]


def test_a_word_that_is_no_longer_repeated_is_wrong_only_where_it_always_was() -> None:
    assert Bird().learns().asks("something else", word="word-9") == ["canary_changed"]
    assert Bird().learns(echoes=False).asks("something else", word="word-9") == []


def test_a_canary_that_got_no_answer_says_nothing_of_answers() -> None:
    bird = Bird().learns()
    assert bird.asks("", status=500, error="boom") == []
    assert bird.asks("", status=0, error="not waited for") == []
    assert CanaryDetector().check() is None


def test_a_wrong_answer_is_a_failure_of_the_run_with_its_evidence(history: Any) -> None:
    history.begin()
    for n, text in enumerate([COUNT] * 8 + ["1 2 3 cat"]):
        base = {"n": n, "kind": "exact", "when": "idle" if n < 3 else "load", "word": ""}
        history.add("canary", what="ask", **base)
        history.work(1).add("canary", what="answer", status=200, text=text, error="", **base)
    verdict = history.end().verdict()
    failure = verdict["failures"][0]
    assert (failure["id"], failure["count"], failure["severity"]) == ("canary_changed", 1, "request")
    assert failure["evidence"]["source"] == "canary"
    assert "this one is '1 2 3 cat'" in failure["evidence"]["text"]
    assert verdict["verdict"] == "fail"


def test_a_canary_without_its_answer_is_a_sign_of_a_hang_where_nobody_else_asks(world: Any) -> None:
    world.pids = {10: ("api_server", "S"), 11: ("engine_core", "T")}
    world.idle(3)
    world.add("canary", replica=None, n=1, what="ask", kind="exact", when="load", word="")
    world.run(9)
    machine = StateMachine("server")
    rows = [r for row in world.rows for r in machine.feed(row)]
    assert [r["to"] for r in rows] == ["healthy", "degraded", "hung"]
    assert "the canary has waited" in " ".join(rows[1]["signs"])
