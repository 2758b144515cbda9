"""While the server is down the load rests: pause, go on when it is back, start it again, or give up waiting for it.

A server that hangs is not down, and may come back by itself; one whose engine is dead may never end (vLLM 0.32 waits for
tasks of its own). Where it is to be started again, it is ended when that has lasted as long as a return is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from loadchaos.chaos import AttackInjector
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.profile.profile import Profile
from loadchaos.runner.server_under_test import ServerUnderTest

WAIT_S = 60.0
"""How long a server that is down is waited for, unless the profile says so, or its `recovers_within` says longer."""
_ENDED = ("dead", "terminated")


class PauseGate:
    """Called each turn of the run's loop while the load goes; it never waits. `ending`: nothing is started any more."""

    def __init__(
        self, profile: Profile, patient: ServerUnderTest, record: EventRecorder, say: Callable[[str], None]
    ) -> None:
        self._profile, self._patient, self._record, self._say = profile, patient, record, say
        on_death = profile.target.on_death
        self._policy = on_death.policy
        self._most_restarts = on_death.restart.at_most if on_death.restart is not None else 0
        self._most_deaths = on_death.wait.deaths if on_death.wait is not None else None
        asked_s = on_death.wait.at_most if on_death.wait is not None else None
        self._wait_s = max(WAIT_S, profile.recovers_within_s()) if asked_s is None else asked_s
        launch = profile.target.launch
        self._start_s = max(
            self._wait_s, launch.ready_within if self._policy == "restart" and launch is not None else 0
        )
        self._deaths = 0
        self._counted = False
        self._down_since: float | None = None
        self._useless_since: float | None = None
        self._restart: asyncio.Task[str] | None = None
        self._restarts = 0
        self._not_again: str | None = None
        self.attacks: AttackInjector | None = None
        self.ending = False

    def turn(self) -> None:
        """Pause or go on, and start the server again where the profile wants that."""
        down = self._patient.down
        if down != (self._down_since is not None):
            self._down_since = time.monotonic() if down else None
            self._counted = False
            self._move(opened=not down)
        if down and not self._counted and self._patient.state in _ENDED:
            self._counted = True
            self._deaths += 1
        if self._policy == "restart":
            self._start_again()

    def _move(self, *, opened: bool) -> None:
        why = f"server {self._patient.state}"
        if not opened and self._policy != "stop":
            why = f"waiting for the server, {self._start_s:g} s at most; Ctrl-C ends the run"
        self._record.control("resume" if opened else "pause", why)
        self._record.event({"row": "gate", "at_ns": time.monotonic_ns(), "open": opened, "why": why})
        if self.attacks is not None:
            (self.attacks.resume if opened else self.attacks.pause)()

    def _start_again(self) -> None:
        if self._restart is not None:
            if not self._restart.done():
                return
            self._take_restart(self._restart)
            self._restart = None
        stays = self._stays_for_good()
        if self.ending or self._not_again is not None or (self._patient.gone() is None and not stays):
            return
        if self._restarts >= self._most_restarts:
            what = "hung" if self._patient.state == "hung" else "died"
            self._not_again = f"the server {what} again after {self._restarts} restarts"
            return
        self._restarts += 1
        self._restart = asyncio.create_task(self._patient.launch(self._record))

    def _stays_for_good(self) -> bool:
        if self._patient.state not in ("hung", "dead"):
            self._useless_since = None
            return False
        now = time.monotonic()
        self._useless_since = self._useless_since or now
        return now - self._useless_since > self._wait_s

    def _take_restart(self, done: asyncio.Task[str]) -> None:
        try:
            words = done.result()
        except LoadchaosError as e:  # somebody else took its port meanwhile
            self._not_again = f"the server could not be started again: {e}"
        else:
            self._say(f"restart {self._restarts}: {words}")

    def why_give_up(self) -> str | None:
        """Why the load has to end because of the server, None while it is up or worth waiting for."""
        if self._patient.lost:
            return "the keeper of the server was lost, so nothing more is known of the server"
        if self._not_again is not None and (self._down_since is not None or self._useless_since is not None):
            return self._not_again
        if self._down_since is None:
            return None
        if self._policy == "stop" and self._patient.state in _ENDED:
            return "the server died"
        if self._policy == "wait" and self._patient.gone() is not None:
            return "the server died, and nobody starts it again"
        if self._most_deaths is not None and self._deaths >= self._most_deaths:
            return f"the server died {self._deaths} times, and the profile says that this is enough"
        down_s = time.monotonic() - self._down_since
        if down_s > self._start_s:  # one that is started again has the time that it had at first
            return f"the server did not come back within {down_s:.0f} s"
        return None

    async def close(self) -> None:
        """No more restarts; one that is under way is left to whoever ends the server."""
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
