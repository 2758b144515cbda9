from typing import Any

import pytest

from loadchaos.analysis.figures.requests import RequestStats
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.analysis.verdict.run_health import RunHealth
from loadchaos.core.model import AS_ALLOWED, REPLACED, Row, Terms
from tests.rows import S, folded


def check_of(
    name: str, *rows: Row, stats: RequestStats | None = None, unfinished: int = 0, bad_rows: int = 0
) -> CheckResult | None:
    health = folded(RunHealth(), rows)
    checks = health.checks(Terms(profile="x"), stats or RequestStats(), unfinished, [], bad_rows)
    return next((c for c in checks if c.name == name), None)


RUN_END: Row = {"row": "run", "at_ns": 9, "what": "end", "exit_code": 0, "why": ""}


def verdict_of(name: str, *rows: Row, **more: Any) -> str | None:
    check = check_of(name, *rows, **more)
    return None if check is None else check.verdict


@pytest.mark.parametrize(
    ("logs", "lines", "verdict"),
    [(["/var/log/vllm.log"], 3, "pass"), (["/var/log/vllm.log"], 0, "unknown"), ([], 0, None)],
    ids=["lines", "no line", "no log"],
)
def test_server_log_check_needs_lines_where_there_is_a_log(logs: list[str], lines: int, verdict: str | None) -> None:
    log: Row = {"row": "log", "file": "watch/logs/server.log", "text": "INFO"}
    rows = [{**log, "at_ns": 2 + n, "line": n + 1} for n in range(lines)]
    assert verdict_of("server_log", {"row": "run", "what": "begin", "at_ns": 1, "server_logs": logs}, *rows) == verdict


@pytest.mark.parametrize(
    ("fitted", "actual"),
    [
        (
            ["", *(f"{n} images instead of {n + 3}: the server accepts no more in one prompt" for n in (2, 3))],
            "2 of 3: N images instead of N: the server accepts no more in one prompt",
        ),
        (
            ["9 prompt tokens instead of 5: the chat template needs that many"] * 3,
            "3 of 3: 9 prompt tokens instead of 5: the chat template needs that many",
        ),
    ],
    ids=["other numbers", "equal numbers"],
)
def test_fitted_check_has_its_count_and_numbers_that_are_equal(fitted: list[str], actual: str) -> None:
    rows = ({"row": "begin", "at_ns": n, "traffic": "t", "fitted": text} for n, text in enumerate(fitted))
    check = check_of("fitted t", *rows)
    assert check is not None and check.actual == actual


@pytest.mark.parametrize(
    ("begun", "bad_rows", "verdict"),
    [(0, 0, "pass"), (0, 1, "pass"), (0, 2, "unknown"), (2000, 3, "pass"), (2000, 4, "unknown")],
)
def test_ledger_check_allows_one_unreadable_row_in_a_thousand(begun: int, bad_rows: int, verdict: str) -> None:
    stats = RequestStats()
    stats.begun = begun
    assert verdict_of("ledger", RUN_END, stats=stats, bad_rows=bad_rows) == verdict


@pytest.mark.parametrize(("replaced", "verdict"), [(4, None), (5, None), (6, "unknown"), (10, "unknown")])
def test_substance_check_is_unknown_where_most_requests_were_replaced(replaced: int, verdict: str | None) -> None:
    rows = [
        {"row": "begin", "at_ns": n + 1, "traffic": "images", "fitted": f"x: {REPLACED[n % 2]}" if n < replaced else ""}
        for n in range(10)
    ]
    assert verdict_of("substance", *rows) == verdict


LOAD_END: Row = {"row": "load", "at_ns": 2, "what": "end", "file": "requests-0"}


@pytest.mark.parametrize(
    ("rows", "more", "verdict"),
    [
        ([LOAD_END], {}, "pass"),
        ([], {}, "unknown"),
        ([{**LOAD_END, "what": "begin"}], {}, "unknown"),
        ([LOAD_END, {**LOAD_END, "what": "begin", "file": "requests-1"}], {}, "unknown"),
        ([LOAD_END, {"row": "locust", "at_ns": 3, "what": "exit", "code": 0}], {}, "pass"),
        ([LOAD_END, {"row": "locust", "at_ns": 3, "what": "exit", "code": 1}], {}, "unknown"),
        ([LOAD_END, {"row": "locust", "at_ns": 3, "what": "exit", "code": None}], {}, "unknown"),
        ([LOAD_END], {"unfinished": 1}, "unknown"),
    ],
)
def test_load_process_check_needs_the_end_of_every_worker(rows: list[Row], more: Any, verdict: str) -> None:
    assert verdict_of("load_process", *rows, RUN_END, **more) == verdict


def test_record_that_ends_early_does_not_say_that_it_is_complete() -> None:
    assert verdict_of("run", LOAD_END) == "unknown"
    assert [verdict_of(name, LOAD_END) for name in ("ledger", "load_process")] == [None, None]
    assert verdict_of("load_process") == "unknown"


@pytest.mark.parametrize(("what", "verdict"), [("absent", "unknown"), ("late", "pass")])
def test_check_of_a_worker_that_never_joined_is_unknown(what: str, verdict: str) -> None:
    assert verdict_of("workers", {"row": "worker", "at_ns": 2, "what": what, "worker": 1}) == verdict


@pytest.mark.parametrize(
    ("readers", "told"),
    [([None], None), (["native"], "native"), (["native", "python"], "python"), (["python", "native"], "python")],
)
def test_generator_tells_what_read_streams_in_all_workers(readers: list[str | None], told: str | None) -> None:
    health = RunHealth()
    for n, reader in enumerate(readers):
        row: Any = {**LOAD_END, "what": "begin", "file": f"requests-{n}", **({"reader": reader} if reader else {})}
        health.on_load(row)
        end: Any = {**LOAD_END, "file": f"requests-{n}"}
        health.on_load(end)
    assert health.generator(RequestStats(), Terms(profile="x")).reader == told


def test_load_process_check_counts_requests_lost_with_a_worker() -> None:
    stats = RequestStats()
    stats.on_missed({"row": "missed", "at_ns": 1, "traffic": "t", "phase": 0, "why": "worker_lost", "count": 3})
    assert verdict_of("load_process", LOAD_END, stats=stats) == "unknown"


@pytest.mark.parametrize(
    ("probes_s", "verdict"),
    [([], "unknown"), (range(100), "pass"), ([*range(40), *range(69, 100)], "pass"),
     ([*range(40), *range(75, 100)], "unknown"), (range(60), "unknown"), (range(45, 100), "unknown")],
)  # fmt: skip
def test_watching_check_needs_probes_throughout_the_load(probes_s: Any, verdict: str) -> None:
    rows: list[Row] = [{"row": "run", "what": "load_begin", "at_ns": S}]
    rows += [{"row": "probe", "at_ns": S + s * S, "what": "tcp", "ok": True} for s in probes_s]
    assert verdict_of("watching", *rows, {"row": "run", "what": "load_end", "at_ns": 101 * S}) == verdict


def test_watching_check_of_a_short_load_needs_a_probe() -> None:
    rows: list[Row] = [
        {"row": "run", "what": "load_begin", "at_ns": S},
        {"row": "run", "what": "load_end", "at_ns": 9 * S},
    ]
    assert verdict_of("watching", *rows) == "unknown"
    assert verdict_of("watching", {"row": "probe", "at_ns": 2 * S, "ok": True}, *rows) == "pass"


@pytest.mark.parametrize(("why", "verdict"), [("a piece was dropped", "unknown"), ("over", "pass")])
def test_watching_check_is_unknown_after_a_loss_in_the_log(why: str, verdict: str) -> None:
    rows: list[Row] = [{"row": "run", "what": "load_begin", "at_ns": S}, {"row": "probe", "at_ns": 2 * S, "ok": True}]
    gap = {"row": "gap", "at_ns": 2 * S, "source": "log", "seconds": 0.0, "why": why}
    assert verdict_of("watching", *rows, gap, {"row": "run", "what": "load_end", "at_ns": 3 * S}) == verdict


def test_run_check_needs_an_end_without_an_interrupt() -> None:
    end = {"row": "run", "what": "end", "at_ns": 2}
    assert verdict_of("run", end) == "pass"
    assert verdict_of("run") == "unknown"
    assert verdict_of("run", {"row": "run", "what": "interrupted", "at_ns": 1, "signal": "SIGINT"}, end) == "unknown"
    assert verdict_of("run", {**end, "exit_code": 70}) == "unknown"
    assert verdict_of("run", {**end, "why": "the disk is full"}) == "unknown"


def test_preflight_that_failed_is_unknown() -> None:
    row = {"row": "preflight", "at_ns": 1, "name": "streaming", "text": "no stream"}
    assert verdict_of("preflight streaming", {**row, "ok": False}) == "unknown"
    assert check_of("preflight streaming", {**row, "ok": True}) is None


def test_requests_of_others_before_a_shared_run_are_accepted_and_told() -> None:
    row = {"row": "preflight", "at_ns": 1, "name": "others", "ok": False, "text": "6 requests of others running"}
    found = check_of("preflight others", row)
    assert found is not None
    assert (found.verdict, found.accepted) == ("pass", "--shared was given")
    assert found.actual == "6 requests of others running: the figures are not those of this load alone"


@pytest.mark.parametrize(("shortened", "verdict"), [(True, "pass"), (False, "unknown")])
def test_requests_that_the_end_of_the_load_left_unsent_are_not_delivered(shortened: bool, verdict: str) -> None:
    stats = RequestStats()
    stats.on_missed({"row": "missed", "at_ns": 1, "traffic": "t", "phase": 0, "why": "stopped", "count": 20})
    stats.outcomes["t"]["ok"] += 100
    load_end: Row = {"row": "run", "what": "load_end", "at_ns": 2, "shortened": shortened}
    assert verdict_of("load_delivered", load_end, stats=stats) == verdict


def test_load_that_its_rule_ended_is_not_delivered() -> None:
    stats = RequestStats()
    stats.on_missed({"row": "missed", "at_ns": 1, "traffic": "t", "phase": 0, "why": "stopped", "count": 0})
    stats.outcomes["t"]["ok"] += 100
    load_end: Row = {"row": "run", "what": "load_end", "at_ns": 2, "shortened": True}
    assert verdict_of("load_delivered", load_end, stats=stats) == "pass"
    check = check_of("load_delivered", {**load_end, "aborted": "error_rate > 50% for 10s"}, stats=stats)
    assert check is not None
    assert (check.verdict, "ended early by abort_when" in check.actual) == ("unknown", True)


@pytest.mark.parametrize(
    ("cut", "planned", "ok", "actual"),
    [
        ("--duration 8s", 12000, 6, "6 of 12,000 planned requests; 3 of 4 phases did not run, cut by --duration 8s"),
        ("--duration 8s", None, 6, "6 requests of the plan; 3 of 4 phases did not run, cut by --duration 8s"),
        ("--duration 8s", 6, 6, None),
        (None, 12000, 6, None),
    ],
)
def test_load_that_was_cut_proves_nothing(cut: str | None, planned: int | None, ok: int, actual: str | None) -> None:
    stats = RequestStats()
    stats.outcomes["t"] = stats.traffic["t"].outcomes
    stats.outcomes["t"]["ok"] += ok
    stats.phases[0].ended = ok
    health = folded(RunHealth(), [{"row": "run", "what": "load_end", "at_ns": 2, "shortened": True, "cut": cut}])
    terms = Terms("x", planned_requests=planned, in_flight=["a", "b", "c", "d"])
    (check,) = [c for c in health.checks(terms, stats, 0, [], 0) if c.name == "load_delivered"]
    assert (check.verdict, check.actual if actual else None) == ("unknown" if actual else "pass", actual)


def test_server_log_check_names_the_log_without_lines() -> None:
    log = RunHealth()
    log.fold({"row": "run", "what": "begin", "at_ns": 1, "server_logs": ["docker:a", "docker:b"]})
    log.fold({"row": "log", "at_ns": 2, "file": "watch/logs/server-2.log", "line": 1, "text": "INFO"})
    (found,) = [c for c in log.checks(Terms(profile="x"), RequestStats(), 0, [], 0) if c.name == "server_log"]
    assert (found.verdict, found.actual) == ("pass", "1 lines from docker:b, none from docker:a")


CUT = "9 tokens of text instead of 20: the server's limit"


@pytest.mark.parametrize(
    ("text", "n", "verdict"),
    [(CUT, 100, "unknown"), (CUT, 6, "unknown"), (CUT, 5, "pass"), (f"{CUT}{AS_ALLOWED}", 100, "pass"),
     (f"{CUT}{AS_ALLOWED}; 1 tokens of output instead of 8: the server's limit", 100, "unknown"),
     ("no quote: the prompt is too short for its secret word and the order to repeat it", 100, "pass")],
)  # fmt: skip
def test_fitted_check_is_unknown_for_traffic_that_is_not_what_was_asked(text: str, n: int, verdict: str) -> None:
    rows = ({"row": "begin", "at_ns": i, "traffic": "t", "fitted": text if i < n else ""} for i in range(100))
    checks = folded(RunHealth(), rows).checks(Terms(profile="x"), RequestStats(), 0, [], 0)
    assert [c.verdict for c in checks if c.name == "fitted t"] == [verdict]


def gap_row(at_s: float, seconds: float, why: str, source: str = "watch") -> Row:
    return {"row": "gap", "at_ns": round(at_s * S), "replica": "", "source": source, "seconds": seconds, "why": why}


def watched(*gaps: Row) -> CheckResult:
    begin = {"row": "run", "what": "load_begin", "at_ns": 1 * S}
    probes = [{"row": "probe", "at_ns": i * S, "what": "health", "ok": True} for i in range(1, 101)]
    found = check_of("watching", begin, *probes, *gaps, {"row": "run", "what": "load_end", "at_ns": 100 * S})
    assert found is not None
    return found


def test_many_short_gaps_are_told_with_their_number_sum_and_reason() -> None:
    starved = "loadchaos itself did not run: starved of CPU, stopped or suspended"
    found = watched(*(gap_row(10 * i, 1.3 + 0.15 * i, starved) for i in range(1, 9)))
    assert found.verdict == "unknown"
    assert found.actual == f"no data from watch for 15.8 s in all: 8 gaps of 1.4 to 2.5 s ({starved})"


def test_one_long_gap_with_several_rows_counts_once() -> None:
    rows = [gap_row(20, 0, "connection refused"), gap_row(30, 10, "connection refused"), gap_row(35, 15, "over")]
    assert watched(*rows[:2], gap_row(28, 8, "over")).verdict == "pass"
    assert watched(*rows).actual == "no data from watch for 15.0 s (connection refused)"
