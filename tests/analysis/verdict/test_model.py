from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.analysis.verdict import model
from loadchaos.analysis.verdict.model import KnownIssue, Verdict
from loadchaos.core import resources
from loadchaos.core.typed_json import from_json
from tests.analysis.conftest import History
from tests.schemas import validate, validator

NOTHING = Verdict.from_json(None)


def test_schema_of_the_verdict_is_up_to_date() -> None:
    text = (resources.folder("schemas") / "verdict.json").read_text()
    assert text == model.schema(), "run `make schemas`"


def test_missing_verdict_is_unknown_and_fits_the_schema() -> None:
    assert (NOTHING.verdict, NOTHING.exit_code, NOTHING.failures, NOTHING.sent) == ("unknown", 3, (), 0)
    counts = dict.fromkeys(("expected", "ours", "known", "unexplained"), 0)
    validate(replace(NOTHING, failure_counts=counts).to_json())


def test_verdict_of_a_run_is_read_back_whole(history: History) -> None:
    written = history.begin().work(10).miss().idle(3).end().verdict()
    read = Verdict.from_json(written)
    assert read.to_json() == written
    assert list(read.to_json()) == list(written)
    assert read.failures[0].incidents == (read.failures[0].incident,)


@pytest.mark.parametrize("key", ["recovered_after_s", "noticed_after_s", "lost_requests", "signs"])
def test_failure_without_a_death_has_no_keys_of_a_death(key: str) -> None:
    (failure,) = Verdict.from_json({"failures": [{"id": "x", key: 1}]}).to_json()["failures"]
    assert key not in failure


def test_issues_of_earlier_versions_are_texts() -> None:
    (failure,) = Verdict.from_json({"failures": [{"id": "x", "known": ["a/b#1", {"issue": "a/b#2"}]}]}).failures
    assert failure.known == (KnownIssue(issue="a/b#1"), KnownIssue(issue="a/b#2"))


def test_failure_that_names_no_author_is_the_servers() -> None:
    (failure,) = Verdict.from_json({"failures": [{"id": "x"}]}).failures
    assert (failure.attribution, failure.accepted, failure.counts) == ("server", False, True)


SCHEMA: Any = validator("verdict").schema
KEYS = st.sampled_from([*SCHEMA["properties"], *SCHEMA["$defs"]["FailureResult"]["properties"], "p50", "n", "images"])
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=30,
)


@given(st.dictionaries(KEYS, NONSENSE, max_size=12))
def test_no_verdict_and_no_incident_is_refused(data: dict[str, Any]) -> None:
    assert Verdict.from_json(Verdict.from_json(data).to_json()) == Verdict.from_json(data)
    assert isinstance(from_json(IncidentRecord, data), IncidentRecord)
