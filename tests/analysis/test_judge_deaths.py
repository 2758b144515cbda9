from typing import Any

import pytest

from loadchaos.analysis.judge import Judge
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.report.phrases import cause_text
from tests.analysis.conftest import History
from tests.rows import S, folded


def test_judge_passes_a_healthy_run_with_its_strength(history: History) -> None:
    verdict = history.begin().work(30).end().verdict()
    assert (verdict["verdict"], verdict["exit_code"]) == ("pass", 0), history.unknowns(verdict)
    assert verdict["worth"] == "Crash rate < 1 % (95 % confidence, 0 in 300 requests)"
    assert verdict["outcomes"] == {"ok": 300}
    assert verdict["latency"]["text"]["ttft_s"]["p50"] == pytest.approx(0.1, rel=0.01)
    assert verdict["latency"]["text"]["e2e_s"]["n"] == 300
    assert verdict["failures"] == []
    assert verdict["started"].startswith("2026-09-21T")


def test_judge_names_a_death_by_its_cause_in_the_log(history: History) -> None:
    ids = history.begin(kv_blocks=10).work(10).send(20, "images")
    verdict = history.serve(0.2, in_flight=20).log(history.MISS).die(ids).idle(3).end().verdict()
    assert (verdict["verdict"], verdict["exit_code"]) == ("fail", 1)
    [failure] = verdict["failures"]
    assert (failure["id"], failure["severity"], failure["attribution"]) == (
        "encoder_cache_miss",
        "engine_death",
        "server",
    )
    assert failure["count"] == 1
    assert failure["lost_requests"] == 20
    assert failure["in_flight_at_death"] == 20
    assert failure["recovered_after_s"] is None
    assert failure["evidence"]["line"] == 7
    assert failure["known"]
    assert failure["incident"] == "001-encoder_cache_miss"
    assert failure["noticed_after_s"] <= 1
    assert [s["state"] for s in verdict["states"]] == ["healthy", "dying", "dead"]


def test_judge_counts_early_clients_as_in_flight_at_death(history: History) -> None:
    ids = history.begin().work(5).send(9)
    history.serve(0.3, in_flight=9).answer(ids, "stream_error", error=history.TEXT_OF_DEATH)
    history.rows = [r for r in history.rows if r["row"] != "state" or r["to"] == "healthy"]
    history.now += S // 10
    given = {"replica": "server", "engine": None, "from": "healthy", "to": "dead", "signs": ["gone"]}
    history.add("state", since_ns=history.now, noticed_after_s=0.0, **given).close().idle(1).end()
    assert history.verdict()["failures"][0]["in_flight_at_death"] == 9


def test_judge_reports_an_unexplained_death_by_a_refused_listener(history: History) -> None:
    [failure] = history.begin().work(5).close().idle(3).end().verdict()["failures"]
    assert failure["id"] == "engine_death_unexplained"
    assert "--server-log" in failure["remedy"]


def test_judge_counts_the_exit_of_a_launched_server(history: History) -> None:
    history.begin().work(5)
    history.rows = [r for r in history.rows if r["row"] != "state"]
    history.rows.append(
        {"row": "launch", "at_ns": history.now, "what": "exit", "replica": "server", "code": 0, "signal": None,
         "reason": "exited with code 0", "asked": False}
    )  # fmt: skip
    [failure] = history.end().verdict()["failures"]
    assert failure["severity"] == "engine_death"
    assert "exited with code 0" in failure["title"]


def test_judge_reports_a_startup_failure_before_healthy(history: History) -> None:
    history.add("run", what="begin", profile="test", target={"kind": "embedded"}).launch()
    history.log("sim: no such defect").close().run(1).exit(1)
    verdict = history.add("run", what="end", exit_code=4, why="it never became healthy").verdict()
    [failure] = verdict["failures"]
    assert (failure["id"], failure["severity"]) == ("startup_failure_unexplained", "startup")
    assert "--server-log" not in failure["remedy"]
    assert verdict["exit_code"] == 4
    assert history.decision(verdict, "engine_deaths") == "pass"


def test_judge_names_a_killed_engine_core_with_only_echoes(history: History) -> None:
    history.processes(engine="R")
    ids = history.begin().work(5).send(3)
    history.lose_process().log(history.MISS.splitlines()[-1]).die(ids).idle(2).end()
    verdict = history.verdict()
    [failure] = verdict["failures"]
    assert (failure["id"], failure["lost_requests"]) == ("engine_core_proc_died", 3)
    assert "OOM killer" in failure["remedy"]
    assert "a kill from outside (no server bug is known)" in cause_text(Verdict.from_json(verdict).failures[0])


def test_judge_keeps_a_death_when_the_server_is_stopped_later(history: History) -> None:
    history.begin().work(5)
    history.health = 503  # the engine is gone, the API server lives on
    history.stall(5)
    history.end()  # our own stop: asked
    verdict = history.verdict()
    assert verdict["verdict"] == "fail"
    assert verdict["failures"][0]["severity"] == "engine_death"


def test_judge_ignores_refusals_while_we_stop_the_server(history: History) -> None:
    history.begin().work(30).end_load().close().run(2).exit(asked=True).add("run", what="end")
    verdict = history.verdict()
    assert "dead" in [s["state"] for s in verdict["states"]]
    assert verdict["verdict"] == "pass", verdict["failures"]
    assert verdict["incidents"] == []


def test_judge_counts_a_death_after_the_load(history: History) -> None:
    history.begin().work(30).end_load().close().run(1).exit(1).add("run", what="end")
    assert history.verdict()["verdict"] == "fail"


def test_judge_merges_five_deaths_of_one_cause(history: History) -> None:
    history.begin()
    for _ in range(5):
        history.work(10).miss(4, "images").launch().run(5).open().idle(2)
    verdict = history.work(10).end().verdict()
    [failure] = verdict["failures"]
    assert failure["count"] == 5
    assert len(failure["incidents"]) == 5
    assert failure["lost_requests"] == 20
    assert 5 < failure["recovered_after_s"] < 8
    assert {i["id"] for i in verdict["incidents"]} == {"encoder_cache_miss"}


def test_judge_measures_recovery_against_its_limit(history: History) -> None:
    history.begin().work(5).close().run(10).open().work(10).end()
    by_name = {e["name"]: e for e in history.verdict(expect=["recovers_within <= 5s"])["expectations"]}
    assert by_name["recovers_within"]["verdict"] == "fail"
    by_name = {e["name"]: e for e in history.verdict(expect=["recovers_within <= 1m"])["expectations"]}
    assert by_name["recovers_within"]["verdict"] == "pass"


def test_judge_leaves_recovery_unknown_without_time_to_recover(history: History) -> None:
    history.begin().work(5).close().run(10).end()
    for limit, decision in (("5s", "fail"), ("1m", "unknown")):
        (given,) = history.verdict(expect=[f"recovers_within <= {limit}"])["expectations"]
        assert given["verdict"] == decision
        assert given["actual"] == "not recovered 9.75 s later, at the end of the run"


def test_judge_fails_a_hang_with_health_ok(history: History) -> None:
    history.processes(engine="R")
    ids = history.begin().work(5).send(3)
    history.pids[11] = ("engine_core", "T")
    history.in_flight = 3
    verdict = history.stall(30).answer(ids, "stalled", took_s=30).end().verdict()
    [failure] = verdict["failures"]
    assert (failure["id"], failure["severity"], failure["lost_requests"]) == ("alive_but_hung", "hang", 3)
    assert history.decision(verdict, "hangs") == "fail"


def test_judge_counts_a_late_echo_as_no_second_death(history: History) -> None:
    history.begin().work(5).miss(4).idle(15)
    history.log(
        "(APIServer pid=300) ERROR 11-20 15:54:00 [async_llm.py:525] vllm.v1.engine.exceptions.EngineDeadError: x"
    )
    verdict = history.idle(5).end().verdict()
    assert [(f["id"], f["count"]) for f in verdict["failures"]] == [("encoder_cache_miss", 1)]
    assert len(verdict["incidents"]) == 1


def test_judge_names_a_death_by_a_cause_long_before_its_timeout(history: History) -> None:
    ids = history.begin().work(5).send(4)
    cause = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error"
    history.log(f"(Worker_TP1 pid=9) ERROR 11-20 15:53:40 [multiproc_executor.py:1] {cause}").serve(40, in_flight=4)
    history.log(
        "(EngineCore pid=8) ERROR 11-20 15:54:20 [core.py:1] TimeoutError: RPC call to execute_model timed out."
    )
    history.die(ids).idle(5).end()
    deaths = [f for f in history.verdict()["failures"] if f["severity"] == "engine_death"]
    assert [f["id"] for f in deaths] == ["nccl_error"]


LAST_TRACEBACK = (
    'Traceback (most recent call last):\n  File "/x/serve.py", line 3, in main\n    go()\nRuntimeError: no more'
)


def test_judge_names_a_death_by_the_last_traceback_of_its_log(history: History) -> None:
    ids = history.begin().work(5).send(4)
    history.log(LAST_TRACEBACK)
    [failure] = history.die(ids, code=1).idle(3).end().verdict()["failures"]
    assert (failure["id"], failure["severity"]) == ("unknown_exception", "engine_death")


def test_judge_ignores_the_last_traceback_of_a_living_server(history: History) -> None:
    history.begin().work(30).log(LAST_TRACEBACK)
    assert history.end().verdict()["failures"] == []


def test_judge_ignores_a_server_stopped_before_the_load(history: History) -> None:
    history.add("run", what="begin", profile="test", target={"kind": "launched"}).launch()
    history.idle(2).add("run", what="interrupted", signal="SIGINT")
    history.log(history.MISS.splitlines()[-1]).close().run(1).exit(asked=True)
    verdict = history.idle(3).add("run", what="end", exit_code=130).verdict()
    assert (verdict["failures"], verdict["incidents"]) == ([], [])


def test_judge_reports_an_exit_before_the_load_as_startup_failure(history: History) -> None:
    history.add("run", what="begin", profile="test", target={"kind": "launched"}).launch()
    history.close().run(1).log(history.MISS).exit(1)
    history.idle(3).add("run", what="end", exit_code=4, why="it never became healthy")
    verdict = history.verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("encoder_cache_miss", "startup")]
    assert history.decision(verdict, "engine_deaths") == "pass"


STOP = """INFO:     Shutting down
INFO:     Waiting for application shutdown.
INFO:     Application shutdown complete.
INFO:     Finished server process [9]"""


def test_judge_reports_an_orderly_shutdown_as_terminated(history: History) -> None:
    history.processes(engine="R")
    ids = history.begin().work(5).send(3)
    verdict = history.log(STOP).lose_process().die(ids).idle(5).end().verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("server_terminated", "node")]
    assert [i["kind"] for i in verdict["incidents"]] == ["terminated"]
    assert "server bug;" not in cause_text(Verdict.from_json(verdict).failures[0])
    assert history.decision(verdict, "engine_deaths") == "pass"


@pytest.mark.parametrize(
    ("lines", "name"),
    [(slice(None), "encoder_cache_miss"), (slice(1, -1), "encoder_cache_miss"), (slice(-1, None), None)],
    ids=["death", "cause alone", "echo alone"],
)
def test_judge_counts_a_death_that_ends_with_a_shutdown(history: History, lines: slice, name: str | None) -> None:
    """Also where no line says that the engine died: the cause alone is no shutdown."""
    ids = history.begin().work(5).send(3)
    history.log("\n".join([*history.MISS.splitlines()[lines], STOP])).die(ids).idle(5).end()
    verdict = history.verdict(expect=["engine_deaths == 0"])
    assert [f["severity"] for f in verdict["failures"]] == ["engine_death"]
    assert name is None or [f["id"] for f in verdict["failures"]] == [name]
    assert [i["kind"] for i in verdict["incidents"]] == ["death"]
    assert verdict["expectations"][0]["verdict"] == "fail"


def supervised(history: History, **more: Any) -> None:
    row = {"what": "ended", "running": False, "exit_code": 137, "oom_killed": True, "restarts": 0, "signal": None}
    words = "OOMKilled, exited with code 137"
    history.add("supervisor", **{"replica": "server", "source": "docker:vllm", **row, "reason": words, **more})


@pytest.mark.parametrize("asked_s", [0.2, 3.0], ids=["before the probes saw it", "after they did"])
def test_judge_names_a_death_that_docker_explains_by_oom(history: History, asked_s: float) -> None:
    ids = history.begin().work(5).send(3)
    history.answer(ids, "reset", error="Connection reset by peer").close().run(asked_s)
    supervised(history)
    verdict = history.run(20).end().verdict()
    deaths = [f for f in verdict["failures"] if f["severity"] == "engine_death"]
    assert [(f["id"], f["count"]) for f in deaths] == [("container_oom_killed", 1)]
    assert deaths[0]["evidence"]["source"] == "docker:vllm"
    assert deaths[0]["evidence"]["text"] == "OOMKilled, exited with code 137"
    assert any("docker:vllm: OOMKilled" in s for s in deaths[0]["signs"]) or asked_s > 1
    assert len(verdict["incidents"]) == 1


def test_judge_reports_a_restart_between_two_looks_with_its_reason(history: History) -> None:
    history.begin().work(5)
    supervised(history, running=True, restarts=1)
    verdict = history.work(15).end().verdict()
    deaths = [f for f in verdict["failures"] if f["severity"] == "engine_death"]
    assert [(f["id"], f["count"]) for f in deaths] == [("container_oom_killed", 1)]
    states = [s["state"] for s in verdict["states"] if s["state"] != s["from"]]
    assert states[:3] == ["healthy", "restarting", "healthy"]
    assert "dead" not in states


def test_judge_counts_an_orchestrator_report_of_a_known_death_once(history: History) -> None:
    ids = history.begin().work(5).send(3)
    history.answer(ids, "reset", error="Connection reset by peer").close().run(2).open().work(3)
    supervised(history, running=True, restarts=1, exit_code=0, oom_killed=False, reason="exited with code 0")
    verdict = history.work(10).end().verdict()
    deaths = [f for f in verdict["failures"] if f["severity"] == "engine_death"]
    assert [f["count"] for f in deaths] == [1]
    assert "exited with code 0 (docker:vllm)" in deaths[0]["title"]


def test_judge_notes_exit_code_0_of_a_death(history: History) -> None:
    ids = history.begin().work(5).send(3)
    history.log(history.MISS).die(ids, code=0).run(5)
    judge = folded(Judge(), history.end().rows)
    judge.verdict()
    (incident,) = judge.incidents
    assert incident.record().beside == ("exit_zero_after_death",)
    assert incident.id == "encoder_cache_miss"


def test_judge_counts_a_deadly_line_of_a_living_server_as_no_death(history: History) -> None:
    """LMDeploy logs a CUDA error, fails one request and serves the next."""
    history.begin().work(10).log(history.MISS).answer(history.send(1), "http_error", error="internal error", status=500)
    verdict = history.work(20).end().verdict()
    counts = {c["name"]: c for c in verdict["expectations"]}
    assert (verdict["verdict"], verdict["exit_code"]) == ("fail", 1)
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("encoder_cache_miss", "request")]
    assert counts["engine_deaths"]["verdict"] == "pass"
    assert counts["failures"]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("order", "name"),
    [
        (("engine_core", "api_server"), "engine_core_proc_died"),
        (("api_server", "engine_core"), "engine_death_unexplained"),
    ],
)
def test_judge_names_a_kill_by_the_first_process_gone(history: History, order: tuple[str, ...], name: str) -> None:
    history.begin().work(3).log("INFO it serves")
    history.add("heard", replica="server", what="listening", text="")
    for pid, role in enumerate(order, 10):
        gone = {"replica": "server", "pid": pid, "role": role, "what": "gone", "state": "Z", "name": role}
        history.add("process", **gone)
        history.now += 150_000_000
    verdict = history.close().run(5).end().verdict()
    assert [f["id"] for f in verdict["failures"]] == [name]
    assert "server bug;" not in cause_text(Verdict.from_json(verdict).failures[0])
