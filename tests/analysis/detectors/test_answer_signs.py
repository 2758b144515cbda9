import random

import pytest

from loadchaos.analysis.detectors.answer_signs import REFERENCE, AnswerSigns
from loadchaos.analysis.verdict.model import CheckResult
from tests.rows import S


def fold(signs: list[list[str]], idle: list[list[str]] | None = None, ratios: list[float] | None = None) -> AnswerSigns:
    detector, answer = AnswerSigns(), {"traffic": "t", "outcome": "ok"}
    for one in idle or []:
        detector.fold({**answer, "row": "baseline", "at_ns": 0, "signs": one, "text_ratio": 0.6})
    for n, one in enumerate(signs):
        end = {**answer, "row": "end", "id": f"r{n}", "at_ns": n * S}
        detector.fold({**end, "signs": one, "text_ratio": ratios[n] if ratios else 0.6})
    return detector


def found(detector: AnswerSigns) -> list[str]:
    return [failure.id for failure in detector.poll(0)]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.6, 1.0])
def test_model_that_repeats_itself_by_nature_raises_no_alarm(share: float) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        drawn = [["repeated_token"] if rng.random() < share else [] for _ in range(1506)]
        assert found(fold(drawn[6:], drawn[:6])) == []


def test_answers_that_become_exclamation_marks_are_reported_each() -> None:
    broken = ["exclamation_run", "repeated_token"]
    detector = fold([[]] * 300 + [broken] * 40, [[]] * 6)
    ids = found(detector)
    assert set(ids) == {"degenerate_text"}
    assert len(ids) == 80, "both signs of all forty answers, those before the decision too"


def test_half_of_the_answers_broken_from_the_begin_are_found_by_idle_answers() -> None:
    assert "degenerate_text" in found(fold([["repeated_token"]] * 60, [[]] * 6))
    assert found(fold([["repeated_token"]] * 60)) == [], "nothing to compare with"


def test_text_ratio_far_from_the_reference_is_reported() -> None:
    ratios = [0.6] * (REFERENCE + 50) + [0.1] * 30
    assert set(found(fold([[]] * len(ratios), ratios=ratios))) == {"degenerate_text"}
    alike = [0.55 + 0.1 * (n % 2) for n in range(500)]
    assert found(fold([[]] * 500, ratios=alike)) == []


def test_one_chunk_with_another_id_is_reported_where_there_was_none() -> None:
    assert found(fold([[]] * 150 + [["chunk_id_changes"]])) == ["chunk_of_another_answer"]
    assert found(fold([["chunk_id_changes"]] * 300)) == [], "a gateway that makes up ids"


def test_sign_of_the_model_itself_is_a_note() -> None:
    notes = fold([["replacement_character"]] * 200, [["replacement_character"]] * 6).finish()
    assert notes == [
        "traffic t: 206 of 206 answers hold U+FFFD, a character that could not be decoded, idle as under load"
    ]


@pytest.mark.parametrize(("sign", "healthy"), [("one_word", 0), ("exclamation_run", 300), ("token_pairs", 300)])
@pytest.mark.parametrize("idle", [False, True])
def test_answers_of_one_word_from_the_begin_leave_their_text_unjudged(sign: str, healthy: int, idle: bool) -> None:
    signs = [[sign], *[[]] * (healthy // 40)] * 40
    assert fold([[sign]] * 40, [[]] * 6).finish() == [], "that is a failure"
    (check,) = fold(signs, [[sign]] * 6 if idle else []).finish()
    assert isinstance(check, CheckResult)
    assert (check.name, check.verdict) == ("degeneration", "unknown")


@pytest.mark.parametrize(
    ("sign", "share"), [("one_word", 0.1), ("repeated_token", 0.3), ("replacement_character", 0.3)]
)
def test_signs_that_no_idle_answer_explains_leave_the_text_unjudged(sign: str, share: float) -> None:
    signs: list[list[str]] = [[sign] if n % 20 < 20 * share else [] for n in range(160)]
    (check,) = fold(signs).finish()
    assert isinstance(check, CheckResult)
    assert (check.name, check.verdict) == ("degeneration", "unknown")
    (note,) = fold(signs, signs).finish()
    assert "idle as under load" in str(note)


def test_text_behind_its_end_may_repeat_itself() -> None:
    (note,) = fold([["repeated_token", "ignores_eos"]] * 160).finish()
    assert "repeat one token" in str(note) and "ignores_eos" not in str(note)
    assert fold([["ignores_eos"]] * 160).finish() == []
