from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from loadchaos.analysis.capacity.step_watch import StepPlan, StepWatch
from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.core.typed_json import to_json
from tests.rows import S

Row = dict[str, Any]
GOAL = StepPlan("rate", 50.0, 0.99, {"ttft": 1.0}, look_s=15.0, most_s=60.0)


def rows(
    ttft_s: Callable[[float], float],
    rate: float = 50.0,
    seconds: float = 90.0,
    late_s: float = 0.0,
    values: Row | None = None,
    detail: Row | None = None,
) -> Iterator[Row]:
    """Rows of requests at a constant rate, in the order of time; TTFT by due time."""
    found = []
    for n in range(int(rate * seconds)):
        due_s = n / rate
        first_s = due_s + ttft_s(due_s)
        found.append((due_s, 0, {"row": "begin", "id": str(n), "due_ns": int(due_s * S), "at_ns": int(due_s * S)}))
        end = {
            "row": "end", "id": str(n), "outcome": "ok", "due_ns": int(due_s * S), "at_ns": int((first_s + 0.2) * S),
            "sent_ns": int((due_s + late_s) * S), "first_token_ns": int(first_s * S), "expect": ["ok"],
            "last_byte_ns": int((first_s + 0.2) * S), "itl_hist": {}, "prompt_tokens": 8, "completion_tokens": 4,
            "detail": detail,
        }  # fmt: skip
        found.append((first_s + 0.2, 1, end))
    for n in range(int(seconds * 4)):
        found.append((n / 4, 2, {"row": "heartbeat", "at_ns": n * S // 4, "cpu_share": 0.2, "lag_ns": 0}))
        if values is not None and n % 4 == 0:
            found.append(
                (n / 4, 3, {"row": "metrics", "replica": "r", "engine": "0", "at_ns": n * S // 4, "values": values})
            )
    yield {"row": "load", "what": "begin", "at_ns": 0}
    for _, _, row in sorted(found, key=lambda f: f[:2]):
        yield row


def watched(plan: StepPlan, source: Iterator[Row]) -> StepWatch:
    watch = StepWatch(plan)
    for row in source:
        watch.fold(row)
        if watch.reason() is not None:
            break
    watch.finish()
    return watch


def test_step_with_good_requests_is_met_at_the_first_look() -> None:
    found = to_json(watched(GOAL, rows(lambda _: 0.1)).result())
    assert (found["status"], found["leans"], found["goodput"]) == ("met", True, 1.0)
    assert 15 <= found["measured_s"] < 20
    assert found["goodput_low"] >= 0.99
    assert found["requests_per_s"] == pytest.approx(50, rel=0.05)
    assert found["output_tokens_per_s"] == pytest.approx(200, rel=0.05)


def test_step_leaves_the_warm_up_out() -> None:
    found = to_json(watched(GOAL, rows(lambda due_s: 3.0 if due_s < 2 else 0.1)).result())
    assert (found["status"], found["goodput"]) == ("met", 1.0)
    assert found["warm_up_s"] >= 3


def test_step_with_bad_requests_ends_early() -> None:
    found = to_json(watched(GOAL, rows(lambda due_s: 1.5 if int(due_s * 50) % 4 == 0 else 0.1)).result())
    assert (found["status"], found["leans"]) == ("not_met", False)
    assert found["seconds"] < 16
    assert found["over"]["ttft"] == pytest.approx(found["requests"] / 4, abs=2)


def test_step_near_the_goal_stays_undecided() -> None:
    found = to_json(watched(GOAL, rows(lambda due_s: 1.5 if int(due_s * 50) % 100 == 0 else 0.1)).result())
    assert (found["status"], found["goodput"]) == ("undecided", pytest.approx(0.99, abs=0.001))
    assert found["measured_s"] >= 55


def test_step_with_a_growing_queue_ends_before_a_limit_is_exceeded() -> None:
    """At 5 % above the capacity, TTFT grows by 50 ms a second: 3 s is exceeded after a minute only."""
    values = {"requests_waiting": 5.0, "requests_running": 8.0}
    plan = StepPlan("rate", 200.0, 0.99, {"ttft": 3.0}, look_s=15.0, most_s=60.0)
    found = to_json(watched(plan, rows(lambda due_s: 0.05 * due_s, rate=200.0, seconds=40.0, values=values)).result())
    assert found["seconds"] < 35
    assert (found["status"], found["queue_grows"]) == ("not_met", True)
    assert found["goodput"] == 1.0
    assert "grows without end" in found["why"]


def test_step_whose_server_has_no_queue_is_not_overloaded() -> None:
    values = {"requests_waiting": 0.0, "requests_running": 8.0}
    found = to_json(watched(GOAL, rows(lambda due_s: min(0.9, 0.05 * due_s), values=values, seconds=20)).result())
    assert found["status"] == "undecided"
    assert not found["queue_grows"]


def test_step_of_a_late_client_does_not_blame_the_server() -> None:
    found = to_json(watched(GOAL, rows(lambda _: 1.2, late_s=1.1)).result())
    assert found["status"] == "client"
    assert found["why"].startswith("our own client sends late: the median delay is 1")


def test_step_of_a_server_slow_to_accept_is_not_excused_as_a_late_client() -> None:
    slow = rows(lambda _: 1.2, late_s=1.1, detail={"connect_ns": 1_100_000_000})
    assert watched(GOAL, slow).status == "not_met"


def test_step_that_is_met_in_spite_of_a_late_client_is_met() -> None:
    assert watched(GOAL, rows(lambda _: 0.2, late_s=0.1)).status == "met"


@pytest.mark.parametrize("plan", [GOAL, replace(GOAL, by="concurrency", load=5.0)], ids=["rate", "users"])
def test_step_counts_requests_that_never_end_as_not_good(plan: StepPlan) -> None:
    def lost(source: Iterator[Row]) -> Iterator[Row]:
        for row in source:
            if row["row"] != "end" or int(row["id"]) % 25:
                yield row

    found = to_json(watched(plan, lost(rows(lambda _: 0.1, values={"requests_waiting": 0.0}))).result())
    assert found["status"] == "undecided"  # they may still end well
    assert found["unfinished"] > 0.03 * found["requests"]
    assert found["goodput"] < 0.97


def without_slots(source: Iterator[Row]) -> Iterator[Row]:
    for row in source:
        yield row
        if row["row"] == "heartbeat":
            yield {"row": "missed", "why": "no_slot", "count": 3, "at_ns": row["at_ns"]}


def test_step_counts_requests_that_found_no_slot_as_not_good() -> None:
    found = to_json(watched(GOAL, without_slots(rows(lambda due_s: 0.1 if int(due_s * 50) % 20 else 3.0))).result())
    assert found["status"] == "not_met"
    assert found["not_sent"] > 10


def test_step_whose_own_limit_of_requests_in_flight_was_reached_does_not_blame_the_server() -> None:
    found = to_json(watched(GOAL, without_slots(rows(lambda _: 0.1))).result())
    assert found["status"] == "client"
    assert found["why"].startswith("our own client had as many requests in flight as it may, and did not send ")
    assert found["goodput"] < 0.9


def test_step_keeps_its_figures_while_the_load_drains() -> None:
    watch = StepWatch(GOAL)
    source = rows(lambda due_s: 0.1 * due_s, values={"requests_waiting": 9.0, "requests_running": 8.0})
    for row in source:
        watch.fold(row)
        if watch.reason() is not None:
            break
    decided = to_json(watch.result())
    assert decided["status"] == "not_met"
    for n in range(5000):
        end_ns = (40 + n % 10) * S
        watch.fold({"row": "end", "id": str(n), "outcome": "aborted", "at_ns": end_ns, "due_ns": S, "expect": ["ok"]})
        watch.fold({"row": "heartbeat", "at_ns": end_ns, "cpu_share": 1.0})
    watch.finish()
    assert to_json(watch.result()) == decided


def test_scout_step_whose_whole_interval_is_below_the_goal_is_missed() -> None:
    plan = StepPlan("rate", 2.0, 0.99, {"ttft": 0.1}, look_s=15.0, most_s=60.0, scout=True)
    found = watched(plan, rows(lambda _: 0.2, rate=2.0)).result()
    assert (found.status, found.good) == ("not_met", 0)
    assert found.requests < 30
    assert found.goodput_high is not None
    assert found.goodput_high < 0.99


def test_step_counts_what_was_due_beside_what_was_completed() -> None:
    plan = StepPlan("rate", 3.0, 0.99, {"ttft": 90.0}, look_s=15.0, most_s=60.0, scout=True)
    found = watched(plan, rows(lambda due_s: 0.4 * due_s, rate=3.0)).result()
    assert found.offered == pytest.approx(3 * found.completing_s, abs=2)
    assert 0.6 < found.completed / found.offered < 0.8


def test_step_has_the_latencies_of_the_fold_of_a_run() -> None:
    """Also those of requests that had no answer in time, as lower bounds."""
    source = list(rows(lambda due_s: 3.0 if int(due_s * 50) % 40 == 0 else 0.1))
    for row in source:
        if row["row"] == "end" and int(row["id"]) % 40 == 0:
            row["outcome"] = "timeout"
            del row["first_token_ns"], row["last_byte_ns"]
    found = watched(GOAL, iter(source)).result()
    begin_s, end_s = found.warm_up_s or 0, (found.warm_up_s or 0) + (found.measured_s or 0)
    fold = AnswerFigures()
    for row in source:
        if row["row"] == "end" and begin_s <= row["due_ns"] / S < end_s:
            fold.fold(row)
    expected = fold.all_latency().figures()
    assert expected.lower_bounds > 10
    assert found.ttft_p99_s == pytest.approx(3.2, rel=0.01)
    assert (found.ttft_p50_s, found.ttft_p99_s, found.e2e_p50_s, found.e2e_p99_s) == pytest.approx(
        (expected.ttft_s.p50, expected.ttft_s.p99, expected.e2e_s.p50, expected.e2e_s.p99), rel=0.001
    )


def test_scout_step_is_short_and_proves_nothing() -> None:
    plan = StepPlan("rate", 50.0, 0.95, {"ttft": 1.0}, look_s=15.0, most_s=60.0, scout=True)
    found = to_json(watched(plan, rows(lambda _: 0.1)).result())
    assert (found["status"], found["leans"], found["scout"]) == ("undecided", True, True)
    assert found["seconds"] < 14


def test_step_whose_answers_lack_a_figure_names_it() -> None:
    plan = StepPlan("rate", 50.0, 0.95, {"itl_p99": 1.0}, look_s=15.0, most_s=60.0)
    assert watched(plan, rows(lambda _: 0.1)).missing_figure() == "itl_p99"
    assert watched(GOAL, rows(lambda _: 0.1)).missing_figure() is None


def test_step_without_requests_is_undecided() -> None:
    found = to_json(watched(GOAL, iter([{"row": "load", "what": "begin", "at_ns": 0}])).result())
    assert (found["status"], found["requests"], found["leans"]) == ("undecided", 0, None)
