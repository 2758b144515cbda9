from typing import Any

import pytest

from loadchaos.analysis.state.machine import StateMachine
from tests.analysis.conftest import World
from tests.rows import MS, S


def watch(world: World, machine: StateMachine | None = None, **options: Any) -> list[dict[str, Any]]:
    """All state rows a history gives; remarks (from == to) included."""
    machine = machine or StateMachine("server", **options)
    rows: list[dict[str, Any]] = []
    for row in world.rows:
        rows += [dict(r) for r in machine.changes_after(row)]
    return rows


def path(rows: list[dict[str, Any]]) -> list[str]:
    return [r["to"] for r in rows if r["from"] != r["to"]]


def row_to(rows: list[dict[str, Any]], state: str) -> dict[str, Any]:
    return next(r for r in rows if r["to"] == state and r["from"] != state)


def test_state_is_degraded_while_health_is_a_web_page(world: World) -> None:
    world.idle(3)
    probe = {"row": "probe", "replica": "server", "what": "health", "ok": False, "status": 200}
    for n in range(3):
        world.rows.append({**probe, "at_ns": world.now + n * S // 4, "body": "<html><title>Down for maintenance"})
    (row,) = [r for r in watch(world) if r["to"] == "degraded"]
    assert row["signs"] == ["/health returns 200, a web page: 'Down for maintenance'"]


@pytest.mark.parametrize("body", ["", "busy"])
def test_state_is_not_dead_while_health_is_503_whenever_requests_run(world: World, body: str) -> None:
    """An empty 503 is said to be a death: progress after the first one shows that it is a habit."""
    world.serve(5)
    for _ in range(5):
        world.health, world.body = 503, body
        world.serve(3)
        world.health = 200
        world.idle(2)
    rows = watch(world)
    assert "dead" not in path(rows)
    assert path(rows).count("dying") == (not body)
    left = rows[path(rows).index("dying") + 1]["at_ns"] - row_to(rows, "dying")["at_ns"] if not body else 0
    assert left <= 0.75 * S
    world.close().run(3)
    assert path(watch(world))[-1] == "dead"


def test_state_is_starting_while_a_new_server_refuses(world: World) -> None:
    world.close().run(20).open().run(1)
    assert path(watch(world)) == ["healthy"]


def test_state_is_dead_within_a_second_of_a_closed_listener(world: World) -> None:
    world.serve(5)
    died = world.now
    world.close().run(2)
    rows = watch(world)
    assert path(rows) == ["healthy", "dying", "dead"]
    dead = row_to(rows, "dead")
    assert dead["at_ns"] - died <= 1 * S
    assert "refused" in " ".join(dead["signs"])
    assert 0 <= dead["noticed_after_s"] <= 1


def test_state_is_not_dead_after_one_refused_probe(world: World) -> None:
    world.serve(5).refuse_probe().serve(5)
    assert "dead" not in path(watch(world))


def test_state_of_an_idle_server_is_not_dead_after_one_refused_probe(world: World) -> None:
    """No token could disprove it: the next probe does."""
    world.serve(5).idle(3).refuse_probe().idle(5)
    assert "dead" not in path(watch(world))


def test_state_is_not_dead_while_tokens_arrive(world: World) -> None:
    world.serve(5)
    world.tcp = world.health = "refused"  # it drains: no new connection, the old ones are served
    world.serve(5)
    assert "dead" not in path(watch(world))


def test_state_is_dead_on_an_empty_503_where_the_dialect_means_it(world: World) -> None:
    world.serve(3)
    world.health = 503
    world.stall(1)
    assert path(watch(world)) == ["healthy", "dying", "dead"]
    assert "dead" not in path(watch(world, knows_death=False))


def test_state_is_dead_at_once_without_an_engine_core(world: World) -> None:
    world.processes(engine="R").serve(3).lose_process()
    rows = watch(world)
    assert path(rows) == ["healthy", "dead"]
    assert "VLLM::EngineCore" in rows[-1]["signs"][0]


def test_state_stays_dead_on_health_200_without_an_engine(world: World) -> None:
    world.processes(engine="R").serve(3).lose_process(name="MPEngine")
    del world.pids[11]
    world.stall(60)
    assert path(watch(world))[-1] == "dead"


def test_state_is_dead_on_the_exit_of_a_launched_process(world: World) -> None:
    world.launch(pid=5).serve(3).exit(0, pid=5)
    rows = watch(world)
    assert path(rows)[-1] == "dead"
    assert rows[-1]["signs"] == ["process ended: exited with code 0"]


@pytest.mark.parametrize("how", [{"asked": True, "signal": 9}, {"asked": False, "signal": 15}])
def test_state_is_terminated_on_a_requested_exit(world: World, how: dict[str, Any]) -> None:
    world.serve(3)
    world.add("launch", what="exit", replica="server", pid=5, code=None, reason="killed by signal", **how)
    assert path(watch(world))[-1] == "terminated"


def test_state_is_terminated_after_our_own_sigterm(world: World) -> None:
    world.serve(3)
    world.add("attack", attack="terminate_server", n=1, what="begin", replica="server", effects=["terminated"])
    world.close().run(1)
    assert path(watch(world))[-1] == "terminated"


def test_state_after_a_death_is_restarting_then_healthy(world: World) -> None:
    world.serve(3).close().run(10).open().serve(5)
    rows = watch(world)
    assert path(rows) == ["healthy", "dying", "dead", "restarting", "healthy"]
    assert "restarted: process start time moved by 100.0 s" in rows[-1]["signs"]


def test_state_of_a_returning_process_says_it_is_the_same(world: World) -> None:
    world.serve(3).close().run(3).open(restarted=False).serve(5)
    assert "the same process as before" in watch(world)[-1]["signs"]


def test_state_of_a_relaunched_server_counts_no_second_death(world: World) -> None:
    world.serve(3).close().exit(1, pid=5).run(2).launch(pid=6).run(30).open().serve(3)
    assert path(watch(world)) == ["healthy", "dead", "restarting", "healthy"]


def test_state_is_degraded_after_five_seconds_without_progress(world: World) -> None:
    world.serve(5)
    stopped = world.now
    world.stall(6)
    degraded = row_to(watch(world), "degraded")
    assert degraded["at_ns"] - stopped <= 5 * S


def test_state_is_hung_within_ten_seconds_of_a_stopped_engine(world: World) -> None:
    world.processes(engine="R").serve(5)
    stopped = world.now
    world.pids[11] = ("engine_core", "T")
    world.stall(12)
    hung = row_to(watch(world), "hung")
    assert hung["at_ns"] - stopped <= 10 * S
    assert "stopped (T)" in hung["signs"][0]


def test_state_is_hung_with_a_stopped_api_server(world: World) -> None:
    world.processes(engine="R").serve(5)
    world.pids[10] = ("api_server", "T")
    world.health = "timeout"
    world.stall(12)
    assert path(watch(world))[-1] == "hung"


def test_state_is_hung_once_the_api_server_is_idle_too(world: World) -> None:
    world.processes().serve(10)
    stopped = world.now
    world.gauges_stale, world.running = True, 0.0
    world.stall(13)
    hung = row_to(watch(world), "hung")
    assert hung["at_ns"] - stopped <= 12 * S
    assert hung["signs"][1] == "engine and API server use no CPU"


def test_state_is_not_hung_while_the_api_server_prepares_a_prompt(world: World) -> None:
    world.processes(api_server="R").serve(10)
    world.gauges_stale, world.running = True, 0.0
    for _ in range(30):
        world.stall(1)
        world.cpu[10] += 0.9
    assert path(watch(world))[-1] == "degraded"


def test_state_is_not_hung_for_a_minute_while_the_engine_computes(world: World) -> None:
    world.processes(engine="R").serve(10)
    world.tokens, world.metrics = 0, False
    world.run(45)  # a compile, a 128k prefill: CPU time grows, nothing else does
    assert path(watch(world))[-1] == "degraded"


def test_state_without_pids_is_hung_after_a_minute(world: World) -> None:
    world.serve(5).stall(63).serve(2)
    assert path(watch(world)) == ["healthy", "degraded", "hung", "healthy"]


def test_state_hang_limit_grows_with_the_longest_healthy_gap(world: World) -> None:
    world.serve(5).stall(40).serve(5).stall(100)
    assert "hung" not in path(watch(world))
    world.stall(40)
    assert "hung" in path(watch(world))


def test_state_is_not_hung_while_paused_by_our_attack(world: World) -> None:
    world.serve(5)
    world.add("attack", attack="pause", n=1, what="begin", replica="server", effects=["alive_but_hung", "stalled"])
    world.stall(100)
    rows = watch(world)
    assert path(rows)[-1] == "degraded"
    assert "paused by our attack pause" in rows[-1]["signs"]


def test_state_is_hung_when_the_silence_began_before_a_pause(world: World) -> None:
    """vLLM 0.22.1: the engine spins after reset_mm_cache, the pause waits."""
    world.serve(5).stall(20)
    world.add("attack", attack="pause", n=1, what="begin", replica="server", effects=["alive_but_hung", "stalled"])
    world.stall(30)
    assert path(watch(world))[-1] == "degraded"
    world.stall(30)
    assert path(watch(world))[-1] == "hung"


def test_state_is_unreachable_behind_a_partition(world: World) -> None:
    world.serve(5).part().stall(20).open(restarted=False).serve(5)
    rows = watch(world)
    assert "dead" not in path(rows)
    assert "unreachable" in path(rows)
    assert path(rows)[-1] == "healthy"
    assert "the same process as before" in rows[-1]["signs"]


def test_state_shows_a_restart_behind_a_partition(world: World) -> None:
    world.serve(5).part().stall(20).open().serve(5)
    assert any("restarted: process start time moved" in r["signs"][0] for r in watch(world))


def test_state_is_not_unreachable_when_health_is_late(world: World) -> None:
    world.serve(5)
    world.health = "timeout"
    world.serve(20)
    assert set(path(watch(world))) <= {"healthy", "degraded"}


def test_state_of_alternating_start_times_is_several_servers(world: World) -> None:
    for i in range(10):
        world.start_time = 1_700_000_000.0 + (i % 2) * 1000
        world.serve(2)
    rows = watch(world)
    assert path(rows) == ["healthy"]
    assert "several servers" in rows[-1]["signs"][0]


def test_state_of_one_death_among_several_servers_is_no_restart(world: World) -> None:
    for i in range(6):
        world.start_time = 1_700_000_000.0 + (i % 2) * 1000
        world.serve(2)
    world.lose_process(state="Z", name="EngineCore").stall(1)
    world.start_time = 1_700_000_000.0
    world.serve(5)
    rows = watch(world)
    assert path(rows) == ["healthy", "dead", "restarting", "healthy"]
    assert {s for r in rows[-3:] for s in r["signs"]} >= {"another server behind the address answers"}
    assert not any("restarted" in s for r in rows for s in r["signs"])


def test_state_shows_a_restart_between_two_probes(world: World) -> None:
    world.serve(5)
    world.start_time += 500
    world.generated = 0
    world.serve(15)
    assert path(watch(world)) == ["healthy", "restarting", "healthy"]


def test_state_is_dying_when_answers_say_the_engine_is_dead(world: World) -> None:
    world.serve(3)
    text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    world.add("end", outcome="stream_error", error=text)
    assert path(watch(world)) == ["healthy", "dying"]


def test_state_of_a_dead_engine_with_health_200_becomes_dead(world: World) -> None:
    world.serve(3).add("end", outcome="http_error", error="EngineCore encountered an issue.")
    world.stall(12)
    assert path(watch(world)) == ["healthy", "dying", "dead"]


def tell(world: World, took_s: float = 0.1, outcome: str = "http_error") -> None:
    sent_ns = world.now - round(took_s * S)
    text = "EngineCore encountered an issue." if outcome == "http_error" else None
    world.add("end", outcome=outcome, error=text, sent_ns=sent_ns, status=500 if text else 200)


def test_state_is_healthy_again_when_nothing_follows_the_text_of_one_answer(world: World) -> None:
    tell(world.serve(3))
    world.idle(20)
    rows = watch(world)
    assert path(rows) == ["healthy", "dying", "healthy"]
    assert [r.get("said") for r in rows] == [None, True, None]


def test_state_is_healthy_as_soon_as_a_request_sent_after_the_text_is_answered(world: World) -> None:
    tell(world.serve(3))
    world.stall(0.5)
    tell(world, 0.2, "ok")
    world.stall(0.25)
    assert path(watch(world)) == ["healthy", "dying", "healthy"]


def test_state_stays_dying_when_a_request_sent_before_the_text_is_answered(world: World) -> None:
    tell(world.serve(3))
    world.stall(0.5)
    tell(world, 2, "ok")
    world.stall(0.25)
    assert path(watch(world)) == ["healthy", "dying"]


def test_state_is_dead_when_every_request_fails_after_the_text(world: World) -> None:
    world.serve(3)
    died = world.now
    for _ in range(24):
        tell(world, 0.05)
        world.answers_at_once = True
        world.stall(0.5)
    dead = row_to(watch(world), "dead")
    assert dead["at_ns"] - died <= 10.5 * S


def test_state_of_a_slow_server_is_not_dead_after_the_text_of_one_answer(world: World) -> None:
    """It needs 6 s to a token: a silence of 12 s is nothing new."""
    for _ in range(3):
        world.serve(0.5).stall(6)
    tell(world.serve(0.5))
    world.stall(12)
    assert "dead" not in path(watch(world))


def test_state_of_a_death_in_the_log_needs_a_failed_request_that_was_sent_later(world: World) -> None:
    """One of several servers behind the address died with its requests; the others answer 2 s later."""
    world.serve(5)
    world.add("heard", replica="server", what="dead", text="EngineDeadError")
    for _ in range(2):
        tell(world, 3)
    world.stall(2).serve(5)
    assert "dead" not in path(watch(world))


def test_machine_says_when_only_texts_tell_a_death(world: World) -> None:
    machine = StateMachine("server")
    tell(world.serve(3))
    watch(world, machine)
    assert machine.said_dead
    assert not machine.requests_fail, "one failed"
    world.rows.clear()
    tell(world)
    world.stall(0.5)
    watch(world, machine)
    assert (machine.said_dead, machine.requests_fail) == (True, True)
    world.rows.clear()
    world.close().run(1)
    watch(world, machine)
    assert (machine.state, machine.said_dead) == ("dead", False)


def test_state_recovers_from_a_death_in_the_log_when_tokens_arrive(world: World) -> None:
    world.serve(3).add("failure", severity="engine_death", id="x", title="RuntimeError: something")
    world.serve(5)
    assert path(watch(world)) == ["healthy", "dying", "healthy"]


def test_state_stall_is_not_shortened_by_a_metrics_page(world: World) -> None:
    """The counters moved before the stall; the page comes up to 1 s later."""
    world.serve(5.05)
    stopped = world.now
    world.generated += 100
    world.stall(6)
    degraded = row_to(watch(world), "degraded")
    assert degraded["at_ns"] - stopped <= 4.5 * S


def test_state_is_not_hung_after_we_were_asleep(world: World) -> None:
    world.serve(5)
    world.now += 300 * S  # SIGSTOP of our own, a suspended laptop
    world.stall(3).serve(3)
    assert path(watch(world)) == ["healthy"]


def test_state_of_an_idle_server_stays_healthy(world: World) -> None:
    world.idle(120)
    assert path(watch(world)) == ["healthy"]


def test_state_is_hung_when_health_reports_a_stuck_scheduler(world: World) -> None:
    world.serve(5)
    world.health, world.body = 503, '{"message":"Backend scheduler_tick has not advanced for 13.1s."}'
    world.stall(15)
    assert path(watch(world))[-1] == "hung"


def test_state_ignores_rows_of_other_replicas(world: World) -> None:
    world.serve(2).refuse_probe(replica="b")
    world.now += 100 * MS
    world.refuse_probe(replica="b")
    assert path(watch(world)) == ["healthy"]


def test_state_shows_a_restart_when_counters_were_reset_once(world: World) -> None:
    world.tells_start_time = False
    world.serve(20)
    world.generated = 5.0
    world.serve(20)
    assert path(watch(world)) == ["healthy", "restarting", "healthy"]


def test_state_shows_several_servers_when_counters_alternate(world: World) -> None:
    world.tells_start_time = False
    for _ in range(12):
        world.serve(1.0)
        world.generated = 9000.0 if world.generated < 5000 else 100.0
    world.serve(12)
    rows = watch(world)
    assert {r["to"] for r in rows} == {"healthy"}
    assert "several servers" in rows[-1]["signs"][0]


def test_restart_without_a_start_time_is_seen_beside_one_refused_probe(world: World) -> None:
    world.tells_start_time = False
    world.serve(20).refuse_probe()
    world.generated = 5.0
    world.serve(20)
    assert [to for to in path(watch(world)) if to != "dying"] == ["healthy", "healthy", "restarting", "healthy"]


def test_restart_is_not_forgotten_while_the_server_hangs(world: World) -> None:
    world.processes().serve(20)
    world.start_time += 500
    world.run(1).stall(20).serve(12)
    assert path(watch(world))[-2:] == ["restarting", "healthy"]


def test_restart_just_before_the_end_is_unsettled_until_it_is_clear(world: World) -> None:
    machine = StateMachine("server")
    begin_ns = world.serve(10).now
    world.start_time += 500
    for row in world.serve(2).rows:
        machine.changes_after(row)
    assert machine.unsettled(begin_ns)
    seen = len(world.rows)
    for row in world.idle(12).rows[seen:]:
        machine.changes_after(row)
    assert not machine.unsettled(begin_ns)


def test_restart_is_unsettled_until_a_page_of_after_the_load(world: World) -> None:
    machine = StateMachine("server")
    for row in world.serve(5.5).rows:
        machine.changes_after(row)
    assert machine.unsettled(world.now)
    assert not machine.unsettled(world.now - 2 * S)


def test_state_of_a_server_that_stalls_again_and_again_is_degraded_once(world: World) -> None:
    world.processes(engine="R").serve(5)
    for seconds in (4.5, 6.5, 5.0, 7.0, 4.5) * 4:
        world.stall(seconds).serve(3)
    rows = watch(world.serve(25))
    assert path(rows) == ["healthy", "degraded", "healthy"]
    assert rows[-1]["signs"] == ["working; 20 stalls in 167 s, the longest 7.2 s"]


@pytest.mark.parametrize("stall_s", [4.5, 30])
def test_state_is_healthy_ten_seconds_after_a_single_stall_from_its_end_on(world: World, stall_s: float) -> None:
    world.serve(5).processes(engine="R").stall(stall_s)
    back = world.now
    rows = watch(world.serve(16))
    assert path(rows) == ["healthy", "degraded", "healthy"]
    assert 10 * S <= rows[-1]["at_ns"] - back <= 11 * S
    assert abs(rows[-1]["since_ns"] - back) <= S
    assert rows[-1]["signs"][0].startswith(f"working; 1 stall of {stall_s:.0f}"[:20])


def test_state_is_healthy_when_the_load_ends_after_a_stall(world: World) -> None:
    rows = watch(world.serve(5).stall(5).serve(1).idle(1))
    assert path(rows) == ["healthy", "degraded", "healthy"]


@pytest.mark.parametrize("api_server_works", [True, False])
def test_hang_of_an_idle_engine_with_work_is_told_after_eight_seconds(world: World, api_server_works: bool) -> None:
    world.processes().serve(10)
    stopped = world.now
    for _ in range(12):
        world.stall(1)
        world.cpu[10] += 0.9 if api_server_works else 0.0
    hung = row_to(watch(world), "hung")
    assert hung["signs"][1] == "engine processes use no CPU"
    assert 8 * S <= hung["at_ns"] - stopped <= 9 * S
