"""Drives one worker's share of the plan: the dispatcher, and beside it sweeper, heartbeats and the reader of orders.

In an open phase the dispatcher makes each request before it is due and hands it to a free user; it counts from due
times and never waits for the server. In a closed one users take the next step themselves when they are free. Limits of
silence are kept by one sweeper instead of a timer per read, and answers are read by one reader (users/arrivals.py).
"""

from __future__ import annotations

import errno
import gc
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import ClockRow
from loadchaos.core.model import Reply, Step
from loadchaos.load.behaviours import BEHAVIOURS, pipeline
from loadchaos.load.disk_space import DiskMonitor as Disk
from loadchaos.load.wire.exchange import Exchange, WireRequest
from loadchaos.load.wire.pipelined import PipelinedExchange
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.clock_sync import MasterClock
from loadchaos.load.worker.control import Control
from loadchaos.load.worker.greenlets import Greenlet, flag, hub, resume, sleep, spawn
from loadchaos.load.worker.receiver import Arrivals
from loadchaos.load.worker.recorder import RequestRecorder
from loadchaos.load.worker.rounds import Rounds
from loadchaos.load.worker.timer import Alarm
from loadchaos.load.worker.worker_plan import WorkerPhase, WorkerPlan

HEARTBEAT_S = 0.25
CONTROL_S = 0.05
SWEEP_S = 0.05
GRACE_S = 4.0
"""How long requests in flight may go on after a `stop` before we hang up on them."""

_GARBAGE = (20_000, 50, 100)
"""Objects, and rounds, between two searches for cyclic garbage: a request leaves none behind."""

REST_S = 0.5
"""How long a user of a closed phase rests when nobody is there, or only what is left of a dead server."""

_NO_HANDLES = os.strerror(errno.EMFILE)

ReportRequest = Callable[[str, Reply, int], None]
"""Tells Locust of one request: its traffic, what it came to, when it was due."""

UserCount = Callable[[], int]
"""How many of Locust's users this worker has: where a hand edits their number, they are the slots."""


class User:
    """A slot and the greenlet that sends from it; it waits in the hub until there is `work`, which gets the slot."""

    __slots__ = ("greenlet", "slot", "work")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.greenlet: Greenlet | None = None
        self.work: Callable[[Slot], None] | None = None


class Dispatcher:
    """One worker's load, from its first to its last row. `run` blocks its greenlet until all is over."""

    def __init__(
        self, plan: WorkerPlan, fire: ReportRequest, clock: MasterClock | None = None, crew: UserCount | None = None
    ) -> None:
        self.plan = plan
        folder = RunFolder(plan.folder)
        self.control = Control(Tail(folder.control))
        self.failure: BaseException | None = None
        self.ended = flag()
        self._fire, self._crew = fire, crew
        self._planned = 0  # users of the phase that goes on
        self._too_many = 0  # who have to go as soon as they have their answer
        self._join: Callable[[Slot], None] | None = None  # what a user does who comes in the middle of a closed phase
        self._record = RequestRecorder(folder.requests(plan.worker), plan.worker, clock)
        self._disk = Disk(plan.folder) if clock is not None else None  # on its own machine the run looks after it
        self._alarm = Alarm()
        self._arrivals = Arrivals(self._around, self._alarm, plan.target)
        self._users: list[User] = []
        self._free: list[User] = []
        self._idle = flag()
        self._idle.set()
        self._busy = 0

    def run(self) -> None:
        """Begin row, phases, end row. Never raises: `failure` tells of a ledger that cannot be written, or of us."""
        # What is there by now stays: looking through it for garbage again and again would only make stamps late.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GARBAGE)
        try:
            self._record.write({"row": "load", "at_ns": time.monotonic_ns(), "what": "begin"})
            beside = [spawn(self._beside, s, w) for s, w in self._chores()]
            try:
                self._phases()
                self._drain()
            finally:
                for chore in beside:
                    chore.kill()
                self._hang_up("stopped")
            self._record.fold()
            self._record.heartbeat(len(self._users))
            self._record.write({"row": "load", "at_ns": time.monotonic_ns(), "what": "end", "why": self.control.why})
            self._record.close()
        except Exception as e:  # noqa: BLE001 - whatever broke here, the run must hear of it by our exit code
            self._fail(e)
        finally:
            gc.unfreeze()  # what Locust's sockets still hold is sent when they are collected at exit
            self._size(0)
            self._arrivals.close()
            self._alarm.close()
            self.ended.set()

    def stop(self, grace_s: float) -> None:
        """End in order, as a `stop` of the run would; for signals and for Locust's own Stop."""
        self.control.obey("stop", grace_s)

    def note(self, row: ClockRow) -> None:
        """Write a row about the load beside those of its requests."""
        self._record.write(row)

    # ---- phases ----

    def _phases(self) -> None:
        for phase, steps in self.plan.phases():
            if self.control.stopping.is_set():
                return
            (self._open if phase.open else self._closed)(phase, steps)
            if self.failure is not None:
                return

    def _open(self, phase: WorkerPhase, steps: Iterator[Step]) -> None:
        """Each step at its due time, whatever the server does; without a free slot it is missed."""
        self._size(phase.slots)
        begin_ns = time.monotonic_ns() - int(phase.behind_s * 1e9)
        round_: int | None = None
        for step in steps:
            if step.round != round_:
                self._turn(phase, round_, step.round)
                if round_ is not None and phase.drain:
                    # The next burst meets an idle server, even when that makes it later than planned.
                    begin_ns = max(begin_ns, time.monotonic_ns() - int((step.due_s or 0.0) * 1e9))
                round_ = step.round
            due_ns = begin_ns + int((step.due_s or 0.0) * 1e9)
            made = None if self.control.paused else self.plan.make(step)
            self._wait_until(due_ns)
            if self.control.stopping.is_set():
                break
            if self.control.paused:
                self._record.miss(step, "server_down")
            elif not self._free:
                self._record.miss(step, "no_slot")
            else:
                self._record.late(time.monotonic_ns() - due_ns)
                self._assign(partial(self._one, made or self.plan.make(step), due_ns))
                sleep(0)  # it goes out now, not when the next one has been made
        self._turn(phase, round_, None)

    def _wait_until(self, due_ns: int) -> None:
        """Wait, unless the load is to end; what is late already lets the answers in before it goes out."""
        now_ns = time.monotonic_ns()
        if now_ns >= due_ns:
            self._arrivals.breathe()
        while now_ns < due_ns and not self.control.stopping.is_set():
            self._alarm.wait_until(min(due_ns, now_ns + int(CONTROL_S * 1e9)))
            now_ns = time.monotonic_ns()

    def _closed(self, phase: WorkerPhase, steps: Iterator[Step]) -> None:
        """A step whenever a user is free; `drain` waits between rounds until nothing is in flight."""
        self._size(phase.slots)
        begin_ns = time.monotonic_ns() - self.control.paused_ns()
        turns = Rounds(steps, partial(self._record.phase, phase.index), drain=phase.drain)
        self._join = partial(self._use, phase, turns, begin_ns)
        while self._goes_on(phase, begin_ns) and turns.begin():
            while self._free:
                self._assign(self._join)
            self._drain()
            while not self._users and self._goes_on(phase, begin_ns):
                self.control.stopping.wait(CONTROL_S)  # a hand has taken all users away
        self._join = None
        turns.end()

    def _use(self, phase: WorkerPhase, turns: Rounds, begin_ns: int, slot: Slot) -> None:
        """One user's part of a closed round."""
        while self._goes_on(phase, begin_ns) and not self._leaves() and (step := turns.take()) is not None:
            made = self.plan.make(step)
            self._one(made, time.monotonic_ns(), slot)

    def _leaves(self) -> bool:
        """Whether this user is one too many."""
        self._too_many -= (one := self._too_many > 0)
        return one

    def _goes_on(self, phase: WorkerPhase, begin_ns: int) -> bool:
        """Whether a closed phase does, once it is not paused any more; time spent paused is not counted."""
        if not self.control.wait():
            return False
        return phase.for_s is None or time.monotonic_ns() - self.control.paused_ns() - begin_ns < phase.for_s * 1e9

    def _turn(self, phase: WorkerPhase, over: int | None, next_: int | None) -> None:
        """From one round to the next; behind the last one (None) everything is waited for."""
        if over is not None:
            if phase.drain or next_ is None:
                self._drain()
            self._record.phase(phase.index, over, "end")
        if next_ is not None:
            self._record.phase(phase.index, next_, "begin")

    def _drain(self) -> None:
        """Wait until nothing is in flight; after a stop only for its grace."""
        while self._busy:
            if self.control.stopping.is_set():
                grace_s = GRACE_S if self.control.grace_s is None else self.control.grace_s
                self._idle.wait(grace_s)
                self._hang_up("stopped")
                self._idle.wait(5)  # what was hung up on still writes its row
                return
            self._idle.wait(CONTROL_S)

    def _hang_up(self, why: str) -> None:
        for call in list(self._record.in_flight.values()):
            call.end("hung_up", why)

    def _size(self, users: int) -> None:
        """Have that many users, or as many as a hand says; those that are too many go when they are free."""
        self._planned = users
        if users and self.control.by_hand and self._crew is not None and not self.control.stopping.is_set():
            users = self._crew()
        while len(self._users) < users:
            user = User(Slot(self.plan.target, self._arrivals.collect))
            self._users.append(user)
            self._free.append(user)
        while len(self._users) > users and self._free:
            user = self._free.pop()
            user.slot.close()
            self._users.remove(user)
            if user.greenlet is not None:
                resume(user.greenlet)  # to its end: there is no work
        self._too_many = max(0, len(self._users) - users)

    def _listen(self) -> None:
        self.control.read()
        if self._disk is not None and (told := self._disk.changed(time.monotonic())) is not None:
            told["text"] = f"on {socket.gethostname()} {told['text']}"
            self._record.write(told)
        self._record.be_brief(self.control.brief or (self._disk is not None and self._disk.low))
        if self.control.by_hand:
            self._size(self._planned)
            while self._free and self._join is not None:
                self._assign(self._join)

    def _assign(self, work: Callable[[Slot], None]) -> None:
        """Have a free user do that; it begins when the caller next waits."""
        user = self._free.pop()
        self._busy += 1
        self._idle.clear()
        user.work = work
        if user.greenlet is None:
            user.greenlet = spawn(self._serve, user)  # and kept: a greenlet costs ten times what waking it costs
        else:
            resume(user.greenlet)

    def _serve(self, user: User) -> None:
        while user.work is not None:
            try:
                user.work(user.slot)
            except Exception as e:  # noqa: BLE001 - a greenlet's exception would be printed and the load go on unproved
                self._fail(e)
            user.work = None
            self._free.append(user)
            self._busy -= 1
            if not self._busy:
                self._idle.set()
            hub().switch()

    # ---- one request ----

    def _one(self, wire: WireRequest, due_ns: int, slot: Slot) -> None:
        step = wire.request.step
        exchange = Exchange(wire, slot, self._record.progress, due_ns)
        self._record.begin(exchange)
        pipelined = self._pipelined(exchange) if step.behaviour == "pipeline" else ()
        reply = self._end(exchange, BEHAVIOURS[step.behaviour].act(exchange))
        for other in pipelined:
            self._end(other, pipeline.act_pipelined(other, exchange))
        if step.due_s is None and self.plan.is_gone(reply):
            # A closed loop against a dead server would use up its whole plan before anybody can say pause.
            self.control.stopping.wait(REST_S)

    def _pipelined(self, first: Exchange) -> list[PipelinedExchange]:
        """Begin the other requests of a pipeline, each a request of its own in the ledger."""
        before, found = first, []
        slot = Slot(self.plan.target, self._arrivals.collect)  # it keeps no connection
        for wire in self.plan.pipelined(first.wire):
            found.append(PipelinedExchange(wire, before, slot, self._record.progress))
            self._record.begin(found[-1])
            before = found[-1]
        first.pipelined = found
        return found

    def _end(self, exchange: Exchange, reply: Reply) -> Reply:
        """Record a finished request in the ledger and in Locust's statistics."""
        reply = self.plan.redacted(reply)
        if reply.outcome == "connect_error" and _NO_HANDLES in (reply.error or ""):
            # It never left this machine: the server has no part in it, and the next row may find no handle either.
            why = f"no file handle is left for a connection ({reply.error})"
            raise LedgerError(f"{why}: raise `ulimit -n`, or take fewer users")
        self._record.end(exchange, reply)
        self._fire(exchange.step.traffic, reply, exchange.due_ns)
        return reply

    # ---- beside the dispatcher ----

    def _chores(self) -> list[tuple[float, Callable[[], None]]]:
        return [
            (SWEEP_S, self._sweep),
            (CONTROL_S, self._listen),
            (HEARTBEAT_S, lambda: self._record.heartbeat(len(self._users))),
            (1.0, self._record.fold),
        ]

    def _beside(self, every_s: float, work: Callable[[], None]) -> None:
        next_s = time.monotonic() + every_s
        try:
            while True:
                sleep(max(0.0, next_s - time.monotonic()))
                # How late a timer is tells how long something held the hub; standing still on purpose is no such thing.
                self._record.late(max(0, int((time.monotonic() - next_s) * 1e9) - self._arrivals.gather_ns))
                next_s = max(next_s + every_s, time.monotonic())
                work()
        except Exception as e:  # noqa: BLE001 - without its heartbeats or limits the load must not go on
            self._fail(e)

    def _around(self, begins: bool) -> None:
        """The rows of what ends within one slice of arrivals are written together."""
        try:
            self._record.hold() if begins else self._record.release()
        except LedgerError as e:
            self._fail(e)

    def _sweep(self) -> None:
        now_ns = time.monotonic_ns()
        for call in list(self._record.in_flight.values()):
            call.sweep(now_ns)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.stop(0.0)
