from tests.analysis.conftest import World
from tests.analysis.state.test_machine import path, watch


def states(world: World) -> list[str]:
    return path(watch(world))


def test_state_of_a_starved_engine_is_not_idle(world: World) -> None:
    world.processes(engine="R")  # R without CPU: others have it
    world.serve(10)
    world.gauges_stale = True
    assert states(world.stall(40)) == ["healthy", "degraded"]


def test_state_of_a_hung_server_that_we_stop_is_not_dead(world: World) -> None:
    world.processes().serve(10)
    world.gauges_stale = True
    world.stall(20).add("launch", what="kill", replica="server", reason="it hung", asked=True)
    world.lose_process()
    world.pids = {}
    assert states(world.close().run(2)) == ["healthy", "degraded", "hung", "terminated"]


def test_state_stays_dead_when_we_stop_what_is_left(world: World) -> None:
    world.processes().serve(10).lose_process()
    world.pids = {}
    world.close().run(1)
    world.add("launch", what="exit", replica="server", pid=10, signal=15, reason="was killed by signal 15", asked=True)
    assert states(world.run(2)) == ["healthy", "dead"]


def test_state_of_a_death_right_after_a_restart_stands(world: World) -> None:
    """A page from before the death has the start time of the dead server."""
    world.pids = {1: ("api_server", "S"), 2: ("engine_core", "S")}
    world.serve(3).close().run(1).exit(0, pid=1).launch(pid=3)
    world.pids = {3: ("api_server", "S"), 4: ("engine_core", "S")}
    world.metrics = False
    world.open().serve(0.6)
    del world.pids[4]
    world.add("process", replica="server", pid=4, role="engine_core", what="gone", name="VLLM::EngineCore")
    world.health, world.metrics = 503, True
    world.stall(1)
    world.add("log", source="server.log", file="server.log", line=1, text="INFO:     Shutting down")
    world.close().exit(0, pid=3).run(1)
    assert states(world) == ["healthy", "dying", "dead", "restarting", "healthy", "dead"]
