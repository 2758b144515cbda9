import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.profile.profile import Profile
from loadchaos.profile.target import Target
from loadchaos.run.pause_gate import PauseGate
from loadchaos.run.run_attacks import RunAttacks


class Dead:
    """Server that has exited, and exits at once after each start."""

    down, said_dead, state, supervisor_lost, launches = True, False, "dead", False, 0
    error: Exception | None = None

    def __init__(self, exited: str | None = "it exited") -> None:
        self.exited = exited

    def exit_reason(self) -> str | None:
        return self.exited

    async def launch(self) -> str:
        self.launches += 1
        if self.error is not None:
            raise self.error
        return "started"


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds since the test began."""
    now = time.monotonic()
    return lambda seconds: monkeypatch.setattr(time, "monotonic", lambda: now + seconds)


def gate_of(policy: Any, server: Dead, rows: list[Any], within_s: float = 0.0, **target: Any) -> PauseGate:
    target["on_death"] = policy
    profile = SimpleNamespace(target=Target.model_validate(target), recovers_within_s=lambda: within_s)
    record = SimpleNamespace(event=rows.append, control=lambda what, why: rows.append((what, why)))
    return PauseGate(
        cast("Profile", profile), cast("Any", server), RunAttacks(), cast("EventRecorder", record), rows.append
    )


async def turns(it: PauseGate, n: int = 200) -> None:
    for _ in range(n):
        it.tick()
        await asyncio.sleep(0)


def test_pause_gate_restarts_a_dying_server_up_to_the_limit() -> None:
    server, rows = Dead(), list[Any]()
    it = gate_of({"restart": {"at_most": 3}}, server, rows)
    asyncio.run(turns(it))
    assert server.launches == 3
    assert it.stop_reason() == "the server died again after 3 restarts"


@pytest.mark.parametrize(("state", "down", "did"), [("hung", False, "hung"), ("dead", True, "died")])
def test_pause_gate_restarts_a_hung_or_dead_server_after_the_wait(
    passed: Callable[[float], None], state: str, down: bool, did: str
) -> None:
    server = Dead(exited=None)  # it lives
    server.down, server.state = down, state
    it, waiting = gate_of({"restart": {"at_most": 1}}, server, []), gate_of("wait", server, [])
    asyncio.run(turns(it))
    asyncio.run(turns(waiting))
    assert server.launches == 0, "it may come back"
    passed(61)
    asyncio.run(turns(it))
    asyncio.run(turns(waiting))
    assert (server.launches, it.stop_reason()) == (1, f"the server {did} again after 1 restart")
    assert server.launches == 1, "only where the profile wants it"


def test_pause_gate_gives_a_restarted_server_its_ready_time(passed: Callable[[float], None]) -> None:
    launch = {"command": ["vllm", "serve", "m"], "url": "http://127.0.0.1:1", "ready_within": "20m"}
    it = gate_of("restart", Dead(), [], launch=launch)
    asyncio.run(turns(it, 1))
    passed(1190)
    assert it.stop_reason() is None
    passed(1210)
    assert "did not come back within" in str(it.stop_reason())


def test_pause_gate_stops_after_the_allowed_deaths() -> None:
    server = Dead(exited=None)  # somebody else starts it again
    it = gate_of({"wait": {"deaths": 2}}, server, [])
    it.tick()
    assert it.stop_reason() is None
    server.down, server.state = False, "healthy"
    it.tick()
    server.down, server.state = True, "unreachable"
    it.tick()
    assert it.stop_reason() is None  # a network that is lost is no death
    server.state = "dead"
    it.tick()
    assert str(it.stop_reason()).startswith("the server died 2 times")


def test_pause_gate_waits_as_long_as_on_death_says(passed: Callable[[float], None]) -> None:
    server = Dead(exited=None)  # somebody else may start it again
    it = gate_of({"wait": {"at_most": "5m"}}, server, [], within_s=900)
    it.tick()
    passed(299)
    assert it.stop_reason() is None
    passed(302)
    assert "did not come back within" in str(it.stop_reason())


def test_pause_gate_stops_when_the_port_is_taken() -> None:
    server = Dead()
    server.error = OptionError("http://127.0.0.1:1 is served already")
    it = gate_of("restart", server, [])
    asyncio.run(turns(it))
    assert server.launches == 1
    assert "could not be restarted: http://127.0.0.1:1 is served already" in str(it.stop_reason())


def test_pause_gate_restarts_nothing_when_the_run_ends() -> None:
    server = Dead()
    it = gate_of("restart", server, [])
    it.closing = True
    asyncio.run(turns(it))
    assert server.launches == 0


@pytest.mark.parametrize(
    ("policy", "says"),
    [("stop", "the server died"), ("wait", "the server died, and the profile does not restart it (target.on_death)")],
)
def test_pause_gate_does_not_wait_without_a_restart(policy: str, says: str) -> None:
    it = gate_of(policy, Dead(), [])
    asyncio.run(turns(it))
    assert it.stop_reason() == says


def test_pause_gate_waits_for_an_external_server_as_long_as_recovers_within(passed: Callable[[float], None]) -> None:
    server, rows = Dead(exited=None), list[Any]()
    it = gate_of("wait", server, rows, within_s=300)
    asyncio.run(turns(it))
    assert it.stop_reason() is None
    assert ("pause", "waiting for the server, at most 5 min (Ctrl-C ends the run)") in rows
    passed(301)
    assert it.stop_reason() == "the server did not come back within 301 s"


def test_pause_gate_lets_few_requests_through_where_only_texts_tell_a_death() -> None:
    server, rows = Dead(), list[Any]()
    it = gate_of("wait", server, rows)
    for server.down, server.said_dead in ((True, True), (True, False), (True, True), (False, False)):
        it.tick()
        it.tick()
    orders = [row[0] for row in rows if isinstance(row, tuple)]
    assert orders == ["few", "pause", "few", "resume"]
    assert [row["open"] for row in rows if isinstance(row, dict)] == [False, False, False, True]


def test_pause_gate_ends_the_load_when_the_supervisor_is_lost() -> None:
    server = Dead()
    server.supervisor_lost = True
    assert "supervisor process of the server was lost" in str(gate_of("wait", server, []).stop_reason())
