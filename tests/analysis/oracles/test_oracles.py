from typing import Any

import pytest

from loadchaos.analysis.oracles import ORACLES
from loadchaos.analysis.oracles.adapters import AdaptersOracle
from loadchaos.analysis.oracles.alone_vs_load import AloneVsLoadOracle
from loadchaos.analysis.oracles.cold_warm import ColdWarmOracle
from loadchaos.analysis.oracles.image_canaries import ImageCanariesOracle
from loadchaos.analysis.oracles.keyed import KeyedOracle
from loadchaos.analysis.oracles.prefix_ladder import PrefixLadderOracle
from loadchaos.analysis.oracles.replicas import ReplicasOracle
from loadchaos.analysis.oracles.streamed import StreamedOracle
from loadchaos.analysis.verdict.model import CheckResult
from tests.analysis.oracles.conftest import MakeQuestions, Questions

RIGHT = "a b c d e f g h"


def keyed(server: Questions, *, exact: bool = True) -> Questions:
    server.calibrate()
    server.oracle.fold(
        {"row": "learned", "at_ns": 1, "kind": "copy", "used": True, "exact": exact, "asked": 6, "right": 6, "why": ""}
    )
    return server


@pytest.fixture
def server(questions: MakeQuestions) -> Questions:
    """A server whose answers of the kind `copy` are known to be exact."""
    return keyed(questions(KeyedOracle))


def test_oracles_are_detectors_and_describe_themselves() -> None:
    for oracle in ORACLES.values():
        assert oracle.detects
        assert "percentile" in oracle.false_alarms


# --- keyed ---------------------------------------------------------------------------------------------------------------


def again(server: Questions, text: str, times: int = 2, **more: Any) -> None:
    for _ in range(times):
        server.ask(text, part="probes", expected=RIGHT, role="again", group=7, **more)


def test_keyed_reports_an_answer_that_is_right_when_asked_again(server: Questions) -> None:
    server.ask("a b c e f g h", part="probes", expected=RIGHT, group=7)
    assert server.found() == []
    again(server, RIGHT)
    (failure,) = server.found()
    assert (failure.id, failure.wrong[0].expected, failure.wrong[0].got) == ("wrong_answer", RIGHT, "a b c e f g h")
    assert failure.wrong[0].first_difference == 6
    assert "margin 4.00, numerical noise of this server at most 0.10" in failure.wrong[0].summary


def test_keyed_finds_an_inserted_token_only_where_answers_are_exact(questions: MakeQuestions) -> None:
    for exact in (True, False):
        server = keyed(questions(KeyedOracle), exact=exact)
        server.ask(f"{RIGHT} h", part="probes", expected=RIGHT, group=7, gaps=[4.0] * 9)
        again(server, RIGHT)
        assert len(server.found()) == exact


@pytest.mark.parametrize("case", ["near tie", "wrong again", "answers differ", "cut off", "error"])
def test_keyed_reports_no_answer_that_numerics_or_the_model_explain(server: Questions, case: str) -> None:
    gaps = [4.0, 4.0, 4.0, 0.05, *[4.0] * 4]
    first = {"error": "x", "status": 500} if case == "error" else {"finish": "abort"} if case == "cut off" else {}
    server.ask("a b c x", part="probes", expected=RIGHT, group=7, gaps=gaps[:4] if case == "near tie" else 4.0, **first)
    if case == "answers differ":
        server.ask(f"{RIGHT} ", part="probes", expected=RIGHT, role="again", group=7)
        server.ask(RIGHT, part="probes", expected=RIGHT, role="again", group=7)
    else:
        again(server, "a b c x" if case == "wrong again" else RIGHT, gaps=gaps if case == "near tie" else 4.0)
    assert server.found() == []


def test_keyed_reports_an_answer_that_stays_wrong_until_the_server_is_idle(server: Questions) -> None:
    server.ask("a b x", part="probes", expected=RIGHT, group=7)
    again(server, "a b x")
    assert server.found() == []
    again(server, RIGHT, 1, when="after")
    assert [f.id for f in server.found()] == ["wrong_answer"]


def test_keyed_names_the_words_of_another_question(server: Questions) -> None:
    server.ask("q r s t", part="probes", expected="q r s t", prompt="copy q r s t")
    server.ask("q r s t", part="probes", expected=RIGHT, prompt=f"copy {RIGHT}", group=7)
    (failure,) = server.found()
    assert (failure.id, failure.wrong[0].summary) == ("answer_of_another_request", "it has the words of question 10")


def test_keyed_without_logprobs_needs_three_wrong_answers(server: Questions) -> None:
    for n in (1, 2, 3):
        server.ask("a x", part="probes", expected=RIGHT, group=7, gaps=None)
        again(server, RIGHT, gaps=None)
        assert len(server.found()) == (n == 3)
    assert server.check().verdict == "unknown"


def kept(server: Questions, *, anew: str = RIGHT, times: int = 2, gaps: Any = 4.0, last: str = "a b x") -> None:
    """A question that stays wrong: in turns from the cache and without it."""
    server.ask("a b x", part="probes", expected=RIGHT, group=7, gaps=gaps)
    again(server, "a b x", gaps=gaps)
    again(server, "a b x", 1, when="after", gaps=gaps)
    for n in range(times):
        server.ask(anew, part="probes", expected=RIGHT, role="anew", group=7, when="after", gaps=gaps)
        again(server, "a b x" if n < times - 1 else last, 1, when="after", gaps=gaps)


def test_keyed_reports_an_answer_that_is_right_only_without_the_prefix_cache(server: Questions) -> None:
    kept(server)
    (failure,) = server.found()
    assert failure.id == "wrong_answer"
    assert "wrong 3 times on the idle server, right 2 times in between" in failure.wrong[0].summary
    (check,) = server.oracle.finish()
    assert isinstance(check, CheckResult)
    assert check.verdict == "pass", "no answer is left that the model may have got wrong"


@pytest.mark.parametrize("case", ["wrong without the cache", "once", "near tie", "changes by itself", "no logprobs"])
def test_keyed_reports_no_answer_that_stays_wrong_without_a_proof(server: Questions, case: str) -> None:
    cases: dict[str, dict[str, Any]] = {
        "wrong without the cache": {"anew": "a b x"}, "once": {"times": 1}, "near tie": {"gaps": 0.05},
        "changes by itself": {"last": "a b y"}, "no logprobs": {"gaps": None},
    }  # fmt: skip
    kept(server, **cases[case])
    assert server.found() == []
    (note,) = [f for f in server.oracle.finish() if isinstance(f, str)]
    assert note.startswith("Questions: 1 answers stayed wrong on the idle server")


@pytest.mark.parametrize(("before", "wrong", "found"), [(0, 12, 1), (0, 11, 0), (50, 11, 1), (50, 1, 0), (50, 0, 0)])
def test_keyed_reports_new_questions_that_the_server_answered_right_before(
    questions: MakeQuestions, before: int, wrong: int, found: int
) -> None:
    server = keyed(questions(KeyedOracle))
    for n in range(before):
        server.ask(RIGHT, part="probes", expected=RIGHT, group=100 + n)
    for n in range(12):
        text = "a b x" if n < wrong else RIGHT
        server.ask(text, part="probes", expected=RIGHT, role="new", group=200 + n, when="after")
    assert [f.id for f in server.found()] == ["wrong_answer"] * found


@pytest.mark.parametrize(("wrong", "found"), [(30, 1), (16, 0)])
def test_keyed_reports_a_kind_that_is_wrong_under_load_and_right_when_idle(
    server: Questions, wrong: int, found: int
) -> None:
    for n in range(40):
        server.ask("a b x" if n < wrong else RIGHT, part="probes", expected=RIGHT, group=100 + n)
    for n in range(12):
        server.ask(RIGHT, part="probes", expected=RIGHT, role="new", group=200 + n, when="after")
    failures = server.found()
    assert [f.id for f in failures] == ["wrong_answer"] * found
    if found:
        assert "0 of 12 after it; 30 of 40 were wrong under load" in failures[0].wrong[0].summary


def asked_after_load(server: Questions, *, wrong: int, failed: int, asked: int = 12) -> Any:
    """50 right answers and one that stays wrong, then new questions, of which the last ones fail; gives the check."""
    for n in range(50):
        server.ask(RIGHT, part="probes", expected=RIGHT, group=100 + n)
    server.ask("a b x", part="probes", expected=RIGHT, group=7)
    again(server, "a b x")
    again(server, "a b x", 1, when="after")
    for n in range(asked):
        more: dict[str, Any] = {"status": 0, "error": "timeout"} if n >= asked - failed else {}
        text = "a b x" if n < wrong else RIGHT
        server.ask(text, part="probes", expected=RIGHT, role="new", group=200 + n, when="after", **more)
    return next(f for f in server.oracle.finish() if not isinstance(f, str))


@pytest.mark.parametrize(("wrong", "failed", "found"), [(11, 1, 1), (6, 6, 1), (0, 1, 0)])
def test_keyed_judges_the_new_questions_that_were_answered(
    questions: MakeQuestions, wrong: int, failed: int, found: int
) -> None:
    server = keyed(questions(KeyedOracle))
    check = asked_after_load(server, wrong=wrong, failed=failed)
    assert [f.id for f in server.found()] == ["wrong_answer"] * found
    assert check.verdict == "pass"


@pytest.mark.parametrize(("failed", "asked"), [(12, 12), (11, 12), (0, 11), (0, 0)])
def test_keyed_without_enough_new_answers_is_unknown(questions: MakeQuestions, failed: int, asked: int) -> None:
    server = keyed(questions(KeyedOracle))
    check = asked_after_load(server, wrong=0, failed=failed, asked=asked)
    assert server.found() == []
    assert check.verdict == "unknown"
    assert f"{asked - failed} of 12 new questions were answered after the load" in check.actual


def test_keyed_with_wrong_answers_that_were_not_asked_again_is_unknown(server: Questions) -> None:
    for n in range(3):
        server.ask("a b x", part="probes", expected=RIGHT, group=n)
    assert server.check().verdict == "unknown"
    assert "copy: unknown if 3 wrong are the model's own mistakes" in server.check().actual


def test_keyed_check_has_the_accuracy_of_each_kind(server: Questions) -> None:
    assert server.check().verdict == "unknown"
    for n in range(20):
        server.ask(RIGHT, part="probes", expected=RIGHT, group=n)
    assert server.check().actual == "copy 20 of 20 right (83.9% to 100.0%)"
    assert server.check().verdict == "pass"


# --- comparisons -----------------------------------------------------------------------------------------------------------

PAIRS: list[tuple[Any, str, str, str]] = [
    (ReplicasOracle, "", "", "identical_requests_differ"),
    (ColdWarmOracle, "cold", "warm", "cache_changes_answer"),
    (StreamedOracle, "whole", "streamed", "stream_differs"),
]


@pytest.mark.parametrize(("oracle", "first", "second", "failure_id"), PAIRS)
def test_pair_that_differs_beyond_numerics_is_reported(
    questions: MakeQuestions, oracle: Any, first: str, second: str, failure_id: str
) -> None:
    server = questions(oracle)
    server.calibrate()
    server.ask(RIGHT, part=oracle.asked_by, expected=RIGHT, role=first, group=3)
    server.ask("a b d e f g h", part=oracle.asked_by, expected=RIGHT, role=second, group=3)
    (failure,) = server.found()
    assert (failure.id, failure.wrong[0].expected, failure.wrong[0].first_difference) == (failure_id, RIGHT, 4)


def test_pair_whose_first_answer_is_known_to_be_wrong_does_not_blame_the_second(questions: MakeQuestions) -> None:
    """A load garbles the cold answer too: the warm one, which is right, does not make the cache guilty."""
    server = questions(ColdWarmOracle)
    server.calibrate()
    server.ask("a b d e f g h", part="cold_warm", expected=RIGHT, role="cold", group=3)
    for _ in range(2):
        server.ask(RIGHT, part="cold_warm", expected=RIGHT, role="warm", group=3)
    (failure,) = server.found()
    assert (failure.id, failure.wrong[0].expected, failure.wrong[0].got) == ("wrong_answer", RIGHT, "a b d e f g h")
    server.ask("a b x y e f g h", part="cold_warm", expected=RIGHT, role="warm", group=3)
    assert [f.id for f in server.found()] == ["cache_changes_answer"], "both are wrong: they still differ"


@pytest.mark.parametrize(("oracle", "first", "second", "failure_id"), PAIRS)
@pytest.mark.parametrize("case", ["equal", "near tie", "cut off", "no logprobs", "other group"])
def test_pair_of_a_healthy_server_is_not_reported(
    questions: MakeQuestions, oracle: Any, first: str, second: str, failure_id: str, case: str
) -> None:
    server = questions(oracle)
    server.calibrate()
    gaps = [4.0, 4.0, 0.05, 4.0, 4.0, 4.0, 4.0, 4.0] if case == "near tie" else None if case == "no logprobs" else 4.0
    text = RIGHT if case == "equal" else "a b c" if case == "cut off" else "a b x d e f g h"
    server.ask(RIGHT, part=oracle.asked_by, role=first, group=3, gaps=gaps)
    finish = "length" if case == "cut off" else "stop"
    server.ask(
        text, part=oracle.asked_by, role=second, group=4 if case == "other group" else 3, gaps=gaps, finish=finish
    )
    assert server.found() == []
    if case != "other group":
        assert server.check().verdict == ("unknown" if case == "no logprobs" else "pass")


def test_streamed_reports_text_that_its_own_tokens_do_not_make(questions: MakeQuestions) -> None:
    server = questions(StreamedOracle)
    server.calibrate()
    tokens: dict[str, Any] = {"gaps": [4.0] * 8, "tokens": list("abcdefgh")}
    server.ask("abcdefgh", part="streamed", role="whole", group=3, **tokens)
    server.ask("abcefgh", part="streamed", role="streamed", group=3, **tokens)
    (failure,) = server.found()
    assert failure.wrong[0].summary == "its text is not that of its own tokens"


def test_streamed_is_off_where_idle_pairs_differ(questions: MakeQuestions) -> None:
    server = questions(StreamedOracle)
    server.calibrate()
    for when in ("idle", "load"):
        server.ask(RIGHT, part="streamed", role="whole", group=3, when=when)
        server.ask("a x", part="streamed", role="streamed", group=3, when=when)
    assert server.found() == []
    check = server.check()
    assert (check.verdict, check.actual) == (
        "unknown",
        "1 pairs were not compared: those of the idle server differ already",
    )


@pytest.mark.parametrize(
    ("streamed", "whole", "finish", "equal"),
    [
        ("a b c", "a b c\ufffd\ufffd", "length", True),
        ("a b c", "a b c \ufffd", "length", True),
        ("a b", "a b c\ufffd", "length", False),
        ("a b", "a b c", "length", False),
        ("a b c", "a b c\ufffd", "stop", False),
    ],
    ids=["cut within a character", "its token begins with a blank", "a word less", "no character cut", "not cut off"],
)
def test_streamed_without_logprobs_ignores_a_character_that_max_tokens_cut(
    questions: MakeQuestions, streamed: str, whole: str, finish: str, equal: bool
) -> None:
    server = questions(StreamedOracle)
    for role, text in (("streamed", streamed), ("whole", whole)):
        server.ask(text, part="streamed", role=role, group=3, finish=finish, gaps=None)
    assert server.check().actual == "1 pairs, 0 differ, 0 near ties" + ("" if equal else ", 1 differ without logprobs")
    assert server.check().verdict == ("pass" if equal else "unknown")


def test_streamed_stays_on_where_an_idle_pair_differs_in_a_cut_character(questions: MakeQuestions) -> None:
    server = questions(StreamedOracle)
    for when, tail in (("idle", "\ufffd"), ("load", "")):
        server.ask("a b c", part="streamed", role="streamed", group=3, when=when, finish="length", gaps=None)
        server.ask(f"a b c{tail}", part="streamed", role="whole", group=3, when=when, finish="length", gaps=None)
    assert server.check().verdict == "pass"


def test_cold_warm_counts_proved_hits(questions: MakeQuestions) -> None:
    server = questions(ColdWarmOracle)
    server.ask(RIGHT, part="cold_warm", role="cold", group=3, cached_tokens=0)
    server.ask(RIGHT, part="cold_warm", role="warm", group=3, cached_tokens=32)
    assert server.check().actual == "1 pairs (1 proved to be cache hits), 0 differ, 0 near ties"


def test_alone_vs_load_reports_a_changed_answer_with_the_idle_one(questions: MakeQuestions) -> None:
    server = questions(AloneVsLoadOracle)
    server.calibrate(text=" ".join(f"t{i}" for i in range(60)))
    server.ask("t0 t1 x", part="reference", prompt="r1")
    (failure,) = server.found()
    assert failure.id == "answer_changed_under_load"
    assert failure.wrong[0].facts["idle answer"].startswith("t0 t1 t2")
    assert server.check().verdict == "pass"


def test_alone_vs_load_without_logprobs_compares_texts(questions: MakeQuestions) -> None:
    server = questions(AloneVsLoadOracle)
    server.calibrate(text="one two three four", gaps=False)
    for text in ("one two three", "one two three four", "one two three five", "one two four"):
        server.ask(text, part="reference", prompt="r1", gaps=None)
    (failure,) = server.found()
    assert failure.wrong[0].got == "one two four"


# --- images --------------------------------------------------------------------------------------------------------------


def pictures(server: Questions, *, moved: float = 0.02, gaps: bool = True, last: float = 4.0) -> Any:
    server.calibrate(gaps=gaps)
    for number in ("473", "918", "205"):
        for role, shift in (("same", 0.0), ("neighbour", moved)):
            gap = [4.0 + shift, 4.0, last] if gaps else None
            server.ask(f"it is {number}", part="images", kind=number, role=role, when="idle", gaps=gap)
    return server


def test_images_report_the_answer_about_another_image(questions: MakeQuestions) -> None:
    server = pictures(questions(ImageCanariesOracle))
    server.ask("it is 918", part="images", kind="473", role="neighbour", expected="473")
    (failure,) = server.found()
    (wrong,) = failure.wrong
    assert (failure.id, wrong.expected, wrong.first_difference) == ("answer_of_another_image", "it is 473", 6)
    assert wrong.facts["image"] == "the number 473"
    assert wrong.facts["answer about the image"] == "the number 918"
    server.ask("it is nothing", part="images", kind="473", role="same")
    assert [f.id for f in server.found()] == ["answer_changed_under_load"]
    assert server.check().actual == "2 answers about 3 images, 2 differ, 0 near ties"


@pytest.mark.parametrize("case", ["equal", "near tie", "moved by a pixel", "cut off", "unknown picture"])
def test_images_of_a_healthy_server_are_not_reported(questions: MakeQuestions, case: str) -> None:
    moved, gap = 1.5 if case == "moved by a pixel" else 0.02, {"near tie": 0.05, "moved by a pixel": 5.0}.get(case, 4.0)
    server = pictures(questions(ImageCanariesOracle), moved=moved, last=gap)
    server.ask(
        "it is 473" if case == "equal" else "it is 918", part="images", role="neighbour",
        kind="111" if case == "unknown picture" else "473", gaps=[4.0, 4.0, gap],
        finish="abort" if case == "cut off" else "stop",
    )  # fmt: skip
    assert server.found() == []


def test_images_without_logprobs_need_three_answers_about_other_images(questions: MakeQuestions) -> None:
    server = pictures(questions(ImageCanariesOracle), gaps=False)
    for n in (1, 2, 3):
        server.ask("it is 918", part="images", kind="473", role="same", gaps=None)
        assert [f.id for f in server.found()] == ["answer_of_another_image"] * (n == 3)
    assert server.check().verdict == "unknown"


# --- adapters ------------------------------------------------------------------------------------------------------------


def adapters(server: Questions, *, gaps: bool = True, **idle: str) -> Any:
    server.calibrate(gaps=gaps)
    for model, text in (idle or {"base": "to be or not", "alpha": "to see or not", "beta": "so we go on"}).items():
        server.ask(text, part="adapters", prompt="s1", model=model, when="idle", gaps=4.0 if gaps else None)
    return server


@pytest.mark.parametrize(
    ("model", "text", "found", "of"),
    [
        ("alpha", "to be or not", "adapter_ignored", "base"),
        ("beta", "to see or not", "answer_of_another_adapter", "alpha"),
        ("base", "so we go on", "answer_of_another_adapter", "beta"),
        ("beta", "so they", "answer_changed_under_load", None),
    ],
)  # fmt: skip
def test_adapters_report_the_answer_of_another_model(
    questions: MakeQuestions, model: str, text: str, found: str, of: str | None
) -> None:
    server = adapters(questions(AdaptersOracle))
    server.ask(text, part="adapters", prompt="s1", model=model)
    (failure,) = server.found()
    assert (failure.id, failure.wrong[0].facts.get("idle answer of")) == (found, of)
    assert failure.wrong[0].facts["model"] == model


@pytest.mark.parametrize("case", ["equal", "near tie", "cut off", "model not asked", "other prompt"])
def test_adapters_of_a_healthy_server_are_not_reported(questions: MakeQuestions, case: str) -> None:
    server = adapters(questions(AdaptersOracle))
    if case == "near tie":
        server.ask("near tie", part="adapters", prompt="s2", model="alpha", when="idle", gaps=0.05)
    text = "to see or not" if case == "equal" else "to be or not"
    server.ask(
        text, part="adapters", prompt={"near tie": "s2", "other prompt": "s3"}.get(case, "s1"),
        model="gamma" if case == "model not asked" else "alpha", gaps=0.05 if case == "near tie" else 4.0,
        finish="abort" if case == "cut off" else "stop",
    )  # fmt: skip
    assert server.found() == []


def test_adapters_that_answer_like_the_base_model_leave_the_check_unknown(questions: MakeQuestions) -> None:
    server = adapters(questions(AdaptersOracle), base="to be", alpha="to be")
    server.ask("to be", part="adapters", prompt="s1", model="alpha")
    assert server.check().verdict == "unknown"
    assert server.check().actual.endswith("all models answer alike when idle")
    server = adapters(questions(AdaptersOracle))
    server.ask("to see or not", part="adapters", prompt="s1", model="alpha")
    assert server.check().verdict == "pass"


def test_adapters_without_logprobs_need_three_answers_of_another_model(questions: MakeQuestions) -> None:
    server = adapters(questions(AdaptersOracle), gaps=False)
    for n in (1, 2, 3):
        server.ask("to be or not", part="adapters", prompt="s1", model="alpha", gaps=None)
        assert [f.id for f in server.found()] == ["adapter_ignored"] * (n == 3)
    assert server.check().verdict == "unknown"


# --- prefix ladder -------------------------------------------------------------------------------------------------------


def rung(server: Questions, role: str, text: str = RIGHT, tokens: int = 80, **more: Any) -> None:
    given = {"kind": "80 tokens", "prompt_tokens": tokens, "cached_tokens": 0 if role == "cold" else 64, **more}
    server.ask(text, part="prefix_ladder", role=role, group=3, **given)


@pytest.mark.parametrize(
    ("role", "found"), [("warm", "cache_changes_answer"), ("after_aborts", "aborts_change_answer")]
)
def test_ladder_reports_an_answer_that_differs_from_the_cold_one(
    questions: MakeQuestions, role: str, found: str
) -> None:
    server = questions(PrefixLadderOracle)
    server.calibrate()
    rung(server, "cold")
    rung(server, role, "a b d e f g h")
    (failure,) = server.found()
    assert (failure.id, failure.wrong[0].first_difference) == (found, 4)
    assert failure.wrong[0].summary.startswith("a prompt of 80 tokens; token 2, margin 4.00")


def test_ladder_of_a_healthy_server_passes_with_its_lengths_and_hits(questions: MakeQuestions) -> None:
    server = questions(PrefixLadderOracle)
    server.calibrate()
    for role in ("cold", "warm", "after_aborts"):
        rung(server, role)
    rung(server, "warm", "a b d", finish="abort")
    rung(server, "warm", "a b d", when="idle")
    assert server.found() == []
    expected = "2 pairs at 1 lengths (2 proved to be cache hits), 0 differ, 0 near ties"
    assert (server.check().verdict, server.check().actual) == ("pass", expected)


@pytest.mark.parametrize("case", ["no logprobs", "other lengths"])
def test_ladder_that_proves_nothing_is_unknown(questions: MakeQuestions, case: str) -> None:
    server = questions(PrefixLadderOracle)
    server.calibrate()
    gaps, tokens = (None, 80) if case == "no logprobs" else (4.0, 81)
    rung(server, "cold", gaps=gaps, tokens=tokens)
    rung(server, "warm", "a b d" if case == "no logprobs" else RIGHT, gaps=gaps, tokens=tokens)
    assert server.found() == []
    assert server.check().verdict == "unknown"


# --- idle answers that disagree ------------------------------------------------------------------------------------------

UNSTEADY = {
    "row": "learned", "at_ns": 1, "kind": "equal answers", "used": False, "exact": False, "asked": 3, "right": 0,
    "why": "the idle server gave different answers to equal prompts (3 of 3)",
}  # fmt: skip


@pytest.mark.parametrize("oracle", [o for o in ORACLES.values() if o is not KeyedOracle])
def test_oracle_that_compares_is_off_where_idle_answers_disagree(questions: MakeQuestions, oracle: Any) -> None:
    server = questions(oracle)
    server.oracle.fold(UNSTEADY)
    server.calibrate()
    part = "reference" if oracle is AloneVsLoadOracle else oracle.asked_by
    for role, text in (("cold", RIGHT), ("warm", "x y"), ("whole", RIGHT), ("streamed", "y z")):
        server.ask(text, part=part, prompt="r1", role=role, group=3)
    assert server.found() == []
    assert server.check().verdict == "unknown"
    assert server.check().actual == f"4 answers not compared: {UNSTEADY['why']}"
    assert questions(oracle).oracle.finish() == []


def test_keyed_goes_on_where_idle_answers_disagree(server: Questions) -> None:
    server.oracle.fold(UNSTEADY)
    server.ask("a b x", part="probes", expected=RIGHT, group=7)
    again(server, RIGHT)
    assert [f.id for f in server.found()] == ["wrong_answer"]


@pytest.mark.parametrize(
    ("after", "found"), [("right", True), ("wrong", False), (None, False)], ids=["confirmed", "withdrawn", "not asked"]
)
def test_remembered_idle_answer_has_to_be_confirmed_after_the_load(
    questions: MakeQuestions, after: str | None, found: bool
) -> None:
    texts = {"right": "t0 t1 t2", "wrong": "t0 x t2"}
    asked = questions(AloneVsLoadOracle)
    asked.calibrate()
    asked.ask(texts["right"], part="reference", prompt="p", when="idle", remembered=True)
    asked.ask("t0 y t2", part="reference", prompt="p", when="busy", remembered=True)
    asked.ask(texts["wrong"], part="reference", prompt="p", when="load")
    assert not asked.found(), "nothing is known of the server's state now"
    if after is not None:
        asked.ask(texts[after], part="reference", prompt="p", when="after")
    assert bool(asked.found()) is found
    assert asked.check().verdict == ("pass" if found else "unknown")
