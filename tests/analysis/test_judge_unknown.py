from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.analysis.judge import Judge
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.model import Terms
from loadchaos.report.phrases import generator_text
from tests.analysis.conftest import History
from tests.rows import S, folded


def without(history: History, row: str, what: str | None = None) -> Any:
    history.rows = [r for r in history.rows if r["row"] != row or (what is not None and r.get("what") != what)]
    return history


def healthy(history: History) -> Any:
    history.images = 1
    return history.begin().attacked("reset_mm_cache", []).work(30, traffic="images").end()


def with_row(history: History, at: int, row: str, **more: Any) -> Any:
    """A healthy run with one more row at this index."""
    h = healthy(history)
    h.rows.insert(at, {"row": row, "at_ns": h.now, **more})
    return h


def with_gap(history: History, source: str, **more: Any) -> Any:
    return with_row(history, -4, "gap", **{"replica": "server", "source": source, "seconds": 0.0, **more})


def case_no_end(h: History) -> Any:
    return without(healthy(h), "run", "end")


def case_interrupted(h: History) -> Any:
    h = healthy(h)
    h.rows.append({"row": "run", "at_ns": h.now, "what": "interrupted", "signal": "SIGINT"})
    return h


def case_no_request(h: History) -> Any:
    return h.begin().idle(10).end()


def case_half_missed(h: History) -> Any:
    return with_row(h, -3, "missed", traffic="images", phase=0, why="no_slot", count=200)


def case_shed(h: History) -> Any:
    return h.begin().work(20).answer(h.send(6), "shed", status=503).end()


def case_locust_crashed(h: History) -> Any:
    h = healthy(h)
    next(r for r in h.rows if r["row"] == "locust" and r["what"] == "exit")["code"] = 1
    return h


def case_no_load_end(h: History) -> Any:
    return without(healthy(h), "load", "end")


def case_unfinished(h: History) -> Any:
    h.begin().work(30).send(1)
    return h.end()


def case_no_probe(h: History) -> Any:
    return without(healthy(h), "probe")


def case_watcher_stopped(h: History) -> Any:
    h.begin().work(20)
    rows = h.rows
    h.rows = []
    h.work(40)
    h.rows = rows + [r for r in h.rows if r["row"] != "probe"]
    return h.end()


def case_log_lost(h: History) -> Any:
    return with_gap(h, "log", why="any text", loss="certain")


def case_log_lost_in_an_older_folder(h: History) -> Any:
    return with_gap(h, "log", why="3000 bytes of server output could not be written")


def case_scrape_blind(h: History) -> Any:
    return with_gap(h, "scrape", seconds=20.0, why="x")


def case_ledger(h: History) -> Any:
    h = healthy(h)
    h.rows[-1]["ledger_lost"] = "No space left on device"
    return h


def case_preflight(h: History) -> Any:
    return with_row(h, 5, "preflight", name="x", ok=False, text="no")


@pytest.mark.parametrize(
    ("case", "check"),
    [
        (case_no_end, "run"), (case_interrupted, "run"), (case_no_request, "requests_sent"),
        (case_half_missed, "load_delivered"), (case_shed, "shed"), (case_locust_crashed, "load_process"),
        (case_no_load_end, "load_process"), (case_unfinished, "load_process"), (case_no_probe, "watching"),
        (case_watcher_stopped, "watching"), (case_log_lost, "watching"), (case_scrape_blind, "watching"),
        (case_log_lost_in_an_older_folder, "watching"),
        (case_ledger, "ledger"), (case_preflight, "preflight x"),
    ],
)  # fmt: skip
def test_judge_leaves_a_run_without_proof_unknown(history: History, case: Callable[[Any], Any], check: str) -> None:
    verdict = case(history).verdict()
    assert (verdict["verdict"], verdict["exit_code"]) == ("unknown", 3), verdict["failures"]
    assert check in history.unknowns(verdict)
    assert verdict["worth"].startswith("Not assessed")


@pytest.mark.parametrize(
    ("terms", "check"),
    [
        ({"requires": ["images"]}, None), ({"requires": ["speculative_decoding"]}, None),
        ({"requires": ["development_endpoints"]}, None), ({"requires": ["prefix_caching"]}, "requires prefix_caching"),
        ({"requires": ["no_such_thing"]}, "requires no_such_thing"),
        ({"exposure": {"count": "image_requests_while_drafting", "at_least": 250}}, None),
        ({"exposure": {"count": "image_requests_while_drafting", "at_least": 1000}}, "exposure"),
        ({"exposure": {"count": "nonsense", "at_least": 1}}, "exposure"),
        ({"attacks": ["reset_mm_cache"]}, None), ({"attacks": ["pause"]}, "attack pause"),
        ({"planned_requests": 300}, None), ({"planned_requests": 1000}, "load_delivered"),
        ({"expect": ["ttft_p99 <= 1s"]}, None), ({"expect": ["video.ttft_p99 <= 1s"]}, "video.ttft_p99"),
        ({"expect": ["what is this"]}, "what is this"), ({"expect": ["nonsense == 0"]}, "nonsense == 0"),
    ],
)  # fmt: skip
def test_judge_proves_what_the_profile_requires_or_leaves_it_unknown(
    history: History, terms: dict[str, Any], check: str | None
) -> None:
    verdict = healthy(history).verdict(**terms)
    assert history.unknowns(verdict) == ({check} if check else set())
    assert verdict["verdict"] == ("unknown" if check else "pass")


def test_judge_leaves_speculative_decoding_unknown_without_drafts(history: History) -> None:
    history = healthy(history)
    for row in history.rows:
        if row["row"] == "metrics":
            row["values"]["spec_drafts_total"] = 7.0
    terms = {
        "requires": ["speculative_decoding"],
        "exposure": {"count": "image_requests_while_drafting", "at_least": 1},
    }
    assert history.unknowns(history.verdict(**terms)) == {"requires speculative_decoding", "exposure"}


def test_judge_leaves_failed_attacks_unknown(history: History) -> None:
    history.begin()
    base = {"attack": "reset_mm_cache", "n": 1, "replica": "server", "effects": []}
    history.add("attack", what="begin", ok=None, **base)
    history.add("attack", what="end", ok=False, status=404, **base).work(30).end()
    verdict = history.verdict(attacks=["reset_mm_cache", "reset_mm_cache"])  # twice in the profile, one in the ledger
    assert history.unknowns(verdict) == {"attack reset_mm_cache"}
    assert sum(check["name"] == "attack reset_mm_cache" for check in verdict["checks"]) == 1


@pytest.mark.parametrize(("pid", "ended", "unknown"), [(7, True, False), (7, False, True), (8, True, True)])
def test_sigterm_that_ended_no_process_is_no_proved_attack(
    history: History, pid: int, ended: bool, unknown: bool
) -> None:
    history.begin()
    base = {"attack": "sigterm_worker", "kind": "process", "n": 1, "replica": "server", "effects": []}
    base |= {"pid": 7, "signal": 15}
    history.add("attack", what="begin", ok=None, **base).add("attack", what="end", ok=True, **base).work(30)
    if ended:
        history.add("process", replica="server", pid=pid, role="worker", name="w", what="gone", state="Z")
    verdict = history.end().verdict(attacks=["sigterm_worker"])
    assert ("attack sigterm_worker" in history.unknowns(verdict)) is unknown


def test_judge_counts_stale_connections(history: History) -> None:
    history.begin().work(5)
    for _ in range(3):
        history.answer(history.send(1), "ok", detail={"stale_retry": 1})
    verdict = history.end().verdict()
    assert (verdict["generator"]["stale_connections"], verdict["failures"]) == (3, [])
    assert "3 idle connections that the server had closed were replaced" in generator_text(Verdict.from_json(verdict))


@pytest.mark.parametrize(("answers", "resent", "expected"), [(100, 2, "pass"), (1000, 5, "pass"), (500, 3, "fail")])
def test_judge_fails_requests_sent_again_above_half_a_percent(
    history: History, answers: int, resent: int, expected: str
) -> None:
    history.begin().work(5)
    sent = sum(row["row"] == "begin" for row in history.rows)
    for n in range(answers - sent):
        history.answer(history.send(1), "ok", detail={"resent": 1} if n < resent else {})
    verdict = history.end().verdict()
    (check,) = [c for c in verdict["checks"] if c["name"] == "retries"]
    assert (check["verdict"], verdict["generator"]["retries"], verdict["failures"]) == (expected, resent, [])
    assert f"{resent} of {answers} requests sent again" in check["actual"]
    assert f"{resent} requests sent again" in generator_text(Verdict.from_json(verdict))


def test_requests_whose_second_connection_failed_too_hide_nothing(history: History) -> None:
    """The idle connections of a server that dies close at once."""
    history.begin().work(5)
    for _ in range(8):
        history.answer(history.send(1), "reset", detail={"resent": 1})
    verdict = history.end().verdict()
    assert "retries" not in {c["name"] for c in verdict["checks"]}
    assert (verdict["generator"]["retries"], verdict["outcomes"]["reset"]) == (8, 8)


def test_judge_voids_latency_of_a_slow_generator_only(history: History) -> None:
    history.begin().work(30)
    for row in history.rows:
        if row["row"] == "begin":
            row["due_ns"] -= S
    verdict = history.end().verdict(expect=["ttft_p99 <= 1s", "failures == 0"])
    assert verdict["generator"]["limited"]
    assert history.unknowns(verdict) == {"ttft_p99"}


def test_judge_fails_an_interrupted_run_with_the_signals_code(history: History) -> None:
    history.begin().work(5).miss().idle(2).add("run", what="interrupted", signal="SIGINT")
    verdict = history.end(exit_code=130, why="SIGINT").verdict()
    assert (verdict["verdict"], verdict["exit_code"]) == ("fail", 130)


def test_judge_exits_4_only_while_nothing_was_sent(history: History) -> None:
    assert history.begin().end(exit_code=4, why="401").verdict()["exit_code"] == 4
    history.rows = [r for r in history.rows if r["row"] != "run" or r["what"] != "end"]
    assert history.work(10).end(exit_code=4, why="401").verdict()["exit_code"] == 3


# --- a false pass must be impossible ------------------------------------------------------------------------------------


def test_judge_passes_no_prefix_of_a_run(history: History) -> None:
    rows = healthy(history).rows
    for cut in range(0, len(rows), 37):
        judge = folded(Judge(Terms("test")), rows[:cut])
        assert judge.verdict().to_json()["verdict"] != "pass", f"cut at row {cut}: {rows[cut]}"


def test_judge_passes_no_failing_run_with_rows_lost(make_history: Callable[[], Any]) -> None:
    history = make_history()
    history.begin().work(10).miss(5).idle(2).end()
    for kind in sorted({r["row"] for r in history.rows}):
        judge = folded(Judge(Terms("test")), [row for row in history.rows if row["row"] != kind])
        assert judge.verdict().to_json()["verdict"] != "pass", f"without {kind}"


def test_judge_is_deterministic(history: History) -> None:
    history.begin().work(5).miss(5).idle(2).end()
    assert history.verdict() == history.verdict()
    judge = Judge(Terms("test"))
    for row in history.rows:
        judge.fold(row)
        judge.findings()
    first = judge.verdict().to_json()
    assert judge.verdict().to_json() == first == history.verdict()


# --- findings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gap",
    [
        {"why": "cut to 0 bytes", "loss": "possible"},
        {"why": "the log was truncated from 900 to 0 bytes; lines may be lost"},  # of an older folder
    ],
    ids=["typed", "text"],
)
def test_judge_leaves_a_truncated_log_unknown(history: History, gap: dict[str, Any]) -> None:
    history.begin().log("INFO hello").work(20)
    history.rows[1]["server_logs"] = ["server.log"]
    history.add("log", source="server.log", file="watch/logs/a.log", line=1, text="INFO hello")
    history.add("gap", replica="server", source="log", seconds=0.0, **gap)
    verdict = history.work(5).end().verdict()
    assert history.unknowns(verdict) == {"server_log"}
    assert gap["why"] in next(c["actual"] for c in verdict["checks"] if c["name"] == "server_log")


@pytest.mark.parametrize("with_start_time", [True, False])
def test_judge_leaves_a_restart_at_the_end_open(history: History, with_start_time: bool) -> None:
    if not with_start_time:
        history.tells_start_time = False
    history.begin().work(30)
    history.generated = 0.0
    if with_start_time:
        history.start_time += 25
    verdict = history.work(4).end().verdict(expect=["engine_deaths == 0"])
    assert verdict["verdict"] == "unknown"
    assert history.unknowns(verdict) == {"open_restart"}
    assert verdict["worth"] == "Not assessed: the server may have restarted at the end"


def test_judge_settles_a_restart_and_leaves_alternating_servers_alone(make_history: Callable[[], History]) -> None:
    settled = make_history().begin().work(20)
    settled.start_time, settled.generated = settled.start_time + 25, 0.0
    verdict = settled.work(30).end().verdict()
    assert verdict["verdict"] == "fail"
    assert "open_restart" not in {c["name"] for c in verdict["checks"]}
    several = make_history().begin()
    for i in range(20):
        several.start_time = 1_700_000_000.0 + 100 * (i % 2)
        several.work(1)
    verdict = several.end().verdict()
    assert "open_restart" not in {c["name"] for c in verdict["checks"]}


def stop_in_flight(history: History, ids: list[str], silent_s: float) -> dict[str, Any]:
    """The verdict of a load that is ended while these requests are silent."""
    history.in_flight = len(ids)
    history.stall(silent_s)
    history.in_flight = 0
    for id_ in ids:
        sent = history.now - round(silent_s * S)
        base = {
            "step": 1,
            "phase": 0,
            "traffic": "text",
            "due_ns": sent,
            "sent_ns": sent,
            "status": 200,
            "expect": ["ok"],
        }
        more = {"images": 0, "planned_tokens": 100, "error": "stopped", "edge": None, "length_mismatch": False}
        history.add("end", id=id_, outcome="aborted", detail={"why": "stopped"}, **base, **more)
    return dict(history.end().verdict())


def test_judge_leaves_a_load_that_was_ended_in_silence_unknown(history: History) -> None:
    history.begin().work(20)
    verdict = stop_in_flight(history, history.send(2), 8)
    assert history.unknowns(verdict) == {"end_of_load"}
    actual = next(c["actual"] for c in verdict["checks"] if c["name"] == "end_of_load")
    assert actual == "no token for 8.0 s on 2 requests in flight, until loadchaos ended the load"


@pytest.mark.parametrize(("silent_s", "gap_s"), [(3, 0), (8, 4)], ids=["short", "as gaps before"])
def test_judge_passes_a_load_that_was_ended_in_a_gap_of_the_server(
    history: History, silent_s: float, gap_s: float
) -> None:
    history.begin().work(10)
    if gap_s:
        ids = history.send(2)
        history.in_flight = 2
        history.stall(gap_s).serve(0.5, in_flight=2).answer(ids, took_s=gap_s)
    verdict = stop_in_flight(history.work(10), history.send(2), silent_s)
    assert "end_of_load" not in {c["name"] for c in verdict["checks"]}
