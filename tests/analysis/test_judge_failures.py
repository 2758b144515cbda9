from typing import Any

import pytest

from loadchaos.analysis.judge import Judge
from loadchaos.analysis.state.machine import StateMachine
from loadchaos.chaos.admin import operation_named
from loadchaos.chaos.signals import SIGNALS
from loadchaos.core.model import Terms
from loadchaos.core.outcome_rules import CLOSED_UNANNOUNCED
from loadchaos.core.typed_json import to_json
from loadchaos.server.dialects import DIALECTS
from tests.analysis.conftest import History
from tests.crash_logs import CRASHES
from tests.rows import S, folded


def test_judge_names_unexplained_errors_by_outcome_and_text(history: History) -> None:
    history.begin().work(20)
    for n in range(4):
        history.answer(history.send(1), "http_error", status=500, error=f"worker {n} said something new")
    [failure] = history.idle(1).end().verdict()["failures"]
    assert failure["id"] == "unexplained_http_error"
    assert failure["count"] == 4
    assert "something new" in failure["title"]
    assert failure["evidence"]["source"] == "client"


def test_judge_fails_on_a_refused_valid_request(history: History) -> None:
    history.begin().work(20)
    history.answer(history.send(1), "rejected", status=400, error="no", expect=["rejected"])
    assert history.end().verdict()["verdict"] == "pass"
    history.rows.pop()
    history.answer(history.send(1), "rejected", status=400, error="no such thing " * 30).end()
    verdict = history.verdict()
    assert verdict["verdict"] == "fail"
    failure = verdict["failures"][0]
    assert failure["id"] == "unexpected_rejection"
    assert failure["remedy"].endswith("add to the traffic: expect: [ok, rejected].")
    assert failure["title"].startswith("A valid request was refused: no such thing no such")
    assert failure["title"].endswith("…")


def test_judge_reports_our_own_misfit_as_unknown(history: History) -> None:
    history.begin(max_model_len=90).work(20)
    history.answer(history.send(1), "rejected", status=400, error="too long", planned_tokens=100)
    verdict = history.end().verdict()
    assert verdict["failures"] == []
    assert history.unknowns(verdict) == {"fit"}


def test_judge_fails_on_an_answered_prompt_over_the_limit(history: History) -> None:
    history.begin().work(20).answer(history.send(1), "ok", edge=1, expect=["rejected"]).end()
    assert history.verdict()["failures"][0]["id"] == "overlength_not_refused"


def test_judge_explains_lmdeploys_500_by_the_kv_cache(history: History) -> None:
    history.begin(dialect="lmdeploy", kv_blocks=21, kv_block_size=64).work(5)
    history.log(
        "2024-12-01 10:00:00,000 - lmdeploy - INFO - build CacheEngine with config:CacheConfig(max_batches=128, "
        "block_size=64, num_cpu_blocks=128, num_gpu_blocks=21, window_size=-1, cache_max_entry_count=0.1)"
    )
    for _ in range(5):
        history.answer(
            history.send(1, "images"), "http_error", status=500, error="Internal Server Error", planned_tokens=3446
        )
        history.serve(1)
    [failure] = history.end().verdict()["failures"]
    assert failure["id"] == "lmdeploy_input_length_error"
    assert failure["title"] == "the KV cache holds 21 x 64 = 1344 tokens, this prompt had 3446, which needs 54 blocks"
    assert failure["remedy"] == "--cache-max-entry-count of at least 0.26 (0.1 now), or a shorter input"


def test_judge_derives_the_kv_capacity_from_lengths(history: History) -> None:
    history.begin(dialect="lmdeploy").work(5)
    for n in range(1300, 1400, 10):
        bad = n > 1344
        history.answer(
            history.send(1, "ladder"),
            "http_error" if bad else "ok",
            status=500 if bad else 200,
            error="Internal Server Error" if bad else None,
            planned_tokens=n,
        )
    [failure] = history.end().verdict()["failures"]
    assert failure["id"] == "lmdeploy_input_length_error"
    assert failure["title"].startswith("Prompts of 1350 tokens or more fail, up to 1340 pass")


def test_judge_accepts_a_server_without_metrics(history: History) -> None:
    history.metrics = False
    history.begin().work(20).add("gap", replica="server", source="scrape", seconds=20.0, why="404")
    assert history.end().verdict()["verdict"] == "pass"


# --- whose doing it was -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "effect", "kind", "whose"),
    [
        ("reset_encoder_cache", "encoder_cache_miss", "admin", "self-inflicted"),
        ("reset_mm_cache", "mm_cache_desync_request", "admin", "server"),
        ("drop_encoder_entries", "encoder_cache_miss", "engine", "injected"),
    ],
)
def test_judge_attributes_a_miss_by_the_effects_of_the_attack_before(
    history: History, attack: str, effect: str, kind: str, whose: str
) -> None:
    ids = history.begin().work(5).send(3)
    history.attacked(attack, [effect], kind=kind)
    verdict = history.serve(0.5).log(history.MISS).die(ids).idle(2).end().verdict()
    assert (verdict["failures"][0]["attribution"], verdict["verdict"]) == (whose, "fail")


def test_judge_attributes_a_refused_kv_release_to_our_call(history: History) -> None:
    history.begin().work(5)
    operation = operation_named("release_kv_cache_memory", DIALECTS["vllm"])
    history.attacked(operation.name, list(operation.effects))
    log = (CRASHES / "vllm/kv-release-without-pause-0.32.log").read_text()
    for line in log.split("\n\n", 1)[1].splitlines():
        history.log(line)
    failures = history.work(10).end().verdict()["failures"]
    assert {f["attribution"] for f in failures} == {"self-inflicted"}
    assert "kv_release_without_pause" in {f["id"] for f in failures}


def test_judge_attributes_a_wait_in_an_overloaded_queue_to_the_load(history: History) -> None:
    history.begin().work(2)
    earlier = history.send(4)
    late = history.serve(1).send(1)
    history.serve(59).answer(earlier, took_s=60, first_token_ns=history.now)  # one after the other, before `late`
    history.serve(1.5)
    history.answer(late, "stalled", took_s=60.5, error="no byte of the answer arrived for 60 s")
    failures = history.work(5).end().verdict()["failures"]
    assert [(f["id"], f["attribution"]) for f in failures] == [("queue_wait", "load")]


def test_judge_attributes_lasting_effects_of_a_reset_to_us(history: History) -> None:
    history.begin().work(2).attacked("reset_mm_cache", ["mm_cache_desync_request"]).work(30)
    lost = "Multi-modal cache miss for request chatcmpl-lc-1 (mm_hashes=['e']): P0/P1 cache drift"
    history.log(f"(EngineCore pid=9) WARNING 11-21 20:35:01 [core.py:2011] {lost}").answer(
        history.send(1), "stream_error", error="Internal server error"
    )
    (failure,) = history.work(12).end().verdict()["failures"]
    assert (failure["id"], failure["attribution"]) == ("mm_cache_desync_request", "self-inflicted")


def test_judge_ends_lasting_effects_with_the_life_of_the_server(history: History) -> None:
    history.begin().work(2).attacked("reset_mm_cache", ["mm_cache_desync_request"]).work(30)
    history.launch(pid=10)
    history.work(5).log("AssertionError: Expected a cached item for mm_hash='61ae43d2'")
    assert [f["attribution"] for f in history.work(12).end().verdict()["failures"]] == ["server"]


@pytest.mark.parametrize(("starting", "names"), [(True, []), (False, ["shm_broadcast_stall"])])
def test_judge_ignores_warnings_while_the_server_starts(history: History, starting: bool, names: list[str]) -> None:
    stall = "INFO [shm_broadcast.py:548] No available shared memory broadcast block found in 60 seconds."
    history.close().begin()
    if starting:
        history.log(stall)
    history.open(restarted=False).work(12)
    if not starting:
        history.log(stall)
    assert [f["id"] for f in history.work(12).end().verdict()["failures"]] == names


def test_judge_expects_the_death_of_a_process_we_killed(history: History) -> None:
    ids = history.begin().work(60).send(3)
    history.attacked("kill_engine_core", ["engine_death"], kind="process").die(ids).launch().run(3)
    verdict = history.open().work(5).end().verdict()
    assert verdict["failures"][0]["attribution"] == "expected"
    assert verdict["verdict"] == "pass", history.unknowns(verdict)


def test_judge_attributes_another_cause_during_a_kill_to_the_server(history: History) -> None:
    ids = history.begin().work(60).send(3)
    history.attacked("kill_engine_core", ["engine_death"], kind="process")
    history.log(history.MISS).die(ids).idle(2).end()
    assert history.verdict()["failures"][0]["attribution"] == "server"


PROCESS = {"replica": "server", "cpu_s": 1.0, "rss_bytes": 1}


def sigkill_engine_core(history: History, pid: int, *, ok: bool) -> None:
    effects = list(SIGNALS["sigkill"].effects["engine_core"])
    attack = {"attack": "sigkill_engine_core", "n": 1, "replica": "server", "effects": effects, "status": None}
    attack |= {"kind": "process", "pid": pid, "signal": 9, "text": ""}
    history.add("attack", what="begin", ok=None, **attack).add("attack", what="end", ok=ok, **attack)


@pytest.mark.parametrize(
    ("pid", "exit_signal", "ok", "whose"),
    [
        (50, None, True, "expected"),
        (51, None, True, "server"),  # we killed another process than the one that went
        (50, None, False, "server"),  # our signal was not sent: it had gone by itself
        (50, 11, True, "server"),  # the API server crashed by itself in the same moment
    ],
)
def test_judge_attributes_only_the_killed_process_to_a_kill(
    history: History, pid: int, exit_signal: int | None, ok: bool, whose: str
) -> None:
    process = {**PROCESS, "pid": 50, "role": "engine_core", "name": "EngineCore"}
    ids = history.begin().work(5).send(3)
    history.add("process", what="seen", state="S", **process)
    sigkill_engine_core(history, pid, ok=ok)
    history.add("process", what="gone", state="Z", **process)
    history.log("ERROR Engine core proc EngineCore died unexpectedly, shutting down client.")
    [failure] = history.die(ids, signal=exit_signal).idle(2).end().verdict()["failures"]
    assert (failure["id"], failure["attribution"]) == ("engine_core_proc_died", whose)


def test_judge_attributes_a_kill_whose_end_is_reported_after_that_of_the_api_server(history: History) -> None:
    core = {**PROCESS, "pid": 50, "role": "engine_core", "name": "EngineCore"}
    api = {**PROCESS, "pid": 49, "role": "api_server", "name": "vllm serve"}
    ids = history.begin().work(5).send(3)
    history.add("process", what="seen", state="S", **core)
    history.add("process", what="seen", state="S", **api)
    sigkill_engine_core(history, 50, ok=True)
    history.log("ERROR AsyncLLM output_handler failed.")
    history.add("process", what="gone", state="Z", **api)
    history.run(0.1)
    history.add("process", what="gone", state="Z", **core)
    history.die(ids).idle(2).end()
    [failure] = history.verdict()["failures"]
    assert (failure["id"], failure["attribution"]) == ("engine_core_proc_died", "expected")


@pytest.mark.parametrize("seen_as", ["dead", "restarting"])
def test_judge_attributes_a_kill_whose_end_is_reported_before_the_server_is_known_to_be_down(
    history: History, seen_as: str
) -> None:
    core = {**PROCESS, "pid": 50, "role": "engine_core", "name": "EngineCore"}
    api = {**PROCESS, "pid": 9, "role": "api_server", "name": "vllm serve"}
    state = {"replica": "server", "engine": None, "signs": ["process ended: exited with code 0"], "since_ns": None}
    ids = history.begin().work(5).log("INFO it serves").send(3)
    history.states = StateMachine("another")  # the rows below tell what this server's did, late
    sigkill_engine_core(history, 50, ok=True)
    history.answer(ids).exit()
    history.add("process", what="gone", state="Z", **core)
    history.add("state", **state, **{"from": "healthy", "to": seen_as})
    history.log("ERROR AsyncLLM output_handler failed.")
    history.add("process", what="gone", state="Z", **api)
    history.now += 2 * S
    history.launch(19).add("state", **state, **{"from": seen_as, "to": "healthy"})
    [failure] = history.open().work(5).end().verdict()["failures"]
    assert (failure["id"], failure["attribution"]) == ("engine_core_proc_died", "expected")


@pytest.mark.parametrize("unsure_first", [True, False])
def test_judge_counts_dropped_requests_once_on_new_and_kept_alive_connections(
    history: History, unsure_first: bool
) -> None:
    dropped = "the server closed the connection before the end of its answer"
    texts = [CLOSED_UNANNOUNCED, dropped] if unsure_first else [dropped, CLOSED_UNANNOUNCED]
    history.begin()
    for text in [*texts, *texts]:
        history.work(2).answer(history.send(), "reset", error=text)
    [failure] = history.work(5).end().verdict()["failures"]
    assert (failure["id"], failure["count"]) == ("unexplained_reset", 4)
    assert failure["evidence"]["text"] == dropped
    assert "kept-alive" in failure["alt"][0]


def test_judge_keeps_the_end_of_idle_connections_apart_from_other_failures(history: History) -> None:
    history.begin().work(2).answer(history.send(), "reset", error=CLOSED_UNANNOUNCED)
    history.work(2).answer(history.send(), "http_error", status=500, error="oops").work(5).end()
    ids = {(f["id"], f["count"]) for f in history.verdict()["failures"]}
    assert ids == {("unexplained_reset", 1), ("unexplained_http_error", 1)}


ACT = "(Worker pid=17) loadchaos-sabotage: act encoder_pop_draft step=3 pid=17 popped=9f8a1c"


@pytest.mark.parametrize(("acts", "verdict"), [(1, "pass"), (0, "unknown")])
def test_engine_attack_takes_effect_where_the_log_shows_an_act(history: History, acts: int, verdict: str) -> None:
    history.begin().work(5).attacked("engine_encoder_pop_draft", ["encoder_cache_miss"], kind="engine")
    for _ in range(acts):
        history.log(ACT)
    found = history.work(5).end().verdict(attacks=["engine_encoder_pop_draft"])
    assert history.decision(found, "attack engine_encoder_pop_draft") == verdict


DRAFTER = (
    '  File "/vllm/v1/worker/gpu_model_runner.py", line 4386, in propose_draft_token_ids\n'
    '  File "/vllm/v1/worker/gpu_model_runner.py", line 3071, in _gather_mm_embeddings\n'
)


def miss_in_the_drafter(history: History) -> None:
    history.log(
        "ERROR EngineCore encountered a fatal error.\nTraceback (most recent call last):\n" + DRAFTER + history.MISS
    )


def test_judge_attributes_a_death_after_sabotage_as_injected(history: History) -> None:
    ids = history.begin().work(5).send(3)
    history.log(ACT)
    miss_in_the_drafter(history)
    verdict = history.die(ids).idle(2).end().verdict()
    [failure] = verdict["failures"]
    assert (failure["id"], failure["attribution"], failure["known"]) == ("encoder_cache_miss", "injected", [])
    assert "loadchaos-vllm" in failure["remedy"]
    assert verdict["verdict"] == "fail", "found, though injected"


def test_judge_ignores_sabotage_quoted_by_a_request(history: History) -> None:
    ids = history.begin().work(5).send(3)
    history.log(f"INFO Received request x: prompt: '{ACT}'")
    miss_in_the_drafter(history)
    [failure] = history.die(ids).idle(2).end().verdict()["failures"]
    assert failure["attribution"] == "server"
    assert failure["known"]


def test_judge_attributes_another_cause_beside_sabotage_to_the_server(history: History) -> None:
    ids = history.begin().work(5).send(3)
    history.log(ACT).log("RuntimeError: CUDA error: an illegal memory access was encountered")
    assert history.die(ids).idle(2).end().verdict()["failures"][0]["attribution"] == "server"


def test_judge_attributes_everything_after_a_fatal_sabotage_as_injected(history: History) -> None:
    ids = history.begin().work(5).send(3)
    history.log("(EngineCore pid=9) loadchaos-sabotage: act step_exit step=1 pid=9 code=3")
    assert history.die(ids).idle(2).end().verdict()["failures"][0]["attribution"] == "injected"


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
def test_judge_accepts_failures_by_id_reason_date_and_count(
    history: History, entry: dict[str, Any], decision: str
) -> None:
    history.begin().work(60)
    history.answer(history.send(2), "http_error", status=500, error="something new").end()
    assert history.verdict(accept=[{"id": "unexplained_http_error", **entry}])["verdict"] == decision


# --- every way to unknown -----------------------------------------------------------------------------------------------


def test_judge_puts_failed_requests_into_the_incident(history: History) -> None:
    ids = history.begin().work(5).send(3)
    history.answer(ids, "http_error", status=500, error="Internal Server Error: odd")
    judge = folded(Judge(Terms("test")), history.work(25).end().rows)
    judge.verdict()
    [incident] = judge.incidents
    assert ids[0] in [sent.id for sent in incident.in_flight]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("text follows the [DONE] of its answer", "text_after_done"),
        ("text of another answer follows the [DONE]", "text_after_done"),
        ("text follows the finish_reason of its answer", "text_after_finish"),
    ],
)
def test_judge_names_text_after_the_end_of_an_answer(history: History, text: str, name: str) -> None:
    history.begin().work(5).answer(history.send(1), "wrong_output", error=text)
    verdict = history.work(20).end().verdict()
    assert [f["id"] for f in verdict["failures"]] == [name]
    assert verdict["verdict"] == "fail"


FAILED_REQUEST = """ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/opt/lmdeploy/model.py", line 205, in messages2prompt
    content = message['content'][0]['text']
KeyError: 'text'"""


@pytest.mark.parametrize(("before", "during", "decision"), [(True, False, "pass"), (True, True, "fail")])
def test_judge_tells_failures_before_the_load_from_those_of_the_load(
    history: History, before: bool, during: bool, decision: str
) -> None:
    history.add("run", what="begin", profile="test", version="0.1", seed=1, target={"kind": "external"})
    history.idle(1)
    if before:
        history.log(FAILED_REQUEST).log(FAILED_REQUEST)
    history.idle(0.5).add("run", what="load_begin").add("locust", what="start", pid=10)
    history.add("load", what="begin", file="requests-0").work(1)
    if during:
        history.log(FAILED_REQUEST)
    verdict = history.work(20).end().verdict()
    assert verdict["verdict"] == decision
    assert sum(not f.get("before_load") for f in verdict["failures"]) == during


def refused(history: History, **more: Any) -> Any:
    """A run of 5 answers and 995 times 429."""
    history.begin().answer(history.send(5))
    return history.answer(history.send(995), "shed", status=429, **more).end()


def test_shed_requests_count_in_ok_share(history: History) -> None:
    verdict = refused(history).verdict(expect=["ok_share >= 80%"])
    (share,) = verdict["expectations"]
    assert (verdict["verdict"], share["verdict"]) == ("fail", "fail")
    assert share["actual"] == "0.50%, 5 of 1,000 requests that had to succeed"


def test_shed_requests_that_the_traffic_expects_are_left_out_or_right(history: History) -> None:
    (share,) = refused(history, expect=["ok", "shed"]).verdict(expect=["ok_share >= 80%"])["expectations"]
    assert (share["verdict"], share["actual"][:7]) == ("pass", "100.00%")


def test_shed_requests_with_a_bound_of_their_own_are_left_out(history: History) -> None:
    rules = refused(history).verdict(expect=["ok_share >= 80%", "shed_share <= 99.9%"])["expectations"]
    assert [r["verdict"] for r in rules] == ["pass", "pass"]
    other = history.verdict(expect=["ok_share >= 80%", "images.shed_share <= 99.9%"])["expectations"]
    assert other[0]["verdict"] == "fail"


@pytest.mark.parametrize(("effects", "verdict"), [(["shed", "http_paused"], "pass"), (["finish_abort"], "unknown")])
def test_shed_requests_that_an_attack_had_refused_are_no_sign_of_too_much_load(
    history: History, effects: list[str], verdict: str
) -> None:
    history.begin().work(30).attacked("pause", effects)
    history.answer(history.send(10), "shed", status=503, error="Generation is paused. Please retry after it resumes.")
    (check,) = [c for c in history.work(10).end().verdict()["checks"] if c["name"] == "shed"]
    assert check["verdict"] == verdict
    assert ("10 requests that an attack had refused" in check["actual"]) is (verdict == "pass")


def failing(history: History, n: int, traffic: str = "text", outcome: str = "http_error") -> Any:
    """A run of 200 answers of two traffics, and `n` errors."""
    history.begin().work(10).work(10, traffic="images")
    history.answer(history.send(n, traffic), outcome, status=500, error="the worker is out of slots")
    return history.work(20).end()


LIVE = ["engine_deaths == 0", "hangs == 0"]


def test_judge_prints_the_rule_that_failed(history: History) -> None:
    verdict = failing(history, 3).verdict(expect=["e2e_p50 < 10s", "ok_share >= 80%"])
    assert verdict["verdict"] == "fail"
    assert {r["verdict"] for r in verdict["expectations"]} == {"pass"}
    (rule,) = [c for c in verdict["checks"] if c["verdict"] == "fail"]
    assert (rule["name"], rule["actual"]) == ("unaccepted_failures", "unexplained_http_error (3 times)")


@pytest.mark.parametrize(
    ("rule", "decision"),
    [
        ("error_rate <= 1%", "pass"), ("error_rate <= 0.1%", "fail"), ("outcomes.http_error <= 5", "pass"),
        ("outcomes.http_error <= 2", "fail"), ("images.error_rate <= 3%", "pass"), ("text.error_rate <= 1%", "fail"),
        ("images.outcomes.http_error < 4", "pass"), ("outcomes.timeout <= 5", "fail"), ("ok_share >= 90%", "fail"),
        ("error_rate >= 0%", "fail"), ("error_rate < 1%", "pass"),
    ],
)  # fmt: skip
def test_error_budget_excuses_failures_of_requests(history: History, rule: str, decision: str) -> None:
    verdict = failing(history, 3, "images").verdict(expect=[*LIVE, rule])
    assert verdict["verdict"] == decision
    (failure,) = verdict["failures"]
    assert failure["requests"] == {"images": {"http_error": 3}}
    assert failure["accepted"] == (decision == "pass")
    if decision == "pass":
        assert failure["acceptance"] == f"within the error budget {rule}"


def test_error_budget_leaves_failures_counted_where_a_rule_asks(history: History) -> None:
    verdict = failing(history, 3).verdict(expect=[*LIVE, "error_rate <= 1%", "failures == 0"])
    assert verdict["verdict"] == "fail"


def test_error_budget_is_none_for_wrong_answers(history: History) -> None:
    failing(history, 1, outcome="wrong_output")
    assert history.verdict(expect=[*LIVE, "error_rate <= 50%"])["verdict"] == "fail"
    assert history.verdict(expect=[*LIVE, "outcomes.wrong_output <= 1"])["verdict"] == "pass"


def test_error_budget_is_none_for_a_death(history: History) -> None:
    history.begin().work(10).miss()
    assert history.end().verdict(expect=["error_rate <= 50%"])["verdict"] == "fail"


def test_finish_error_is_one_failure_whatever_the_model_wrote(history: History) -> None:
    history.begin().work(5)
    for i in range(82):
        words = " ".join(f"{word}{i}" for word in ("river", "moon", "stone"))
        history.answer(history.send(1), "finish_error", error=words, completion_tokens=7).serve(0.2)
    verdict = history.work(20).end().verdict()
    assert [(f["id"], f["count"]) for f in verdict["failures"]] == [("unexplained_finish_error", 82)]
    assert len(verdict["incidents"]) == 1


@pytest.mark.parametrize("outcome", ["finish_error", "wrong_output", "protocol_error"])
def test_text_of_the_model_is_no_evidence_of_a_death(history: History, outcome: str) -> None:
    history.begin().work(5)
    history.answer(history.send(3), outcome, error=f"vllm EngineDeadError: {history.TEXT_OF_DEATH}")
    verdict = history.work(20).end().verdict()
    assert {f["severity"] for f in verdict["failures"]} == {"request"}
    assert "engine_dead_error" not in {f["id"] for f in verdict["failures"]}
    assert {s["state"] for s in verdict["states"]} <= {"healthy", "terminated"}  # we stop it at the end
    assert verdict["expectations"][1]["verdict"] == "pass"


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=300) DEBUG 11-20 15:53:40 [logger.py:39] Request chatcmpl-1 details: prompt: '{}', prompt_token_ids: None",  # noqa: E501
        "INFO 11-20 15:53:40 [logger.py:41] Received request chatcmpl-1: prompt: '{}', params: SamplingParams(n=1)",
        "2026-11-20 15:53:40 - proxy - forwarding text: '{}'",
    ],
)
def test_log_lines_that_quote_prompts_are_not_believed(history: History, line: str) -> None:
    history.begin().work(5).log(line.format("ERROR vllm EngineDeadError: " + history.TEXT_OF_DEATH))
    verdict = history.work(20).end().verdict()
    assert (verdict["verdict"], verdict["failures"]) == ("pass", [])


def test_incident_lists_what_was_in_flight_at_that_moment(history: History) -> None:
    history.begin()
    history.serve(5)  # the load generator starts
    first_ns = history.now
    for _ in range(40):  # one user, and every second request fails with the same error
        ids = history.answer(history.send(1)).serve(0.5, in_flight=1).send(1)
        history.serve(0.25, in_flight=1)
        history.answer(ids, "http_error", took_s=0.25, status=500, error="the worker is out of slots").serve(
            0.1, in_flight=0
        )
    judge = folded(Judge(Terms("test")), history.work(25).end().rows)
    (failure,) = judge.verdict().to_json()["failures"]
    [incident] = judge.incidents
    shown = to_json(incident.record())
    assert shown["in_flight_at_death"] == len(shown["in_flight"]) == 1
    assert all(r["age_s"] >= 0 for r in [*shown["in_flight"], *shown["admitted"]])
    assert len(shown["admitted"]) == 2
    assert len(shown["examples"]) >= 39
    assert failure["first_seen_s"] == shown["opened_at_s"] == round((incident.opened_ns - first_ns) / 1e9, 3)
    assert failure["first_seen_s"] < 1
