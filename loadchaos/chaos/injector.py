"""Runs a profile's attacks on their timetable, records each, and takes back whatever still holds when it ends."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from loadchaos.chaos.base import ActResult, Attack, AttackedReplica
from loadchaos.chaos.conditions import Condition, ServerFigures, conditions
from loadchaos.chaos.manual import Offer, offers
from loadchaos.chaos.timetable import Timetable, timetable
from loadchaos.chaos.triggers import PendingReplicas, Triggers
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.ledger.rows import AttackDetail, AttackEvent, AttackKind, Emit
from loadchaos.core.model import Row
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect

_UNDO_S = 5.0
_SKIPPED_EVERY_S = 1.0


class AttackInjector:
    """A profile's attacks. Each spec is a mapping or object: `admin` (the operation's name), `params`, and its times.

    Rows of one act: `begin`; then, when it is over, `end` with the server's answer; for what holds (sleep, pause) an
    `undo` before it, so that begin to end is the time in which its effects are ours. OptionError for a spec that the
    dialect or the replicas do not have.
    """

    def __init__(
        self,
        specs: Sequence[Any],
        dialect: Dialect,
        replicas: Sequence[AttackedReplica],
        emit: Emit,
        redactor: Redactor,
        headers: Mapping[str, str] | None = None,
        seed: int = 0,
        version: str | None = None,
        verify: Any = True,
    ) -> None:
        # Each call on a connection of its own: a server closes idle ones after 5 s, and a reset is not to be retried.
        limits = httpx.Limits(max_keepalive_connections=0)
        # No proxies out of the environment: attacks go where the probes go.
        self._client = httpx.AsyncClient(headers=dict(headers or {}), limits=limits, verify=verify, trust_env=False)
        self._replicas, self._emit, self._seed = list(replicas), emit, seed
        self._known = (dialect, self._client, redactor, version)
        self._planned: list[tuple[Attack, Timetable]] = []
        self._fired: dict[tuple[str, str, str], int] = {}  # by what is fired: its place in `_planned`
        self._acts_by_hand = 0
        self._kinds: dict[int, AttackKind] = {}
        self._when: dict[int, list[Condition]] = {}
        self._figures = ServerFigures()
        self._triggers = Triggers()
        self._waits: dict[int, PendingReplicas] = {}
        for spec in specs:
            times = timetable(spec)
            kind, attack = _make(spec, times, *self._known)
            if times.on not in ("each", "one", "random", *(r.name for r in self._replicas)):
                names = ", ".join(r.name for r in self._replicas)
                raise OptionError(
                    f"attack {attack.name}: on is each, one, random or a replica ({names}): got {times.on}"
                )
            self._kinds[len(self._planned)] = kind
            self._when[len(self._planned)] = conditions(times.when, dialect)
            if times.trigger is not None:
                self._waits[len(self._planned)] = self._triggers.wait_for(times.trigger)
            self._planned.append((attack, times))
        undone = (attack.undone_by for attack, _ in self._planned)
        self._triggers.refuse_unheard(filter(None, (*self.names, *undone)))
        self._tasks: list[asyncio.Task[None]] = []
        self._holding: dict[tuple[int, str], tuple[Attack, AttackedReplica, int]] = {}
        self._about: dict[tuple[int, str], AttackDetail] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._why_paused = ""

    @property
    def names(self) -> list[str]:
        """The attacks, in the profile's order."""
        return [attack.name for attack, _ in self._planned]

    def offers(self) -> list[Offer]:
        """What `fire` may be asked for here."""
        return offers(self._known[0], self._replicas, self._known[3])

    async def preflight(self, kind: str | None = None) -> list[tuple[str, ActResult]]:
        """Each attack (of this kind) on each replica: name, and whether it can be done (`ok` None: no answer)."""
        return [
            (
                attack.name if len(self._replicas) == 1 else f"{attack.name} on {replica.name}",
                await attack.preflight(replica),
            )
            for index, (attack, times) in enumerate(self._planned)
            for replica in (self._replicas if times.on != "one" else self._replicas[:1])
            if times.on in ("each", "one", "random", replica.name) and kind in (None, self._kinds[index])
        ]

    def see(self, row: Row) -> None:
        """A row of the ledger: its figures are what `when:` waits for."""
        self._figures.see(row)

    async def start(self) -> None:
        """The load begins now; returns at once."""
        begin = time.monotonic()
        self._tasks = [
            asyncio.create_task(self._run(index, attack, times, begin))
            for index, (attack, times) in enumerate(self._planned)
        ]

    def fire(self, kind: str, name: str, params: Mapping[str, Any]) -> None:
        """Do one act now, on each replica, beside the timetable; its `n` is negative, unlike those of planned acts.

        OptionError for what the dialect does not have. While paused it is recorded as skipped, as a planned one is.
        """
        key = kind, name, repr(sorted(params.items()))
        if key not in self._fired:
            spec = {kind: name, "params": dict(params)}
            times = timetable(spec)
            kind, attack = _make(spec, times, *self._known)
            self._fired[key] = len(self._planned)
            self._kinds[len(self._planned)] = kind
            self._planned.append((attack, times))
        index = self._fired[key]
        attack, times = self._planned[index]
        self._acts_by_hand += 1
        for replica in self._replicas:
            if not self._running.is_set():
                self._row(index, -self._acts_by_hand, "skipped", replica, ActResult(None, text=self._why_paused))
            else:
                act = self._once(index, attack, times, replica, -self._acts_by_hand)
                self._tasks.append(asyncio.create_task(act))

    def pause(self, why: str = "the server is down") -> None:
        """Leave the server alone until `resume`; what would have been due is recorded as skipped."""
        self._why_paused = why
        self._running.clear()

    def resume(self) -> None:
        """Go on with what is due from now on."""
        self._running.set()

    async def stop(self) -> list[str]:
        """End every attack and take back what still holds; each undo gets 5 s. Returns what could not be taken back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for index, name in list(self._holding):
            await self._undo(index, name, _UNDO_S)
        await self._client.aclose()
        return [f"{attack.name} on {replica.name}" for attack, replica, _ in self._holding.values()]

    async def _run(self, index: int, attack: Attack, times: Timetable, begin: float) -> None:
        rng = random.Random(f"{self._seed}/{index}/{attack.name}")
        skipped = 0.0
        n = 0
        async for triggered_on in self._due(index, times, rng, begin):
            chosen = [r for r in self._choose(times.on, rng) if triggered_on is None or r.name in triggered_on]
            if not chosen:
                continue
            if triggered_on is not None and n == times.times:
                return
            n += 1
            await self._figures.until(self._when[index], chosen[0].name)
            if self._running.is_set():
                await asyncio.gather(*(self._once(index, attack, times, replica, n) for replica in chosen))
            elif time.monotonic() - skipped >= _SKIPPED_EVERY_S:
                skipped = time.monotonic()
                for replica in chosen:
                    self._row(index, n, "skipped", replica, ActResult(None, text=self._why_paused))

    async def _due(
        self, index: int, times: Timetable, rng: random.Random, begin: float
    ) -> AsyncIterator[list[str] | None]:
        """Gives each time that it is due: the replicas on which another act calls for it, None where the clock does."""
        if index in self._waits:
            while True:
                yield await self._waits[index].get()
        for moment in times.moments(rng):
            late_s = time.monotonic() - begin - moment
            if late_s > (times.every_s or late_s):
                continue  # the call before took longer than an interval: no piling up
            await asyncio.sleep(max(-late_s, 0.0))
            yield None

    def _choose(self, on: str, rng: random.Random) -> list[AttackedReplica]:
        if on == "each":
            return self._replicas
        if on == "one":
            return self._replicas[:1]
        if on == "random":
            return [rng.choice(self._replicas)]
        return [replica for replica in self._replicas if replica.name == on]

    async def _once(self, index: int, attack: Attack, times: Timetable, replica: AttackedReplica, n: int) -> None:
        if (index, replica.name) in self._holding:
            self._row(index, n, "skipped", replica, ActResult(None, text="it is still in force"))
            return
        done = ActResult(ok=None, text="stopped before it was answered")
        self._about[index, replica.name] = attack.about(replica)
        self._row(index, n, "begin", replica, ActResult(ok=None))
        try:
            if attack.holds:
                self._holding[index, replica.name] = (attack, replica, n)
            done = await attack.begin(replica)
            if attack.holds and done.ok is not False:
                self._triggers.fire(("during", attack.name), replica.name)
                await asyncio.sleep(times.hold)
                await self._undo(index, replica.name)
            elif done.ok is False:
                self._holding.pop((index, replica.name), None)
        except LoadchaosError:
            raise  # the ledger takes no more rows: whoever owns it knows
        except Exception as e:  # noqa: BLE001 - a mistake of ours must not end the attack unseen; the row tells it
            done = ActResult(ok=None, text=f"loadchaos failed: {type(e).__name__}: {e}")
        finally:
            self._row(index, n, "end", replica, done)
            if done.ok:
                self._triggers.fire(("after", attack.name), replica.name)

    async def _undo(self, index: int, name: str, limit_s: float | None = None) -> None:
        """Take it back, in its own time or `limit_s`; what could not be is noted, and tried once more at the end."""
        attack, replica, n = self._holding[index, name]
        try:
            async with asyncio.timeout(limit_s):
                done = await attack.undo(replica)
        except TimeoutError:
            done = ActResult(ok=None, text=f"no answer within {limit_s:g} s")
        if done.ok:
            self._holding.pop((index, name), None)
            if attack.undone_by is not None:
                self._triggers.fire(("after", attack.undone_by), name)
        self._row(index, n, "undo", replica, done)

    def _row(self, index: int, n: int, what: AttackEvent, replica: AttackedReplica, done: ActResult) -> None:
        attack = self._planned[index][0]
        self._emit(
            {
                "row": "attack",
                "at_ns": time.monotonic_ns(),
                "attack": attack.name,
                "kind": self._kinds[index],
                "n": n,
                "what": what,
                "replica": replica.name,
                "ok": done.ok,
                "status": done.status,
                "text": done.text,
                "effects": list(attack.effects),
                "took_ns": done.took_ns,
                **self._about.get((index, replica.name), {}),
            }
        )


def _make(
    spec: Any, times: Timetable, dialect: Dialect, client: httpx.AsyncClient, redactor: Redactor, version: str | None
) -> tuple[AttackKind, Attack]:
    """The attack a spec names, and its kind. OptionError where there is no such kind or operation."""
    from loadchaos.chaos import ATTACKS  # the shelf's table; at the top it would be a circle

    for kind, make in ATTACKS.items():
        name = spec.get(kind) if isinstance(spec, Mapping) else getattr(spec, kind, None)
        if name:
            return kind, make(name, times.params, dialect, client, redactor, version)
    raise OptionError(f"an attack names what it is, as in {{admin: reset_mm_cache, every: 2s}} (got {spec!r})")
