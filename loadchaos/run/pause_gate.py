"""Pause load and attacks while the server is down; restart it. One that hangs is not down and may recover; one whose
engine is dead may never exit (vLLM 0.32). With `on_death: restart` both are ended after the wait for a return. Where
only texts say that it is dead, the load sends a few requests: they show whether it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from loadchaos.core.errors import LoadchaosError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.units import describe_duration
from loadchaos.profile.profile import Profile
from loadchaos.run.run_attacks import RunAttacks
from loadchaos.run.server_under_test import ServerUnderTest

WAIT_S = 60.0
"""Wait for a server that is down, where neither `on_death` nor a longer `recovers_within` sets it."""
_ENDED = ("dead", "terminated")


class PauseGate:
    """Gate for load and attacks; it never waits. `closing`: the run is ending, nothing is started any more."""

    def __init__(
        self,
        profile: Profile,
        server: ServerUnderTest,
        attacks: RunAttacks,
        record: EventRecorder,
        print_line: Callable[[str], None],
    ) -> None:
        self._server, self._attacks = server, attacks
        self._record, self._print = record, print_line
        on_death = profile.target.on_death
        self._policy = on_death.policy
        self._most_restarts = on_death.restart.at_most if on_death.restart is not None else 0
        self._most_deaths = on_death.wait.deaths if on_death.wait is not None else None
        asked_s = on_death.wait.at_most if on_death.wait is not None else None
        self._wait_s = max(WAIT_S, profile.recovers_within_s()) if asked_s is None else asked_s
        launch = profile.target.launch
        ready_s = launch.ready_within if self._policy == "restart" and launch is not None else 0
        self._longest_wait_s = max(self._wait_s, ready_s)
        self._deaths = 0
        self._death_counted = False
        self._down_since_s: float | None = None
        self._few = False  # a few requests are sent, as only texts say that it is down
        self._useless_since_s: float | None = None
        self._restart: asyncio.Task[str] | None = None
        self._restarts = 0
        self._no_restart: str | None = None
        self.closing = False

    def tick(self) -> None:
        down = self._server.down
        few = down and self._server.said_dead
        changed = down != (self._down_since_s is not None)
        if changed:
            self._down_since_s = time.monotonic() if down else None
            self._death_counted = False
        if changed or few != self._few:
            self._few = few
            self._move(opened=not down)
        if down and not self._death_counted and self._server.state in _ENDED:
            self._death_counted = True
            self._deaths += 1
        if self._policy == "restart":
            self._restart_if_needed()

    def _move(self, *, opened: bool) -> None:
        why = f"server {self._server.state}"
        if not opened and self._policy != "stop":
            why = f"waiting for the server, at most {describe_duration(self._longest_wait_s)} (Ctrl-C ends the run)"
        if self._few:
            why = "answers or the log say that the server is dead: a few requests show whether it is"
        self._record.control("resume" if opened else "few" if self._few else "pause", why)
        self._record.event({"row": "gate", "at_ns": time.monotonic_ns(), "open": opened, "why": why})
        if opened:
            self._attacks.resume()
        else:
            self._attacks.pause()

    def _restart_if_needed(self) -> None:
        if self._restart is not None:
            if not self._restart.done():
                return
            self._report_restart(self._restart)
            self._restart = None
        useless = self._stays_useless()
        alive = self._server.exit_reason() is None
        if self.closing or self._no_restart is not None or (alive and not useless):
            return
        if self._restarts >= self._most_restarts:
            ended = "hung" if self._server.state == "hung" else "died"
            restarts = "1 restart" if self._restarts == 1 else f"{self._restarts} restarts"
            self._no_restart = f"the server {ended} again after {restarts}"
            return
        self._restarts += 1
        self._restart = asyncio.create_task(self._server.launch())

    def _stays_useless(self) -> bool:
        if self._server.state not in ("hung", "dead"):
            self._useless_since_s = None
            return False
        now_s = time.monotonic()
        self._useless_since_s = self._useless_since_s or now_s
        return now_s - self._useless_since_s > self._wait_s

    def _report_restart(self, done: asyncio.Task[str]) -> None:
        try:
            description = done.result()
        except LoadchaosError as e:  # another process took its port meanwhile
            self._no_restart = f"the server could not be restarted: {e}"
        else:
            self._print(f"restart {self._restarts}: {description}")

    def stop_reason(self) -> str | None:
        if self._server.supervisor_lost:
            return "the supervisor process of the server was lost: neither the server's log nor its exit can be read"
        if self._no_restart is not None and (self._down_since_s is not None or self._useless_since_s is not None):
            return self._no_restart
        if self._down_since_s is None:
            return None
        if self._policy == "stop" and self._server.state in _ENDED:
            return "the server died"
        if self._policy == "wait" and self._server.exit_reason() is not None:
            return "the server died, and the profile does not restart it (target.on_death)"
        if self._most_deaths is not None and self._deaths >= self._most_deaths:
            deaths = "once" if self._deaths == 1 else f"{self._deaths} times"
            return f"the server died {deaths}, the most that the profile allows (target.on_death.wait.deaths)"
        down_s = time.monotonic() - self._down_since_s
        if down_s > self._longest_wait_s:  # a restarted server has the time that it had at first
            return f"the server did not come back within {down_s:.0f} s"
        return None

    async def close(self) -> None:
        """Cancel a restart that is under way. `ServerUnderTest.stop` ends what it started."""
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
