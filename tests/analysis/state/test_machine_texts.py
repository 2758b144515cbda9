from typing import Any

import pytest

from tests.analysis.conftest import World
from tests.analysis.state.test_machine import path, row_to, watch
from tests.rows import MS, S


def told_to_end(world: World, *words: tuple[str, str], gap_s: float = 0.0, apart_s: float = 0.0) -> Any:
    """A launched server whose log, engine core, listener and process end."""
    world.processes(engine="R").add("heard", replica="server", what="listening", text="").serve(3)
    for what, text in words:
        world.add("heard", replica="server", what=what, text=text)
        world.now += round(apart_s * S)
    world.now += round(gap_s * S)
    world.lose_process(state="Z", name="EngineCore")
    world.pids = {10: ("api_server", "S")}
    return world.close().run(1)


def test_state_is_terminated_after_an_orderly_shutdown_in_the_log(world: World) -> None:
    told_to_end(world, ("ending", "INFO: Shutting down"))
    world.exit(0)
    rows = watch(world)
    assert path(rows) == ["healthy", "terminated"]
    assert "the log says: INFO: Shutting down" in row_to(rows, "terminated")["signs"]


def test_state_waits_for_a_late_shutdown_marker(world: World) -> None:
    told_to_end(world)
    late = next(r for r in world.rows if r["row"] == "process" and r["what"] == "gone")
    word = {"row": "heard", "at_ns": late["at_ns"] + 50 * MS, "replica": "server", "what": "ending", "text": "bye"}
    world.rows.insert(world.rows.index(late) + 1, word)
    assert path(watch(world)) == ["healthy", "dying", "terminated"]


@pytest.mark.parametrize("apart_s", [0.0, 2.0], ids=["at once", "slowly"])
def test_state_is_dead_when_a_failure_precedes_the_shutdown(world: World, apart_s: float) -> None:
    told_to_end(world, ("failing", "ERROR EngineDeadError"), ("ending", "INFO: Shutting down"), apart_s=apart_s)
    world.exit(0)
    assert path(watch(world))[-1] == "dead"


def test_state_is_dead_within_half_a_second_without_a_marker(world: World) -> None:
    told_to_end(world)
    rows = watch(world)
    assert path(rows) == ["healthy", "dying", "dead"]
    assert row_to(rows, "dead")["noticed_after_s"] <= 0.5


def test_state_ignores_an_old_shutdown_marker(world: World) -> None:
    told_to_end(world, ("ending", "prompt: 'INFO: Shutting down'"), gap_s=60)
    assert "terminated" not in path(watch(world))


def without_its_engine(world: World) -> Any:
    """LMDeploy's engine dies: its log says so, /health returns 200."""
    world.serve(5)
    world.add("heard", replica="server", what="dead", text="PyTorch ZMQ engine process is not alive.")
    for _ in range(8):
        world.add("end", outcome="http_error", error="An internal server error occurred.")
        world.stall(0.25)
    return world


def test_state_is_dead_within_a_second_of_an_engine_death_in_the_log(world: World) -> None:
    dead = row_to(watch(without_its_engine(world)), "dead")
    assert dead["noticed_after_s"] <= 1
    assert "the log says: PyTorch ZMQ engine process is not alive." in dead["signs"][0]


def test_state_stays_dead_while_health_has_not_noticed(world: World) -> None:
    without_its_engine(world).stall(12)
    assert path(watch(world)) == ["healthy", "dead"]


def test_state_ignores_a_death_marker_alone(world: World) -> None:
    world.serve(5)
    world.add("heard", replica="server", what="dead", text="prompt: 'what is an EngineDeadError?'")
    world.idle(20)
    assert path(watch(world)) == ["healthy"]


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("/venv/bin/python -m loadchaos.simulator.engine.process VLLM::EngineCore 4", "VLLM::EngineCore"),
        (
            "/home/me/venv/bin/python -m vllm.entrypoints.openai.api_server --port 1",
            "vllm.entrypoints.openai.api_server",
        ),
        ("/usr/bin/python3 /usr/local/bin/vllm serve model", "vllm"),
    ],
)
def test_sign_of_a_lost_process_names_its_program_without_folders(world: World, title: str, shown: str) -> None:
    world.processes(engine="R").serve(3).lose_process(state="Z", name=title)
    world.pids = {10: ("api_server", "S")}
    signs = row_to(watch(world.close().run(1)), "dead")["signs"]
    assert f"process {shown} (pid 11, engine_core) is gone" in signs
