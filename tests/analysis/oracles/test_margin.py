from loadchaos.analysis.oracles.alone_vs_load import AloneVsLoadOracle
from tests.analysis.oracles.conftest import MakeQuestions


def test_margin_follows_the_numerics_of_the_server(questions: MakeQuestions) -> None:
    for moved, limit in ((0.0, 0.1), (0.02, 0.1), (0.5, 2.0)):
        server = questions(AloneVsLoadOracle)
        server.calibrate(moved=moved)
        assert server.oracle.margin.limit == limit


def test_margin_is_wide_where_a_benign_load_flipped_a_token(questions: MakeQuestions) -> None:
    server = questions(AloneVsLoadOracle)
    server.calibrate()
    server.ask("a b c", part="reference", prompt="r4", when="idle", gaps=0.7)
    server.ask("a x y", part="reference", prompt="r4", when="busy", gaps=0.7)
    assert server.oracle.margin.limit == 1.4


def test_margin_is_unknown_with_few_tokens(questions: MakeQuestions) -> None:
    server = questions(AloneVsLoadOracle)
    server.calibrate(text="a b")
    assert server.oracle.margin.limit is None


def test_margin_ignores_a_clear_preference_that_changed_before_the_load(questions: MakeQuestions) -> None:
    server = questions(AloneVsLoadOracle)
    server.calibrate()
    server.ask("a b c", part="reference", prompt="r4", when="idle")
    server.ask("a x y", part="reference", prompt="r4", when="busy")
    assert server.oracle.margin.limit == 0.1
    server.ask("q", part="streamed")
    assert [f.id for f in server.found()] == ["answer_changed_under_load"]
