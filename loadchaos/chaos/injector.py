"""Run a profile's attacks on their timetable, write their rows, and undo at the end whatever still holds."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadchaos.chaos.base import ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.chaos.conditions import Condition, ServerFigures, parse_conditions
from loadchaos.chaos.manual import Offer, offers
from loadchaos.chaos.registry import make_attack
from loadchaos.chaos.timetable import Timetable, parse_timetable
from loadchaos.chaos.triggers import PendingReplicas, Triggers
from loadchaos.core.attack_names import AttackKind
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.ledger.rows import AttackDetail, AttackEvent, Emit
from loadchaos.core.model import Row
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect

_UNDO_S = 5.0
_SKIPPED_EVERY_S = 1.0


@dataclass(frozen=True)
class AttackTarget:
    """The server to attack; `version` where it is known, `verify` as httpx takes it."""

    dialect: Dialect
    replicas: Sequence[AttackedReplica]
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    verify: Any = True


class AttackInjector:
    """Run the attacks of a profile, `specs` as AttackPlan.spec gives them.

    An act writes the row `begin`, and at its end the row `end` with the server's answer. An act that holds (sleep,
    pause) writes `undo` before `end`, so that from begin to end its effects are ours.

    Raises OptionError for a spec that the dialect or the replicas do not have.
    """

    def __init__(
        self, specs: Sequence[Mapping[str, Any]], target: AttackTarget, emit: Emit, redactor: Redactor, seed: int = 0
    ) -> None:
        # Each call on a connection of its own: a server closes idle ones after 5 s, and a reset is not to be retried.
        limits = httpx.Limits(max_keepalive_connections=0)
        # No proxies out of the environment: attacks go where the probes go.
        self._client = httpx.AsyncClient(
            headers=dict(target.headers), limits=limits, verify=target.verify, trust_env=False
        )
        self._replicas, self._emit, self._seed = list(target.replicas), emit, seed
        self._context = AttackContext(target.dialect, self._client, redactor, target.version)
        self._planned: list[tuple[Attack, Timetable]] = []
        self._fired: dict[tuple[str, str, str], int] = {}  # acts fired by hand: their index in `_planned`
        self._manual_acts = 0
        self._kinds: dict[int, AttackKind] = {}
        self._when: dict[int, list[Condition]] = {}
        self._figures = ServerFigures()
        self._triggers = Triggers()
        self._waits: dict[int, PendingReplicas] = {}
        for spec in specs:
            self._plan(spec)
        undone = (attack.undone_by for attack, _ in self._planned)
        self._triggers.refuse_unknown(filter(None, (*self.names, *undone)))
        self._tasks: list[asyncio.Task[None]] = []
        self._holding: dict[tuple[int, str], tuple[Attack, AttackedReplica, int]] = {}
        self._row_fields: dict[tuple[int, str], AttackDetail] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._paused_because = ""

    def _plan(self, spec: Mapping[str, Any]) -> None:
        times = parse_timetable(spec)
        kind, attack = make_attack(spec, times.params, self._context)
        if times.on not in ("each", "one", "random", *(r.name for r in self._replicas)):
            names = ", ".join(r.name for r in self._replicas)
            raise OptionError(f"attack {attack.name}: on is each, one, random or a replica ({names}): got {times.on}")
        index = len(self._planned)
        self._kinds[index] = kind
        self._when[index] = parse_conditions(times.when, self._context.dialect)
        if times.trigger is not None:
            self._waits[index] = self._triggers.wait_for(times.trigger)
        self._planned.append((attack, times))

    @property
    def names(self) -> list[str]:
        return [attack.name for attack, _ in self._planned]

    def offers(self) -> list[Offer]:
        """Return the acts that `fire` accepts here."""
        return offers(self._context.dialect, self._replicas, self._context.version)

    async def preflight(self, kind: str | None = None) -> list[tuple[str, ActResult]]:
        """Check each attack (of this kind) on each replica: (name, result)."""
        return [
            (
                attack.name if len(self._replicas) == 1 else f"{attack.name} on {replica.name}",
                await attack.preflight(replica),
            )
            for index, (attack, times) in enumerate(self._planned)
            for replica in (self._replicas if times.on != "one" else self._replicas[:1])
            if times.on in ("each", "one", "random", replica.name) and kind in (None, self._kinds[index])
        ]

    def feed(self, row: Row) -> None:
        """Fold a row of the ledger: `when` conditions wait for its figures."""
        self._figures.feed(row)

    async def start(self, begin_s: float | None = None) -> None:
        """Start the timetables, and return at once. The load begins now, or began at `begin_s` of the monotonic clock."""
        begin = time.monotonic() if begin_s is None else begin_s
        self._tasks = [
            asyncio.create_task(self._run(index, attack, times, begin))
            for index, (attack, times) in enumerate(self._planned)
        ]

    def fire(self, kind: str, name: str, params: Mapping[str, Any]) -> None:
        """Do one act now on each replica, by hand; while paused it is recorded as skipped, like a planned act.

        Its `n` is negative, unlike those of planned acts. OptionError for an act that the dialect does not have.
        """
        key = kind, name, repr(sorted(params.items()))
        if key not in self._fired:
            kind, attack = make_attack({kind: name}, params, self._context)
            self._fired[key] = len(self._planned)
            self._kinds[len(self._planned)] = kind
            self._planned.append((attack, Timetable()))
        index = self._fired[key]
        attack, times = self._planned[index]
        self._manual_acts += 1
        for replica in self._replicas:
            if not self._running.is_set():
                self._row(index, -self._manual_acts, "skipped", replica, ActResult(None, text=self._paused_because))
            else:
                act = self._once(index, attack, times, replica, -self._manual_acts)
                self._tasks.append(asyncio.create_task(act))

    def pause(self, why: str = "the server is down") -> None:
        """Begin no acts until `resume`; record due acts as skipped."""
        self._paused_because = why
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def stop(self) -> list[str]:
        """End every attack and undo what still holds, at most 5 s for each. Returns what could not be undone."""
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
                    self._row(index, n, "skipped", replica, ActResult(None, text=self._paused_because))

    async def _due(
        self, index: int, times: Timetable, rng: random.Random, begin: float
    ) -> AsyncIterator[list[str] | None]:
        """Yield whenever the attack is due: the replicas on which another act triggers it, or None for the clock."""
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
            self._row(index, n, "skipped", replica, ActResult(None, text="the act before is still in force"))
            return
        result = ActResult(ok=None, text="the run stopped before the server answered")
        self._row_fields[index, replica.name] = attack.row_fields(replica)
        self._row(index, n, "begin", replica, ActResult(ok=None))
        try:
            if attack.holds:
                self._holding[index, replica.name] = (attack, replica, n)
            result = await attack.begin(replica)
            if attack.holds and result.ok is not False:
                self._triggers.fire(("during", attack.name), replica.name)
                await asyncio.sleep(times.hold)
                await self._undo(index, replica.name)
            elif result.ok is False:
                self._holding.pop((index, replica.name), None)
        except LoadchaosError:
            raise  # the ledger accepts no more rows: the run reports it
        except Exception as e:  # noqa: BLE001 - a bug of ours must not end the attack unnoticed; the row reports it
            result = ActResult(ok=None, text=f"loadchaos failed: {type(e).__name__}: {e}")
        finally:
            self._row(index, n, "end", replica, result)
            if result.ok:
                self._triggers.fire(("after", attack.name), replica.name)

    async def _undo(self, index: int, name: str, limit_s: float | None = None) -> None:
        """Undo an act, within `limit_s` where that is given. A failed undo is recorded, and tried again at the end."""
        attack, replica, n = self._holding[index, name]
        try:
            async with asyncio.timeout(limit_s):
                result = await attack.undo(replica)
        except TimeoutError:
            result = ActResult(ok=None, text=f"no answer within {limit_s:g} s")
        if result.ok:
            self._holding.pop((index, name), None)
            if attack.undone_by is not None:
                self._triggers.fire(("after", attack.undone_by), name)
        self._row(index, n, "undo", replica, result)

    def _row(self, index: int, n: int, what: AttackEvent, replica: AttackedReplica, result: ActResult) -> None:
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
                "ok": result.ok,
                "status": result.status,
                "text": result.text,
                "effects": list(attack.effects),
                "took_ns": result.took_ns,
                **self._row_fields.get((index, replica.name), {}),
            }
        )
