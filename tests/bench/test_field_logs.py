from collections import Counter

import pytest

from bench.field_logs import FORMS, Score, half, healthy, load, score, table

CASES = load()


@pytest.fixture(scope="module")
def scores() -> list[Score]:
    return [score(case) for case in CASES]


def test_field_cases_are_of_known_forms_and_in_both_halves() -> None:
    assert {case.form for case in CASES} <= set(FORMS)
    assert all(case.decisive in "\n".join((*case.lines, case.frame)) for case in CASES)
    sizes = Counter(half(case) for case in CASES)
    held_out = sum(sizes.values()) - sizes["known"]
    assert min(sizes["known"], held_out) >= len(CASES) // 3
    assert len({case.source for case in CASES}) == len(CASES)


def test_field_causes_are_shown_and_named(scores: list[Score]) -> None:
    for name, row in table(scores).items():
        if row["cases"]:
            assert row["shown"] >= 0.9, name
            assert row["severity"] >= 0.88, name
            assert row["named"] >= 0.7, name


def test_field_logs_have_at_most_three_findings(scores: list[Score]) -> None:
    assert [s.case.source for s in scores if len(s.found) > 3] == []


def test_healthy_logs_are_silent() -> None:
    assert {name: found for name, found in healthy().items() if found} == {}
