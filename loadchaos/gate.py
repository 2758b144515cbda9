"""While the server is down the load rests: pause, go on when it is back, start it again, or give up waiting for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from loadchaos.attacks import Attacks
from loadchaos.errors import LoadchaosError
from loadchaos.patient import Patient
from loadchaos.plan.profile import Profile
from loadchaos.record import Record

WAIT_S = 60.0
"""How long a server that is down is waited for, unless `recovers_within` of the profile says longer."""

MOST_RESTARTS = 20


class Gate:
    """Called each turn of the run's loop while the load goes; it never waits. `ending`: nothing is started any more."""

    def __init__(self, profile: Profile, patient: Patient, record: Record, say: Callable[[str], None]) -> None:
        self._profile, self._patient, self._record, self._say = profile, patient, record, say
        self._policy = profile.target.on_death
        self._wait_s = max(WAIT_S, profile.recovers_within_s())
        self._down_since: float | None = None
        self._restart: asyncio.Task[str] | None = None
        self._restarts = 0
        self._not_again: str | None = None
        self.attacks: Attacks | None = None
        self.ending = False

    def turn(self) -> None:
        """Pause or go on, and start the server again where the profile wants that."""
        down = self._patient.down
        if down != (self._down_since is not None):
            self._down_since = time.monotonic() if down else None
            self._move(opened=not down)
        if self._policy == "restart":
            self._start_again()

    def _move(self, *, opened: bool) -> None:
        why = f"server {self._patient.state}"
        if not opened and self._policy != "stop":
            why = f"waiting for the server, {self._wait_s:g} s at most; Ctrl-C ends the run"
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
        if self.ending or self._patient.gone() is None or self._not_again is not None:
            return
        if self._restarts >= MOST_RESTARTS:
            self._not_again = f"the server died again after {MOST_RESTARTS} restarts"
            return
        self._restarts += 1
        self._restart = asyncio.create_task(self._patient.launch(self._record))

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
        if self._down_since is None:
            return None
        if self._not_again is not None:
            return self._not_again
        if self._policy == "stop" and self._patient.state in ("dead", "terminated"):
            return "the server died"
        if self._policy == "wait" and self._patient.gone() is not None:
            return "the server died, and nobody starts it again"
        down_s = time.monotonic() - self._down_since
        if down_s > self._wait_s:
            return f"the server did not come back within {down_s:.0f} s"
        return None

    async def close(self) -> None:
        """No more restarts; one that is under way is left to whoever ends the server."""
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
