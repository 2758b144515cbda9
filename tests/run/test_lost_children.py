import signal
from typing import Any

import pytest

from tests.run.conftest import Row, Run, Start, embedded_target


@pytest.mark.slow
def test_load_process_killed_ends_the_run_as_unknown(start: Start, slow_answers: Row) -> None:
    run = start(**slow_answers).loaded()
    run.signal(signal.SIGKILL, "locust")
    assert run.ends() == 3
    verdict = run.verdict()
    assert (verdict["verdict"], verdict["failures"]) == ("unknown", [])
    assert verdict["outcomes"]["unfinished"] > 0
    assert run.check("load_process")["verdict"] == "unknown"
    assert "the load process was killed by signal 9" in run.output
    run.all_gone()


@pytest.mark.slow
def test_load_process_killed_does_not_hide_a_failure(start: Start, for_long: Row) -> None:
    server = embedded_target("near_max_oob", max_model_len=2048, num_speculative_tokens=0)
    killer = {"name": "killer", "weight": 0.1, "payload": {"text": {"tokens": "1500..1600"}}, "output": {"max": 8}}
    short = {"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}}
    run = start(**for_long, target={"on_death": "restart", **server}, traffic=[short, killer])
    run.wait_for(row="state", to="dead", n=2)  # the first of a request to the idle server
    run.note_pids()
    run.signal(signal.SIGKILL, "locust")
    assert run.ends() == 1
    assert [f["id"] for f in run.verdict()["failures"]] == ["index_oob_indexkernel"]


@pytest.mark.slow
def test_follower_killed_changes_nothing(start: Start) -> None:
    run = start(load=[{"rate": "10/s", "for": "2s"}]).loaded()
    run.signal(signal.SIGKILL, "follower")
    assert run.ends() == 0
    assert run.verdict()["outcomes"] == {"ok": 20}
    assert "the live view has ended" in run.output
    assert (run.folder / "report.html").exists()


@pytest.mark.slow
def test_follower_stopped_delays_nothing(start: Start) -> None:
    run = start(load=[{"rate": "10/s", "for": "2s"}]).loaded()
    run.signal(signal.SIGSTOP, "follower")
    assert run.ends() == 0
    load_s = (
        run.rows(row="run", what="load_end")[0]["at_ns"]
        - run.rows(row="load", what="end", file="requests-*.jsonl")[0]["at_ns"]
    ) / 1e9
    assert load_s < 5
    assert run.verdict()["outcomes"] == {"ok": 20}
    assert run.is_gone("follower")


def test_run_killed_leaves_no_process_and_can_be_judged(start: Start, slow_answers: Row) -> None:
    run = start(**slow_answers).loaded()
    run.signal(signal.SIGKILL)
    run.process.wait()
    run.all_gone(12)
    judged = run.again("judge")
    assert judged.returncode == 3, judged.stdout
    verdict = run.verdict()
    assert (verdict["verdict"], verdict["failures"]) == ("unknown", [])
    assert run.check("run")["actual"] == "the record ends early"
    reported = run.again("report")
    assert reported.returncode == 0
    assert "UNKNOWN" in (run.folder / "report.html").read_text().upper()


@pytest.mark.slow  # the run killed in its load, above, is quicker
def test_run_killed_while_the_load_starts_leaves_no_load(start: Start, slow_answers: Row) -> None:
    run = start(**slow_answers)
    run.wait_for("events.jsonl", 1, row="locust", what="start")
    run.note_pids()
    run.signal(signal.SIGKILL)
    run.process.wait()
    run.all_gone(60)
    assert run.again("judge").returncode == 3


FOR_A_WHILE = [{"rate": "20/s", "law": "constant", "for": "25s", "max_in_flight": 64}]


def of_two(start: Start) -> Any:
    run = start("--processes", "2", load=FOR_A_WHILE)
    run.wait_for("requests-1.jsonl", 20, row="end")
    run.note_pids()
    (header,) = run.rows("requests-1.jsonl", row="header")
    run.pids["worker"] = header["pid"]
    return run


def check_accounting(run: Run) -> dict[str, Any]:
    """Verdict, checked: it counts 500 requests, and passes only with all."""
    verdict: dict[str, Any] = run.verdict()
    assert sum(verdict["outcomes"].values()) == 500
    assert verdict["verdict"] == ("pass" if verdict["outcomes"] == {"ok": 500} else "unknown"), verdict["outcomes"]
    assert (run.folder / "report.html").exists()
    assert run.again("judge").returncode == run.process.returncode
    return verdict


@pytest.mark.slow
def test_load_process_killed_of_two_misses_its_share(start: Start) -> None:
    run = of_two(start)
    run.signal(signal.SIGKILL, "worker")
    assert run.ends() == 3
    outcomes = check_accounting(run)["outcomes"]
    assert outcomes["ok"] >= 250
    assert outcomes["missed"] > 50
    assert run.check("load_process")["verdict"] == "unknown"


@pytest.mark.slow
def test_load_process_stopped_for_a_while_sends_late_or_misses(start: Start) -> None:
    run = of_two(start)
    run.signal(signal.SIGSTOP, "worker")
    before = len(run.rows("requests-0.jsonl", row="end"))
    run.wait_for("requests-0.jsonl", before + 100, row="end")  # the other goes on meanwhile
    run.signal(signal.SIGCONT, "worker")
    assert run.ends() in (0, 3)
    check_accounting(run)


@pytest.mark.slow
def test_load_process_stopped_for_good_is_lost(start: Start) -> None:
    run = of_two(start)
    run.signal(signal.SIGSTOP, "worker")
    assert run.ends(120) == 3
    assert check_accounting(run)["outcomes"]["missed"] > 50
    run.all_gone()


@pytest.mark.slow
def test_locust_master_killed_ends_the_load_as_unknown(start: Start) -> None:
    run = of_two(start)
    run.signal(signal.SIGKILL, "locust")
    assert run.ends() == 3
    verdict = run.verdict()
    assert (verdict["verdict"], verdict["failures"]) == ("unknown", [])
    assert "the load process was killed by signal 9" in run.output
    assert (run.folder / "report.html").exists()
    run.all_gone()
