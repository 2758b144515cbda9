from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from loadchaos.analysis.incidents.bad_answers import bad_outcome
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.verdict import verdict as rules
from loadchaos.analysis.verdict.error_budget import excused
from loadchaos.analysis.verdict.expectations import ExpectationInputs, judge
from loadchaos.analysis.verdict.model import CheckResult, Evidence, FailureResult, Kind
from loadchaos.core.model import Acceptance, Terms
from loadchaos.core.typed_json import from_json

NOTHING = ExpectationInputs(counts={}, ok={}, outcomes={}, latency={}, recoveries_s=[])


def counts(*incidents: Incident, failures: Any = ()) -> Any:
    return rules.figures_of(failures, incidents, NOTHING).counts


def incident(kind: Kind, **more: Any) -> Incident:
    return replace(Incident(1, kind, "server", 0), **more)


@pytest.mark.parametrize(("count", "accepted"), [(4, True), (5, True), (6, False)])
def test_acceptance_at_most_holds_up_to_its_number(count: int, accepted: bool) -> None:
    failure = from_json(FailureResult, {"id": "x", "count": count})
    terms = Terms("p", accept=[Acceptance("x", "known", at_most=5)])
    (found,) = rules.accepted([failure], terms, date(2026, 1, 1))
    assert found.accepted is accepted


def test_restart_under_load_counts_as_a_death() -> None:
    found = counts(incident("restart"), incident("death"))
    assert (found["engine_deaths"], found["restarts"]) == (2, 1)


def test_death_that_the_server_outlived_is_no_engine_death() -> None:
    assert counts(incident("death", outlived=True), incident("death", starting=True))["engine_deaths"] == 0


@pytest.mark.parametrize(("lines", "accepted"), [(2, True), (3, False)])
def test_error_budget_covers_no_more_lines_of_a_log_than_requests_failed(lines: int, accepted: bool) -> None:
    line = FailureResult(
        id="unexplained_error", severity="request", title="", count=lines, attribution="server", known=(), remedy="",
        evidence=Evidence(source="server.log", line=1, text=""), incident=None, first_seen=None, accepted=False,
    )  # fmt: skip
    (found,) = excused(
        [line], [CheckResult(name="error_rate", expected="<= 1%", actual="1%", verdict="pass")], errors=2
    )
    assert found.accepted == accepted


def test_replicas_lost_counts_each_replica_once() -> None:
    deaths = [incident("death", replica=name) for name in ("a", "a", "b")]
    others = [incident("death", replica="c", outlived=True), incident("hang", replica="d")]
    assert counts(*deaths, *others)["replicas_lost"] == 2


def test_hang_that_only_the_log_tells_counts() -> None:
    logged = from_json(FailureResult, {"id": "shm_broadcast_stall", "severity": "hang", "count": 2})
    assert counts(failures=[logged])["hangs"] == 2
    assert counts(failures=[replace(logged, accepted=True)])["hangs"] == 0


def test_hang_in_the_log_of_a_known_hang_counts_once() -> None:
    logged = from_json(FailureResult, {"id": "x", "severity": "hang", "count": 1, "incidents": ["001-x"]})
    assert counts(incident("hang", ever_hung=True), failures=[logged])["hangs"] == 1


def test_outage_counts_though_its_failure_is_accepted() -> None:
    accepted = from_json(FailureResult, {"id": "outage_unexplained", "severity": "node", "count": 1, "accepted": True})
    assert counts(incident("outage"), failures=[accepted])["outages"] == 1
    assert counts(incident("outage", attribution="expected"))["outages"] == 0


def test_deaths_in_an_outage_are_not_known() -> None:
    figures = rules.figures_of((), [incident("outage")], NOTHING)
    for name in ("engine_deaths", "restarts", "replicas_lost"):
        found = judge(f"{name} == 0", figures)
        assert (found.verdict, found.actual) == ("unknown", "0, but what happened in the outage is not known")
    died = rules.figures_of((), [incident("outage"), incident("death")], NOTHING)
    assert judge("engine_deaths == 0", died).verdict == "fail"
    assert judge("engine_deaths == 0", rules.figures_of((), [], NOTHING)).verdict == "pass"


def test_outcomes_of_a_traffic_that_never_ran_are_unknown() -> None:
    figures = replace(NOTHING, outcomes={"": {"ok": 9}, "chat": {"ok": 9}})
    assert judge("chat.outcomes.reset == 0", figures).verdict == "pass"
    assert judge("chta.outcomes.reset == 0", figures).verdict == "unknown"
    assert judge("outcomes.reset == 0", replace(NOTHING, outcomes={})).verdict == "unknown"


@pytest.mark.parametrize(
    ("edge", "outcome"),
    [(-1, "unexpected_ok"), (0, "overlength_not_refused"), (1, "overlength_not_refused"), (None, "unexpected_ok")],
)
def test_overlength_begins_at_the_limit(edge: int | None, outcome: str) -> None:
    row: Any = {"row": "end", "outcome": "ok", "expect": ["rejected"], "edge": edge}
    assert bad_outcome(row) == outcome
