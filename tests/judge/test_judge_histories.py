"""Hand-made runs, each with the verdict it deserves; most of them are ways in which a run proved nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadchaos.judge.judge import Judge
from loadchaos.model import Terms

S = 1_000_000_000
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "verdict.json").read_text())
MISS = """(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] Traceback (most recent call last):
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]   File "/x/vllm/v1/worker/gpu_model_runner.py", line 3203, in propose_draft_token_ids
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]     mm_embed_inputs = self._gather_mm_embeddings(
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]   File "/x/vllm/v1/worker/gpu_model_runner.py", line 2203, in _gather_mm_embeddings
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]     assert encoder_output is not None, f"Encoder cache miss for {mm_hash}."
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] AssertionError: Encoder cache miss for 9f8a1c22d3e4f5a6.
(APIServer pid=300) ERROR 11-20 15:53:40 [async_llm.py:525] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."""  # noqa: E501 - log lines are as long as they are
TEXT_OF_DEATH = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def verdict_of(history: Any, **terms: Any) -> dict[str, Any]:
    """The verdict; every one that any test makes must fit the schema."""
    judge = Judge(Terms("test", **terms))
    for row in history.rows:
        judge.feed(row)
    verdict = judge.verdict()
    jsonschema.validate(verdict, SCHEMA)
    json.dumps(verdict)
    return verdict


def unknowns(verdict: dict[str, Any]) -> set[str]:
    return {c["name"] for c in [*verdict["checks"], *verdict["expectations"]] if c["verdict"] == "unknown"}


def test_a_healthy_run_passes_and_says_what_that_is_worth(history: Any) -> None:
    verdict = verdict_of(history.begin().work(30).end())
    assert (verdict["verdict"], verdict["exit_code"]) == ("pass", 0), unknowns(verdict)
    assert verdict["worth"] == "0 deaths in 300 exposures (requests): below 1 in 100 at 95 %"
    assert verdict["outcomes"] == {"ok": 300}
    assert verdict["latency"]["text"]["ttft_s"]["p50"] == pytest.approx(0.1, rel=0.01)
    assert verdict["latency"]["text"]["e2e_s"]["n"] == 300
    assert verdict["failures"] == []
    assert verdict["started"].startswith("2026-09-21T")


def test_a_death_with_its_cause_in_the_log_is_one_failure_by_the_name_of_the_cause(history: Any) -> None:
    history.begin(kv_blocks=10).work(10)
    ids = history.send(20, "images")
    history.serve(0.2, in_flight=20)
    history.log(MISS).die(ids)
    history.idle(3).end()
    verdict = verdict_of(history)
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


def test_who_was_told_before_the_sign_was_seen_was_in_flight_too(history: Any) -> None:
    ids = history.begin().work(5).send(9)
    history.serve(0.3, in_flight=9)
    history.answer(ids, "stream_error", error=TEXT_OF_DEATH)
    history.rows = [r for r in history.rows if r["row"] != "state" or r["to"] == "healthy"]
    history.now += S // 10
    told = {"replica": "server", "engine": None, "from": "healthy", "to": "dead", "signs": ["gone"]}
    history.add("state", since_ns=history.now, noticed_after_s=0.0, **told)
    history.close().idle(1).end()
    assert verdict_of(history)["failures"][0]["in_flight_at_death"] == 9


def test_a_death_without_any_log_is_still_an_engine_death_and_says_what_to_give(history: Any) -> None:
    ids = history.begin().work(5).send(5)
    history.serve(0.2).die(ids).idle(2).end()
    [failure] = verdict_of(history)["failures"]
    assert failure["severity"] == "engine_death"
    assert failure["lost_requests"] == 5
    assert "refused" in failure["evidence"]["text"] or "engine is dead" in failure["evidence"]["text"]


def test_a_refused_listener_alone_gives_a_death_that_nobody_can_explain(history: Any) -> None:
    history.begin().work(5)
    history.close().idle(3)
    history.end()
    [failure] = verdict_of(history)["failures"]
    assert failure["id"] == "engine_death_unexplained"
    assert "--server-log" in failure["remedy"]


def test_the_exit_of_a_launched_server_counts_though_no_state_told_of_it(history: Any) -> None:
    history.begin().work(5)
    history.rows = [r for r in history.rows if r["row"] != "state"]
    history.rows.append(
        {"row": "launch", "at_ns": history.now, "what": "exit", "replica": "server", "code": 0, "signal": None,
         "reason": "exited with code 0", "asked": False}
    )  # fmt: skip
    history.end()
    [failure] = verdict_of(history)["failures"]
    assert failure["severity"] == "engine_death"
    assert "exited with code 0" in failure["title"]


def test_a_server_that_ends_before_it_was_healthy_failed_to_start_and_did_not_die_under_load(history: Any) -> None:
    history.add("run", what="begin", profile="test", target={"kind": "embedded"})
    history.add("launch", what="start", replica="server", pid=9, command=["vllm"])
    history.log("sim: no such defect")
    history.close().run(1)
    history.add("launch", what="exit", replica="server", pid=9, code=1, signal=None, reason="exited with code 1")
    history.add("run", what="end", exit_code=4, why="it never became healthy")
    verdict = verdict_of(history)
    [failure] = verdict["failures"]
    assert (failure["id"], failure["severity"]) == ("startup_failure_unexplained", "startup")
    assert "--server-log" not in failure["remedy"]
    assert verdict["exit_code"] == 4
    assert next(e for e in verdict["expectations"] if e["name"] == "engine_deaths")["verdict"] == "pass"


def test_an_engine_core_that_is_gone_with_only_echoes_in_the_log_was_killed(history: Any) -> None:
    history.pids = {10: ("api_server", "S"), 11: ("engine_core", "R")}
    ids = history.begin().work(5).send(3)
    history.add("process", replica="server", pid=11, role="engine_core", what="gone", state="", name="VLLM::EngineCore")
    history.log(MISS.splitlines()[-1]).die(ids).idle(2).end()
    [failure] = verdict_of(history)["failures"]
    assert (failure["id"], failure["lost_requests"]) == ("engine_core_proc_died", 3)
    assert "OOM killer" in failure["remedy"]


def test_stopping_a_dead_server_at_the_end_takes_its_death_not_back(history: Any) -> None:
    history.begin().work(5)
    history.health = 503  # the engine is gone, the API server lives on
    history.stall(5)
    history.end()  # our own stop: asked
    verdict = verdict_of(history)
    assert verdict["verdict"] == "fail"
    assert verdict["failures"][0]["severity"] == "engine_death"


def test_a_server_that_refuses_while_we_end_it_has_not_died(history: Any) -> None:
    history.begin().work(30)
    history.add("load", what="end", why="done", file="requests-0")
    history.add("locust", what="exit", pid=10, code=0)
    history.add("run", what="load_end")
    history.close().run(2)
    history.add("launch", what="exit", replica="server", pid=9, code=0, signal=None, reason="asked", asked=True)
    history.add("run", what="end")
    verdict = verdict_of(history)
    assert "dead" in [s["state"] for s in verdict["states"]]
    assert verdict["verdict"] == "pass", verdict["failures"]
    assert verdict["incidents"] == []


def test_a_server_that_dies_after_the_load_by_itself_has_died(history: Any) -> None:
    history.begin().work(30)
    history.add("load", what="end", why="done", file="requests-0")
    history.add("locust", what="exit", pid=10, code=0)
    history.add("run", what="load_end")
    history.close().run(1)
    history.add("launch", what="exit", replica="server", pid=9, code=1, signal=None, reason="code 1", asked=False)
    history.add("run", what="end")
    assert verdict_of(history)["verdict"] == "fail"


def test_five_deaths_of_one_cause_are_one_failure_and_five_incidents(history: Any) -> None:
    history.begin()
    for _ in range(5):
        ids = history.work(10).send(4, "images")
        history.serve(0.2).log(MISS).die(ids)
        history.add("launch", what="start", replica="server", pid=9, command=["vllm"])
        history.run(5)
        history.open().idle(2)
    history.work(10).end()
    verdict = verdict_of(history)
    [failure] = verdict["failures"]
    assert failure["count"] == 5
    assert len(failure["incidents"]) == 5
    assert failure["lost_requests"] == 20
    assert 5 < failure["recovered_after_s"] < 8
    assert {i["id"] for i in verdict["incidents"]} == {"encoder_cache_miss"}


def test_recovery_is_measured_against_its_limit(history: Any) -> None:
    history.begin().work(5)
    history.close().run(10)
    history.open().work(10)
    history.end()
    by_name = {e["name"]: e for e in verdict_of(history, expect=["recovers_within <= 5s"])["expectations"]}
    assert by_name["recovers_within"]["verdict"] == "fail"
    by_name = {e["name"]: e for e in verdict_of(history, expect=["recovers_within <= 1m"])["expectations"]}
    assert by_name["recovers_within"]["verdict"] == "pass"


def test_a_hang_is_a_failure_though_health_says_ok(history: Any) -> None:
    history.pids = {10: ("api_server", "S"), 11: ("engine_core", "R")}
    ids = history.begin().work(5).send(3)
    history.pids[11] = ("engine_core", "T")
    history.in_flight = 3
    history.stall(30)
    history.answer(ids, "stalled", took_s=30)
    history.end()
    verdict = verdict_of(history)
    [failure] = verdict["failures"]
    assert (failure["id"], failure["severity"], failure["lost_requests"]) == ("alive_but_hung", "hang", 3)
    assert next(e for e in verdict["expectations"] if e["name"] == "hangs")["verdict"] == "fail"


def test_errors_that_nobody_can_explain_are_named_by_outcome_and_text(history: Any) -> None:
    history.begin().work(20)
    for n in range(4):
        history.answer(history.send(1), "http_error", status=500, error=f"worker {n} said something new")
    history.idle(1).end()
    [failure] = verdict_of(history)["failures"]
    assert failure["id"] == "unexplained_http_error"
    assert failure["count"] == 4
    assert "something new" in failure["title"]
    assert failure["evidence"]["source"] == "client"


def test_a_refusal_of_what_was_right_is_a_failure_and_a_wanted_one_is_not(history: Any) -> None:
    history.begin().work(20)
    history.answer(history.send(1), "rejected", status=400, error="no", expect=["rejected"])
    assert verdict_of(history.end())["verdict"] == "pass"
    history.rows.pop()
    history.answer(history.send(1), "rejected", status=400, error="no such thing")
    history.end()
    verdict = verdict_of(history)
    assert verdict["verdict"] == "fail"
    assert verdict["failures"][0]["id"] == "unexpected_rejection"


def test_a_refusal_of_what_we_should_not_have_sent_is_our_own_error(history: Any) -> None:
    history.begin(max_model_len=90).work(20)
    history.answer(history.send(1), "rejected", status=400, error="too long", planned_tokens=100)
    history.end()
    verdict = verdict_of(history)
    assert verdict["failures"] == []
    assert unknowns(verdict) == {"fit"}


def test_a_prompt_over_the_limit_that_is_answered_is_a_failure(history: Any) -> None:
    history.begin().work(20)
    history.answer(history.send(1), "ok", edge=1, expect=["rejected"])
    history.end()
    assert verdict_of(history)["failures"][0]["id"] == "overlength_not_refused"


def test_the_ladder_tells_where_trouble_began(history: Any) -> None:
    history.begin().work(5)
    for edge in range(-1100, 0, 100):
        bad = edge >= -700
        error = {"status": 500, "error": "CUDA error: device-side assert"} if bad else {}
        history.answer(history.send(1, "edge"), "http_error" if bad else "ok", edge=edge, **error)
    history.answer(history.send(1, "edge"), "rejected", edge=1, expect=["rejected"])
    history.end()
    check = next(c for c in verdict_of(history)["checks"] if c["name"] == "near_limit")
    assert check["verdict"] == "fail"
    assert "longest that passed: -800" in check["actual"]
    assert "stay more than 700 tokens" in check["actual"]


def test_lmdeploys_500_is_explained_by_what_the_kv_cache_holds(history: Any) -> None:
    history.begin(dialect="lmdeploy").work(5)
    history.log(
        "2024-12-01 10:00:00,000 - lmdeploy - INFO - build CacheEngine with config:CacheConfig(max_batches=128, "
        "block_size=64, num_cpu_blocks=128, num_gpu_blocks=21, window_size=-1, cache_max_entry_count=0.1)"
    )
    for _ in range(5):
        history.answer(
            history.send(1, "images"), "http_error", status=500, error="Internal Server Error", planned_tokens=3446
        )
        history.serve(1)
    history.end()
    [failure] = verdict_of(history)["failures"]
    assert failure["id"] == "lmdeploy_input_length_error"
    assert failure["title"] == "the KV cache holds 21 x 64 = 1344 tokens, this prompt had 3446, which needs 54 blocks"
    assert failure["remedy"] == "--cache-max-entry-count of at least 0.26 (0.1 now), or a shorter input"


def test_where_no_log_tells_the_blocks_the_lengths_themselves_show_the_capacity(history: Any) -> None:
    history.begin(dialect="lmdeploy").work(5)
    for n in range(1300, 1400, 10):
        bad = n > 1344
        history.answer(
            history.send(1, "ladder"), "http_error" if bad else "ok", status=500 if bad else 200,
            error="Internal Server Error" if bad else None, planned_tokens=n,
        )  # fmt: skip
    history.end()
    [failure] = verdict_of(history)["failures"]
    assert failure["id"] == "lmdeploy_input_length_error"
    assert failure["title"].startswith("prompts of 1350 tokens or more fail, up to 1340 pass")


def test_a_server_without_metrics_is_not_one_we_lost_sight_of(history: Any) -> None:
    history.metrics = False
    history.begin().work(20)
    history.add("gap", replica="server", source="scrape", seconds=20.0, why="404")
    assert verdict_of(history.end())["verdict"] == "pass"


# --- whose doing it was -------------------------------------------------------------------------------------------------


def attacked(history: Any, name: str, effects: list[str], **more: Any) -> None:
    base = {"attack": name, "n": 1, "replica": "server", "effects": effects, "status": None, "text": "", **more}
    history.add("attack", what="begin", ok=None, **base)
    history.add("attack", what="end", ok=True, **base)


def test_a_miss_after_our_own_encoder_cache_reset_is_self_inflicted_and_still_a_failure(history: Any) -> None:
    ids = history.begin().work(5).send(3)
    attacked(history, "reset_encoder_cache", ["encoder_cache_miss"])
    history.serve(0.5).log(MISS).die(ids).idle(2).end()
    verdict = verdict_of(history)
    assert verdict["failures"][0]["attribution"] == "self-inflicted"
    assert verdict["verdict"] == "fail"


def test_a_miss_after_a_processor_cache_reset_is_the_servers(history: Any) -> None:
    ids = history.begin().work(5).send(3)
    attacked(history, "reset_mm_cache", ["mm_cache_desync_request"])
    history.serve(0.5).log(MISS).die(ids).idle(2).end()
    assert verdict_of(history)["failures"][0]["attribution"] == "server"


def test_a_miss_under_sabotage_is_injected(history: Any) -> None:
    ids = history.begin().work(5).send(3)
    attacked(history, "drop_encoder_entries", ["encoder_cache_miss"], kind="engine")
    history.serve(0.5).log(MISS).die(ids).idle(2).end()
    assert verdict_of(history)["failures"][0]["attribution"] == "injected"


def test_the_death_of_a_process_that_we_killed_is_expected_and_does_not_fail_the_run(history: Any) -> None:
    ids = history.begin().work(60).send(3)
    attacked(history, "kill_engine_core", ["engine_death"], kind="process")
    history.die(ids)
    history.add("launch", what="start", replica="server", pid=9, command=["vllm"])
    history.run(3)
    history.open().work(5).end()
    verdict = verdict_of(history)
    assert verdict["failures"][0]["attribution"] == "expected"
    assert verdict["verdict"] == "pass", unknowns(verdict)


def test_another_cause_while_we_killed_a_process_is_the_servers(history: Any) -> None:
    ids = history.begin().work(60).send(3)
    attacked(history, "kill_engine_core", ["engine_death"], kind="process")
    history.log(MISS).die(ids).idle(2).end()
    assert verdict_of(history)["failures"][0]["attribution"] == "server"


# --- acceptance ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "decision"),
    [
        ({"because": "known", "until": "2027-03-01", "at_most": 50}, "pass"),
        ({"because": "known"}, "pass"),
        ({"because": "known", "until": "2026-01-01"}, "fail"),
        ({"because": "known", "at_most": 1}, "fail"),
        ({"because": ""}, "fail"),
    ],
)
def test_a_failure_is_accepted_by_id_with_a_reason_until_a_day_and_so_often(
    history: Any, entry: dict[str, Any], decision: str
) -> None:
    history.begin().work(60)
    history.answer(history.send(2), "http_error", status=500, error="something new")
    history.end()
    assert verdict_of(history, accept=[{"id": "unexplained_http_error", **entry}])["verdict"] == decision


# --- every way to unknown -----------------------------------------------------------------------------------------------


def without(history: Any, row: str, what: str | None = None) -> Any:
    history.rows = [r for r in history.rows if r["row"] != row or (what is not None and r.get("what") != what)]
    return history


def healthy(history: Any) -> Any:
    history.images = 1
    history.begin()
    attacked(history, "reset_mm_cache", [])
    return history.work(30, traffic="images").end()


def case_no_end(h: Any) -> Any:
    return without(healthy(h), "run", "end")


def case_interrupted(h: Any) -> Any:
    h = healthy(h)
    h.rows.append({"row": "run", "at_ns": h.now, "what": "interrupted", "signal": "SIGINT"})
    return h


def case_no_request(h: Any) -> Any:
    return h.begin().idle(10).end()


def case_half_missed(h: Any) -> Any:
    h = healthy(h)
    h.rows.insert(
        -3, {"row": "missed", "at_ns": h.now, "traffic": "images", "phase": 0, "why": "no_slot", "count": 200}
    )
    return h


def case_shed(h: Any) -> Any:
    h.begin().work(20)
    h.answer(h.send(20), "shed", status=503)
    return h.end()


def case_locust_crashed(h: Any) -> Any:
    h = healthy(h)
    next(r for r in h.rows if r["row"] == "locust" and r["what"] == "exit")["code"] = 1
    return h


def case_no_load_end(h: Any) -> Any:
    return without(healthy(h), "load", "end")


def case_unfinished(h: Any) -> Any:
    h.begin().work(30)
    h.send(1)
    return h.end()


def case_no_probe(h: Any) -> Any:
    return without(healthy(h), "probe")


def case_watcher_stopped(h: Any) -> Any:
    h.begin().work(20)
    rows = h.rows
    h.rows = []
    h.work(40)
    h.rows = rows + [r for r in h.rows if r["row"] != "probe"]
    return h.end()


def case_log_lost(h: Any) -> Any:
    h = healthy(h)
    gap = {"row": "gap", "at_ns": h.now, "replica": "server", "source": "log", "seconds": 0.0}
    h.rows.insert(-4, {**gap, "why": "3000 bytes of server output could not be written"})
    return h


def case_scrape_blind(h: Any) -> Any:
    h = healthy(h)
    h.rows.insert(
        -4, {"row": "gap", "at_ns": h.now, "replica": "server", "source": "scrape", "seconds": 20.0, "why": "x"}
    )
    return h


def case_ledger(h: Any) -> Any:
    h = healthy(h)
    h.rows[-1]["ledger_lost"] = "No space left on device"
    return h


def case_preflight(h: Any) -> Any:
    h = healthy(h)
    h.rows.insert(
        5, {"row": "preflight", "at_ns": h.rows[5].get("at_ns", h.now), "name": "x", "ok": False, "text": "no"}
    )
    return h


@pytest.mark.parametrize(
    ("case", "check"),
    [
        (case_no_end, "run"), (case_interrupted, "run"), (case_no_request, "requests_sent"),
        (case_half_missed, "load_delivered"), (case_shed, "shed"), (case_locust_crashed, "load_process"),
        (case_no_load_end, "load_process"), (case_unfinished, "load_process"), (case_no_probe, "watching"),
        (case_watcher_stopped, "watching"), (case_log_lost, "watching"), (case_scrape_blind, "watching"),
        (case_ledger, "ledger"), (case_preflight, "preflight x"),
    ],
)  # fmt: skip
def test_a_run_that_proved_nothing_is_unknown(history: Any, case: Callable[[Any], Any], check: str) -> None:
    verdict = verdict_of(case(history))
    assert (verdict["verdict"], verdict["exit_code"]) == ("unknown", 3), verdict["failures"]
    assert check in unknowns(verdict)
    assert verdict["worth"].startswith("nothing")


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
        ({"expect": ["what is this"]}, "what is this"), ({"expect": ["nonsense == 0"]}, "nonsense"),
    ],
)  # fmt: skip
def test_what_the_profile_asks_for_is_proved_or_unknown(history: Any, terms: dict[str, Any], check: str | None) -> None:
    verdict = verdict_of(healthy(history), **terms)
    assert unknowns(verdict) == ({check} if check else set())
    assert verdict["verdict"] == ("unknown" if check else "pass")


def test_no_drafts_make_speculative_decoding_and_its_exposure_unknown(history: Any) -> None:
    history = healthy(history)
    for row in history.rows:
        if row["row"] == "metrics":
            row["values"]["spec_drafts_total"] = 7.0
    terms = {
        "requires": ["speculative_decoding"],
        "exposure": {"count": "image_requests_while_drafting", "at_least": 1},
    }
    assert unknowns(verdict_of(history, **terms)) == {"requires speculative_decoding", "exposure"}


def test_attacks_that_all_failed_prove_nothing(history: Any) -> None:
    history.begin()
    base = {"attack": "reset_mm_cache", "n": 1, "replica": "server", "effects": []}
    history.add("attack", what="begin", ok=None, **base)
    history.add("attack", what="end", ok=False, status=404, **base)
    history.work(30).end()
    assert unknowns(verdict_of(history, attacks=["reset_mm_cache"])) == {"attack reset_mm_cache"}


def test_a_slow_generator_voids_latency_and_nothing_else(history: Any) -> None:
    history.begin().work(30)
    for row in history.rows:
        if row["row"] == "begin":
            row["due_ns"] -= S
    verdict = verdict_of(history.end(), expect=["ttft_p99 <= 1s", "failures == 0"])
    assert verdict["generator"]["limited"]
    assert unknowns(verdict) == {"ttft_p99"}


def test_a_failure_found_in_an_interrupted_run_is_a_fail_with_the_signals_code(history: Any) -> None:
    ids = history.begin().work(5).send(3)
    history.serve(0.2).log(MISS).die(ids).idle(2)
    history.add("run", what="interrupted", signal="SIGINT")
    history.end(exit_code=130, why="SIGINT")
    verdict = verdict_of(history)
    assert (verdict["verdict"], verdict["exit_code"]) == ("fail", 130)


def test_the_targets_trouble_is_exit_4_only_while_nothing_was_sent(history: Any) -> None:
    history.begin().end(exit_code=4, why="401")
    assert verdict_of(history)["exit_code"] == 4
    history.rows = [r for r in history.rows if r["row"] != "run" or r["what"] != "end"]
    history.work(10).end(exit_code=4, why="401")
    assert verdict_of(history)["exit_code"] == 3


# --- a false pass must be impossible ------------------------------------------------------------------------------------


def test_no_prefix_of_a_run_passes(history: Any) -> None:
    rows = healthy(history).rows
    for cut in range(0, len(rows), 37):
        judge = Judge(Terms("test"))
        for row in rows[:cut]:
            judge.feed(row)
        assert judge.verdict()["verdict"] != "pass", f"cut at row {cut}: {rows[cut]}"


def test_a_failing_run_never_passes_whatever_kind_of_row_is_lost(make_history: Callable[[], Any]) -> None:
    history = make_history()
    ids = history.begin().work(10).send(5)
    history.serve(0.2).log(MISS).die(ids).idle(2).end()
    for kind in sorted({r["row"] for r in history.rows}):
        judge = Judge(Terms("test"))
        for row in history.rows:
            if row["row"] != kind:
                judge.feed(row)
        assert judge.verdict()["verdict"] != "pass", f"without {kind}"


def test_the_same_rows_give_the_same_verdict_again_and_again(history: Any) -> None:
    ids = history.begin().work(5).send(5)
    history.serve(0.2).log(MISS).die(ids).idle(2).end()
    assert verdict_of(history) == verdict_of(history)
    judge = Judge(Terms("test"))
    for row in history.rows:
        judge.feed(row)
        judge.findings()
    first = judge.verdict()
    assert judge.verdict() == first == verdict_of(history)


# --- findings -----------------------------------------------------------------------------------------------------------


def test_findings_tell_of_a_death_when_it_opens_and_of_its_name_when_it_closes(history: Any) -> None:
    ids = history.begin().work(5).send(5)
    history.serve(0.2).log(MISS).die(ids).idle(2).end()
    judge = Judge(Terms("test"))
    found: list[Any] = []
    for row in history.rows:
        judge.feed(row)
        found += judge.findings()
    judge.verdict()
    found += judge.findings()
    kinds = [(r["row"], r.get("what")) for r in found]
    assert kinds == [("incident", "open"), ("failure", None), ("incident", "close"), ("failure", None)]
    assert found[1]["id"] == found[3]["id"] == "encoder_cache_miss"
    assert found[2]["folder"] == found[3]["incident"] == "001-encoder_cache_miss"
    assert found[1]["at_ns"] - found[0]["at_ns"] < 4 * S


def test_an_incident_holds_what_a_report_upstream_needs(history: Any) -> None:
    history.begin(kv_blocks=3).work(5)
    attacked(history, "reset_mm_cache", ["mm_cache_desync_request"])
    ids = history.send(5, "images")
    history.serve(0.2).log(MISS).die(ids).idle(2).end()
    judge = Judge(Terms("test"))
    for row in history.rows:
        judge.feed(row)
    judge.verdict()
    [incident] = judge.incidents
    told = incident.to_json()
    json.dumps(told)
    assert len(told["in_flight"]) == told["in_flight_at_death"] == 5
    assert len(told["admitted"]) == 55
    assert told["attacks"][0]["attack"] == "reset_mm_cache"
    assert told["log_lines"] == {"server.log": {"first": 7, "last": 7}}
    assert told["environment"]["facts"]["version"] == "0.18.0"
    assert told["environment"]["command"] == ["vllm", "serve"]
    texts = [t["text"] for t in told["timeline"]]
    assert any(t.startswith("dead") for t in texts)
    assert [t["at_s"] for t in told["timeline"]] == sorted(t["at_s"] for t in told["timeline"])
    assert told["exit"]["code"] == 0


def test_memory_does_not_grow_with_the_run(history: Any) -> None:
    judge = Judge(Terms("test"))
    for row in history.begin().rows:
        judge.feed(row)
    history.rows.clear()
    for n in range(20_000):
        ids = history.send(1)
        history.now += 1_000_000
        bad = n % 50 == 0
        history.answer(
            ids, "http_error" if bad else "ok", took_s=0.001, **({"error": f"unlike {n % 7}"} if bad else {})
        )
        for row in history.rows:
            judge.feed(row)
        history.rows.clear()
    assert not judge._tally.in_flight
    assert len(judge._answers._waiting) < 100
    assert len(judge._book.entries) < 10
