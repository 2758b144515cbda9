from __future__ import annotations

from typing import Any

import pytest

from loadchaos.analysis.detectors.canary import CanaryDetector, Tolerated, foreign_word, learn
from loadchaos.analysis.state.machine import StateMachine
from tests.analysis.conftest import History, World
from tests.rows import S, checks

COUNT = "1 2 3 4 5 6 7 8 9 10 11 12"


def test_canary_learns_equal_answers_whole() -> None:
    assert learn([COUNT, COUNT, COUNT]) == Tolerated(COUNT, whole=True)
    assert not Tolerated(COUNT, whole=True).admits(COUNT + " 13")


def test_canary_learns_the_common_prefix_of_different_answers() -> None:
    tolerated = learn([COUNT, COUNT[:20] + "x y z", COUNT])
    assert tolerated == Tolerated(COUNT[:20], whole=False)
    assert tolerated.admits(COUNT[:20] + "anything")
    assert not tolerated.admits("1 2 3 5")


@pytest.mark.parametrize("answers", [[], [COUNT], [COUNT, "One two three"], [COUNT, ""]])
def test_canary_learns_nothing_of_too_few_or_unlike_answers(answers: list[str]) -> None:
    assert learn(answers) is None


def test_foreign_word_is_one_of_another_canary() -> None:
    words = ["canary-1", "canary-2"]
    assert foreign_word("canary-2 and so on", "canary-2", words) is None
    assert foreign_word("canary-1 and so on", "canary-2", words) == "canary-1"


class Canary:
    def __init__(self) -> None:
        self.detector, self.n = CanaryDetector(), 0

    def ask(self, text: str, when: str = "load", word: str = "", **more: Any) -> list[str]:
        self.n += 1
        base = {"row": "canary", "n": self.n, "kind": "echo" if word else "exact", "when": when, "word": word}
        self.detector.fold({**base, "what": "ask", "at_ns": self.n * S})
        answer = {"what": "answer", "status": 200, "error": "", "text": text, "at_ns": self.n * S}
        self.detector.fold({**base, **answer, **more})
        return [failure.id for failure in self.detector.poll(0)]

    def learn(self, text: str = COUNT, *, echoes: bool = True) -> Canary:
        for n in range(3):
            assert self.ask(text, "idle") == []
            assert self.ask(f"word-{n}" if echoes else "no", "idle", word=f"word-{n}") == []
        return self


def test_canary_reports_an_answer_that_changes_under_load() -> None:
    canary = Canary().learn()
    assert [canary.ask(COUNT) for _ in range(5)] == [[]] * 5
    assert canary.ask("1 2 3 cat") == ["canary_changed"]
    assert canary.ask(COUNT) == []
    [check] = checks(canary.detector)
    assert check.actual == "7 answers under load, 1 wrong (compared: whole answer, own word)"


def test_canary_tolerates_numerics_under_load() -> None:
    canary = Canary().learn()
    assert [canary.ask(COUNT[:16] + f" and {n}") for n in range(20)] == [[]] * 20
    assert canary.ask("2 2 3") == ["canary_changed"]


@pytest.mark.parametrize("odd", [COUNT[:12] + " cat", "garbage", ""])
def test_canary_does_not_learn_corruption_among_the_first_answers(odd: str) -> None:
    canary = Canary().learn()
    assert [canary.ask(text) for text in (COUNT, odd, COUNT, COUNT, odd)] == [[]] * 5
    [check] = checks(canary.detector)
    assert check.verdict == "unknown"
    assert f"2 differ from all others, numerics or corruption ({odd!r} was among the first 3)" in check.actual


def test_canary_reports_what_differs_before_a_doubtful_answer() -> None:
    canary = Canary().learn()
    assert [canary.ask(text) for text in (COUNT, COUNT[:12] + " cat", COUNT)] == [[]] * 3
    assert canary.ask("2 2 3") == ["canary_changed"]


def test_canary_compares_nothing_of_a_random_model() -> None:
    canary = Canary()
    for n in range(3):
        canary.ask(f"{n} answers", "idle")
    assert [canary.ask(f"{n} others") for n in range(20)] == [[]] * 20
    [check] = checks(canary.detector)
    assert check.verdict == "unknown"


def test_canary_reports_another_canarys_word() -> None:
    canary = Canary()
    canary.ask("no", word="word-1")
    assert canary.ask("it says word-1 here", word="word-2") == ["answer_of_another_request"]
    assert canary.ask("word-2 word-2") == ["answer_of_another_request"]


def test_canary_reports_a_missing_echo_only_where_echoes_were_reliable() -> None:
    assert Canary().learn().ask("something else", word="word-9") == ["canary_changed"]
    assert Canary().learn(echoes=False).ask("something else", word="word-9") == []


def test_canary_without_an_answer_proves_nothing() -> None:
    canary = Canary().learn()
    assert canary.ask("", status=500, error="boom") == []
    assert canary.ask("", status=0, error="not waited for") == []
    assert CanaryDetector().finish() == []


def test_canary_wrong_answer_is_a_failure_of_the_run(history: History) -> None:
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


def test_canary_without_its_answer_is_a_sign_of_a_hang(world: World) -> None:
    world.processes(engine="T")
    world.idle(3).add("canary", replica=None, n=1, what="ask", kind="exact", when="load", word="")
    world.run(9)
    machine = StateMachine("server")
    rows = [r for row in world.rows for r in machine.changes_after(row)]
    assert [r["to"] for r in rows] == ["healthy", "degraded", "hung"]
    assert "canary unanswered" in " ".join(rows[1]["signs"])
