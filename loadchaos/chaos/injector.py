"""Run a profile's attacks on their timetable, write their rows, and undo at the end whatever still holds."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from loadchaos.chaos.base import ActResult, Attack, AttackContext, AttackedReplica, AttackFactory
from loadchaos.chaos.conditions import Condition, ServerFigures, parse_conditions
from loadchaos.chaos.manual import Offer, offers
from loadchaos.chaos.timetable import Timetable
from loadchaos.chaos.triggers import PendingReplicas, Triggers
from loadchaos.core import http_client
from loadchaos.core.attack_names import ATTACK_KINDS, AttackKind
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.ledger.rows import AttackDetail, AttackEvent, Emit
from loadchaos.core.redact import Redactor
from loadchaos.core.typed_json import from_json
from loadchaos.server.dialects import Dialect

_UNDO_S = 5.0
_SKIPPED_EVERY_S = 1.0

ATTACKS: dict[AttackKind, AttackFactory] = {
    kind: import_module(f"loadchaos.chaos.{kind}").make for kind in ATTACK_KINDS
}
"""A kind of `ATTACK_KINDS` is the file of that name here, whose `make` makes the attack."""


def make_attack(
    spec: Mapping[str, object], params: Mapping[str, object], context: AttackContext
) -> tuple[AttackKind, Attack]:
    """Make the attack of a spec, and return it with its kind. Raises OptionError where the spec names no kind."""
    for kind, make in ATTACKS.items():
        if name := spec.get(kind):
            return kind, make(name, params, context)
    raise OptionError(f"an attack needs its kind, as in {{admin: reset_mm_cache, every: 2s}} (got {spec!r})")


@dataclass(frozen=True)
class AttackTarget:
    """The server to attack; `version` where it is known, `verify` as httpx takes it. `refusal` gives why an address may
    not be attacked now, None where it may.
    """

    dialect: Dialect
    replicas: Sequence[AttackedReplica]
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    verify: ssl.SSLContext | bool = True
    refusal: Callable[[str], str | None] = lambda _url: None


@dataclass(eq=False)
class _Planned:
    """One attack of the profile, or one fired by hand; `index` is its place among all."""

    index: int
    kind: AttackKind
    attack: Attack
    times: Timetable = field(default_factory=Timetable)
    when: Sequence[Condition] = ()
    waits: PendingReplicas | None = None
    row_fields: dict[str, AttackDetail] = field(default_factory=dict)
    holding: dict[str, tuple[AttackedReplica, int]] = field(default_factory=dict)
    """By the name of the replica: that replica, and the number of the act in force there."""


class AttackInjector:
    """Run the attacks of a profile, `specs` as AttackPlan.spec gives them. An act writes the row `begin`, and at its
    end the row `end` with the server's answer. An act that holds (sleep, pause) writes `undo` before `end`, so that
    from begin to end its effects are ours. Raises OptionError for a spec that the dialect or the replicas do not have.
    """

    def __init__(
        self, specs: Sequence[Mapping[str, object]], target: AttackTarget, emit: Emit, redactor: Redactor, seed: int = 0
    ) -> None:
        # Each call on a connection of its own: a reset is not to be retried.
        self._client = http_client.client(target.headers, target.verify, used_once=True)
        self._replicas, self._emit, self._seed = list(target.replicas), emit, seed
        self._refusal = target.refusal
        self._context = AttackContext(target.dialect, self._client, redactor, target.version)
        self._planned: list[_Planned] = []
        self._fired: dict[tuple[str, str, str], _Planned] = {}
        self._manual_acts = 0
        self.figures = ServerFigures()
        self._triggers = Triggers()
        for spec in specs:
            self._plan(spec)
        undone = (p.attack.undone_by for p in self._planned)
        self._triggers.refuse_unknown(filter(None, (*self.names, *undone)))
        self._tasks: list[asyncio.Task[None]] = []
        self._running = asyncio.Event()
        self._running.set()
        self._paused_because = ""

    def _plan(self, spec: Mapping[str, object]) -> None:
        times = from_json(Timetable, spec)
        kind, attack = make_attack(spec, times.params, self._context)
        if times.on not in ("each", "one", "random", *(r.name for r in self._replicas)):
            names = ", ".join(r.name for r in self._replicas)
            raise OptionError(f"attack {attack.name}: on is each, one, random or a replica ({names}): got {times.on}")
        when = parse_conditions(times.when, self._context.dialect)
        waits = None if times.trigger is None else self._triggers.wait_for(times.trigger)
        self._planned.append(_Planned(len(self._planned), kind, attack, times, when, waits))

    @property
    def addresses(self) -> list[str]:
        """Roots of the admin URLs of the servers that an act can reach."""
        return [replica.admin_url for replica in self._replicas]

    @property
    def names(self) -> list[str]:
        return [p.attack.name for p in self._planned]

    def offers(self) -> list[Offer]:
        return offers(self._context.dialect, self._replicas, self._context.version)

    async def preflight(self, kind: str | None = None) -> list[tuple[str, ActResult]]:
        """Check each attack (of this kind) on each replica: (name, result)."""
        several = len(self._replicas) > 1
        return [
            (f"{p.attack.name} on {replica.name}" if several else p.attack.name, await p.attack.preflight(replica))
            for p in self._planned
            for replica in (self._replicas if p.times.on != "one" else self._replicas[:1])
            if p.times.on in ("each", "one", "random", replica.name) and kind in (None, p.kind)
        ]

    async def start(self, begin_s: float | None = None) -> None:
        """Start the timetables, and return at once. The load begins now, or began at `begin_s` of the monotonic clock."""
        begin = time.monotonic() if begin_s is None else begin_s
        self._tasks = [asyncio.create_task(self._run(p, begin)) for p in self._planned]

    def fire(self, kind: str, name: str, params: Mapping[str, object]) -> None:
        """Do one act now on each replica, by hand; while paused it is recorded as skipped, like a planned act. Its `n`
        is negative, unlike those of planned acts. OptionError for an act that the dialect does not have.
        """
        key = kind, name, repr(sorted(params.items()))
        if key not in self._fired:
            planned = _Planned(len(self._planned), *make_attack({kind: name}, params, self._context))
            self._fired[key] = planned
            self._planned.append(planned)
        self._manual_acts += 1
        for replica in self._replicas:
            if not self._running.is_set():
                self._skip(self._fired[key], -self._manual_acts, replica)
            else:
                act = self._once(self._fired[key], replica, -self._manual_acts)
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
        for planned in self._planned:
            for name in list(planned.holding):
                await self._undo(planned, name, _UNDO_S)
        await self._client.aclose()
        return [f"{p.attack.name} on {name}" for p in self._planned for name in p.holding]

    async def _run(self, planned: _Planned, begin: float) -> None:
        times = planned.times
        rng = random.Random(f"{self._seed}/{planned.index}/{planned.attack.name}")
        skipped = 0.0
        n = 0
        async for triggered_on in self._due(planned, rng, begin):
            chosen = [r for r in self._choose(times.on, rng) if triggered_on is None or r.name in triggered_on]
            if not chosen:
                continue
            if triggered_on is not None and n == times.times:
                return
            n += 1
            await self.figures.until(planned.when, chosen[0].name)
            if self._running.is_set():
                await asyncio.gather(*(self._once(planned, replica, n) for replica in chosen))
            elif time.monotonic() - skipped >= _SKIPPED_EVERY_S:
                skipped = time.monotonic()
                for replica in chosen:
                    self._skip(planned, n, replica)

    async def _due(self, planned: _Planned, rng: random.Random, begin: float) -> AsyncIterator[list[str] | None]:
        """Yield whenever the attack is due: the replicas on which another act triggers it, or None for the clock."""
        if planned.waits is not None:
            while True:
                yield await planned.waits.get()
        for moment in planned.times.moments(rng):
            late_s = time.monotonic() - begin - moment
            if late_s > (planned.times.every_s or late_s):
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

    async def _once(self, planned: _Planned, replica: AttackedReplica, n: int) -> None:
        attack = planned.attack
        if replica.name in planned.holding:
            self._skip(planned, n, replica, "the act before is still in force")
            return
        if (why := self._refusal(replica.admin_url)) is not None:
            self._skip(planned, n, replica, why)
            return
        result, took_ns = ActResult(ok=None, text="the run stopped before the server answered"), None
        worked = False
        planned.row_fields[replica.name] = attack.row_fields(replica)
        self._row(planned, n, "begin", replica, ActResult(ok=None))
        try:
            if attack.holds:
                planned.holding[replica.name] = (replica, n)
            begin_ns = time.monotonic_ns()
            result = await attack.begin(replica)
            worked = bool(result.ok)
            took_ns = time.monotonic_ns() - begin_ns
            if attack.holds and result.ok is not False:
                self._triggers.fire(("during", attack.name), replica.name)
                await asyncio.sleep(planned.times.hold)
                await self._undo(planned, replica.name)
                if why := attack.without_effect(replica):
                    result = ActResult(ok=None, text=f"{result.text}; {why}")
            elif result.ok is False:
                planned.holding.pop(replica.name, None)
        except LoadchaosError:
            raise  # the ledger accepts no more rows: the run reports it
        except Exception as e:  # noqa: BLE001 - a bug of ours must not end the attack unnoticed; the row reports it
            result, worked = ActResult(ok=None, text=f"loadchaos failed: {type(e).__name__}: {e}"), False
        finally:
            self._row(planned, n, "end", replica, result, took_ns)
            if worked:
                self._triggers.fire(("after", attack.name), replica.name)

    async def _undo(self, planned: _Planned, name: str, limit_s: float | None = None) -> None:
        """Undo an act, within `limit_s` where that is given. A failed undo is recorded, and tried again at the end."""
        attack, (replica, n), begin_ns = planned.attack, planned.holding[name], time.monotonic_ns()
        try:
            async with asyncio.timeout(limit_s):
                # A request may meet another server by now; other acts know their process.
                why = self._refusal(replica.admin_url) if planned.kind == "admin" else None
                result = ActResult(ok=False, text=why) if why else await attack.undo(replica)
        except TimeoutError:
            result = ActResult(ok=None, text=f"no answer within {limit_s:g} s")
        if result.ok:
            planned.holding.pop(name, None)
            if attack.undone_by is not None:
                self._triggers.fire(("after", attack.undone_by), name)
        self._row(planned, n, "undo", replica, result, time.monotonic_ns() - begin_ns)

    def _skip(self, planned: _Planned, n: int, replica: AttackedReplica, why: str | None = None) -> None:
        self._row(planned, n, "skipped", replica, ActResult(None, text=self._paused_because if why is None else why))

    def _row(
        self,
        planned: _Planned,
        n: int,
        what: AttackEvent,
        replica: AttackedReplica,
        result: ActResult,
        took_ns: int | None = None,
    ) -> None:
        attack = planned.attack
        self._emit(
            {
                "row": "attack",
                "at_ns": time.monotonic_ns(),
                "attack": attack.name,
                "kind": planned.kind,
                "n": n,
                "what": what,
                "replica": replica.name,
                "ok": result.ok,
                "status": result.status,
                "text": result.text,
                "effects": list(attack.effects),
                "took_ns": took_ns,
                **planned.row_fields.get(replica.name, {}),
            }
        )
