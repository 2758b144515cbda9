"""Starved and ended by ourselves: neither is the server's doing, and the states do not say so."""

from __future__ import annotations

from typing import Any

from loadchaos.judge.states import StateMachine


def states(world: Any) -> list[str]:
    machine = StateMachine("server", launched=True)
    rows = [change for row in world.rows for change in machine.feed(row)]
    return [r["to"] for r in rows if r["from"] != r["to"]]


def test_an_engine_that_waits_for_a_processor_does_not_rest(world: Any) -> None:
    world.pids = {10: ("api_server", "S"), 11: ("engine_core", "R")}  # R without CPU: others have it
    world.serve(10)
    world.gauges_stale = True
    assert states(world.stall(40)) == ["healthy", "degraded"]


def test_a_server_that_we_end_because_it_hangs_does_not_die(world: Any) -> None:
    world.pids = {10: ("api_server", "S"), 11: ("engine_core", "S")}
    world.serve(10)
    world.gauges_stale = True
    world.stall(20)
    world.add("launch", what="kill", replica="server", reason="it hung", asked=True)
    world.add("process", replica="server", pid=11, role="engine_core", what="gone", name="VLLM::EngineCore")
    world.pids = {}
    assert states(world.close().run(2)) == ["healthy", "degraded", "hung", "terminated"]


def test_what_we_end_of_a_dead_server_takes_its_death_not_back(world: Any) -> None:
    world.pids = {10: ("api_server", "S"), 11: ("engine_core", "S")}
    world.serve(10)
    world.add("process", replica="server", pid=11, role="engine_core", what="gone", name="VLLM::EngineCore")
    world.pids = {}
    world.close().run(1)
    world.add("launch", what="exit", replica="server", pid=10, signal=15, reason="was killed by signal 15", asked=True)
    assert states(world.run(2)) == ["healthy", "dead"]
