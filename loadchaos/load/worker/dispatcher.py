"""Send one worker's share of the plan: users, phases and rounds, as the commands of the run allow it.

In an open phase the dispatcher builds each request before it is due and hands it to a free user; it follows due times
and never waits for the server. In a closed phase users take the next step when they are free. One sweeper enforces
timeouts instead of a timer per read, and one receiver reads all answers (receiver.py).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby

from loadchaos.core.errors import LedgerError
from loadchaos.core.goodput import WAIT
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import ClockRow, EndRow
from loadchaos.core.limits import HEARTBEAT_S
from loadchaos.core.model import Step
from loadchaos.core.open_files import allow_many_open_files
from loadchaos.core.units import NS_PER_S
from loadchaos.load.behaviours import Behaviour
from loadchaos.load.disk_space import DiskMonitor
from loadchaos.load.wire.answer_reader import AnswerReader
from loadchaos.load.wire.exchange import SWEEP_S, Exchange
from loadchaos.load.wire.pipelined import PipelinedExchange
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.clock_sync import MasterClock
from loadchaos.load.worker.greenlets import Greenlet, Timer, flag, hub, resume, sleep, spawn
from loadchaos.load.worker.receiver import Receiver
from loadchaos.load.worker.recorder import RequestRecorder
from loadchaos.load.worker.replay_order import ReplayOrder
from loadchaos.load.worker.rounds import Rounds
from loadchaos.load.worker.sessions import Hands, SessionRun
from loadchaos.load.worker.worker_plan import WorkerPhase, WorkerPlan
from loadchaos.profile.request_trace import RequestTrace

CONTROL_POLL_S = 0.05
"""Period at which commands of the run are read."""
FEW_NS = 500_000_000
"""Interval of the requests of one worker after the command `few`."""
PARENT_POLL_S = 0.5
"""Period at which a load process looks whether its parent still runs."""
TOKEN_POLL_S = 0.002
"""Interval at which a replay counts the tokens that other requests wait for."""
STOP_GRACE_S = 4.0
"""Time that requests in flight have after a `stop` before we hang up."""
SIGNAL_GRACE_S = 1.0
"""The same after a signal to this process."""

_GC_THRESHOLDS = (20_000, 50, 100)
"""Thresholds of gc.set_threshold: rare searches, as a request leaves no cyclic garbage."""

_TOO_MANY_OPEN_FILES = os.strerror(errno.EMFILE)


def print_failure(failure: BaseException) -> None:
    """Print why a load ended. Our output may be a file on the same full disk."""
    text = f"the ledger could not be written: {failure}"
    if not isinstance(failure, LedgerError):
        text = f"this is a bug in loadchaos: please report it with the run folder: {failure!r}"
    print_error(text)


def print_error(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"loadchaos: {text}", file=sys.stderr, flush=True)


class Control:
    """State of the load as the newest commands of the run set it (control.jsonl).

    `stopping` ends the load. `paused`: no request may be sent now. `compact_rows`: disk space is low, so successful requests
    get no rows of their own. `manual_users`: the users are edited in the web UI, so their number is no longer the plan's.
    """

    def __init__(self, tail: Tail) -> None:
        self.stopping = flag()
        self.end_reason = "done"
        self.grace_s: float | None = None
        self.manual_users = self.compact_rows = False
        self._tail = tail
        self._running = flag()
        self._running.set()
        self.paused = self._few = False
        self._paused_since_ns = self._paused_ns = self._next_ns = 0

    def read(self) -> None:
        for row in self._tail.rows():
            if row["row"] == "control":
                self.apply(str(row.get("what")), row.get("grace_s"))

    def apply(self, what: str, grace_s: float | None = None) -> None:
        """Apply one command. An unknown one is ignored, as a newer run may send it."""
        now = time.monotonic_ns()
        if what in ("pause", "few"):
            if not (self.paused or self._few):
                self._paused_since_ns = now
            self.paused, self._few, self._next_ns = what == "pause", what == "few", now
            waking, self._running = self._running, flag()
            waking.set()  # who waited under the order before waits under this one
        elif what == "resume" and (self.paused or self._few):
            self.paused = self._few = False
            self._paused_ns += now - self._paused_since_ns
            self._running.set()
        elif what == "by_hand":
            self.manual_users = True
        elif what in ("compact", "full"):
            self.compact_rows = what == "compact"
        elif what == "stop" and not self.stopping.is_set():
            self.end_reason, self.grace_s = "stopped", grace_s
            self.stopping.set()
            self._running.set()  # users that wait must see the end

    def paused_ns(self) -> int:
        held = self.paused or self._few
        return self._paused_ns + (time.monotonic_ns() - self._paused_since_ns if held else 0)

    def may_send(self) -> bool:
        """True when a request may be sent now. After `few`, true once in `FEW_NS`."""
        if not self._few:
            return not self.paused
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + FEW_NS
        return True

    def wait(self) -> bool:
        """Wait until a request may be sent; returns False when the load is to end."""
        while not self.stopping.is_set() and not self.may_send():
            self._running.wait(None if self.paused else max(0.0, (self._next_ns - time.monotonic_ns()) / 1e9))
        return not self.stopping.is_set()


class User:
    """A slot and its greenlet. The greenlet waits in the hub until there is `work`."""

    __slots__ = ("greenlet", "slot", "work")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.greenlet: Greenlet | None = None
        self.work: Callable[[Slot], object] | None = None


class Dispatcher:
    """The load of one worker, from its first to its last ledger row."""

    def __init__(
        self,
        plan: WorkerPlan,
        report: Callable[[EndRow], None],
        clock: MasterClock | None = None,
        user_count: Callable[[], int] | None = None,
    ) -> None:
        """Prepare the load; `run` starts it. `report` tells Locust of a request. `clock` is the master's, on a worker of
        another machine. `user_count` gives Locust's users here, which replace the plan's once edited in the web UI.
        """
        self.plan = plan
        folder = RunFolder(plan.folder)
        self.control = Control(Tail(folder.control))
        self.failure: BaseException | None = None
        self.ended = flag()
        self._report, self._user_count = report, user_count
        self._planned_users = 0  # users of the current phase
        self._phase_end_ns: int | None = None  # of the current phase, where the profile sets it
        self._surplus_users = 0  # users that leave as soon as they have their answer
        self._join_phase: Callable[[Slot], None] | None = None  # work of a user added during a closed phase
        self._recorder = RequestRecorder(folder.requests(plan.worker), plan.worker, clock)
        # On the master's machine the run itself watches the disk.
        self._disk = DiskMonitor(plan.folder) if clock is not None else None
        self._timer = Timer()
        self._receiver = Receiver(self._bracket_slice, self._timer, plan.target)
        self._users: list[User] = []
        self._free_users: list[User] = []
        self._cause = flag()  # set when an event makes a recorded request due
        self._watched: dict[str, str] = {}  # recorded requests whose tokens others wait for, with their ids here
        self._send = self._run_step if plan.sessions else self._run_request
        self._hands = Hands(self._run_turn, self._recorder.write, lambda: Slot(plan.target, self._receiver.collect))
        self._idle = flag()
        self._idle.set()
        self._busy_users = 0

    def run(self) -> None:
        """Run the load: begin row, phases, end row. Never raises: `failure` holds an unwritable ledger or a bug of ours."""
        allow_many_open_files()
        # Objects that exist now stay: searching them for garbage again and again would only delay timestamps.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        try:
            self._recorder.write(
                {"row": "load", "at_ns": time.monotonic_ns(), "what": "begin", "reader": self._receiver.reader}
            )
            tasks = [spawn(self._repeat, s, w) for s, w in self._periodic_tasks()]
            try:
                self._run_phases()
                self._drain()
            finally:
                for task in tasks:
                    task.kill()
                self._hang_up("stopped")
            self._recorder.fold()
            self._recorder.heartbeat(len(self._users))
            self._recorder.write(
                {"row": "load", "at_ns": time.monotonic_ns(), "what": "end", "why": self.control.end_reason}
            )
            self._recorder.close()
        except Exception as e:  # noqa: BLE001 - whatever broke here, the run learns of it by our exit code
            self._fail(e)
        finally:
            gc.unfreeze()  # what Locust's sockets still hold is sent when they are collected at exit
            self._resize(0)
            self._receiver.close()
            self._timer.close()
            self.ended.set()

    def stop(self, grace_s: float) -> None:
        """End in order, as on the run's `stop`; for signals and Locust's own Stop."""
        self.control.apply("stop", grace_s)

    def write_row(self, row: ClockRow) -> None:
        self._recorder.write(row)

    # ---- phases ----

    def _run_phases(self) -> None:
        for phase, steps in self.plan.phases():
            if self.control.stopping.is_set():
                return
            self._phase_end_ns = None if phase.for_s is None else time.monotonic_ns() + int(phase.for_s * NS_PER_S)
            if phase.replay is not None:
                self._run_replay(phase, phase.replay, steps)
            else:
                (self._run_open if phase.open else self._run_closed)(phase, steps)
            if self.failure is not None:
                return

    def _run_open(self, phase: WorkerPhase, steps: Iterator[Step]) -> None:
        """Send each step at its due time; without a free slot it is missed."""
        self._resize(phase.slots)
        begin_ns = time.monotonic_ns() - int(phase.behind_s * 1e9)
        round_: int | None = None
        for step in steps:
            if step.round != round_:
                self._change_round(phase, round_, step.round)
                if round_ is not None and phase.drain:
                    # The next burst meets an idle server, even if it is later than planned.
                    begin_ns = max(begin_ns, time.monotonic_ns() - int((step.due_s or 0.0) * 1e9))
                round_ = step.round
            due_ns = begin_ns + int((step.due_s or 0.0) * 1e9)
            prepared = None if self.control.paused else self.plan.build_request(step)
            self._wait_until(due_ns)
            if self.control.stopping.is_set():
                break
            if not self._free_users:
                self._recorder.miss(step, "server_down" if self.control.paused else "no_slot")
            elif not self.control.may_send():
                self._recorder.miss(step, "server_down")
            else:
                self._recorder.note_lag(time.monotonic_ns() - due_ns)
                self._assign(partial(self._send, prepared or self.plan.build_request(step), due_ns))
                sleep(0)  # send it now, not when the next one has been built
        self._change_round(phase, round_, None)

    def _run_replay(self, phase: WorkerPhase, recorded: RequestTrace, steps: Iterator[Step]) -> None:
        """Send recorded requests when their causes have happened."""
        self._resize(phase.slots)
        for round_, group in groupby(steps, lambda step: step.round):
            if self.control.stopping.is_set():
                break
            self._recorder.phase(phase.index, round_, "begin")
            self._run_replay_round(phase, recorded, list(group))
            self._drain()
            self._recorder.phase(phase.index, round_, "end")

    def _run_replay_round(self, phase: WorkerPhase, recorded: RequestTrace, steps: list[Step]) -> None:
        by_position = {step.ordinal: step for step in steps}
        sends = [recorded.sends[position] for position in sorted(by_position)]
        ordered = [by_position[position] for position in sorted(by_position)]
        order = ReplayOrder(sends, time.monotonic_ns(), phase.speed)
        prepared: Request | None = None
        while not order.done and not self.control.stopping.is_set():
            due_ns = order.next_due_ns
            if due_ns is None or due_ns > time.monotonic_ns():
                poll_ns = time.monotonic_ns() + int((TOKEN_POLL_S if self._watched else CONTROL_POLL_S) * 1e9)
                self._cause.wait(max(0.0, (min(due_ns or poll_ns, poll_ns) - time.monotonic_ns()) / 1e9))
                self._cause.clear()
                self._note_tokens(order)
                continue
            due_ns, position = order.pop_due()
            if not self._free_users or not self.control.may_send():
                busy = not self._free_users and not self.control.paused
                self._recorder.miss(ordered[position], "no_slot" if busy else "server_down")
                order.note_end(sends[position].id, time.monotonic_ns())
                continue
            prepared = self.plan.build_request(ordered[position])
            self._recorder.note_lag(time.monotonic_ns() - due_ns)
            self._assign(partial(self._run_recorded, order, sends[position].id, prepared, due_ns))
            sleep(0)

    def _run_recorded(self, order: ReplayOrder, name: str, request: Request, due_ns: int, slot: Slot) -> None:
        if order.note((name, "begin", 1), time.monotonic_ns()):
            self._cause.set()
        if order.waits_for_tokens(name):
            self._watched[name] = request.id
        self._run_request(request, due_ns, slot)
        self._watched.pop(name, None)
        if order.note_end(name, time.monotonic_ns()):
            self._cause.set()

    def _note_tokens(self, order: ReplayOrder) -> None:
        for name, request_id in list(self._watched.items()):
            exchange = self._recorder.in_flight.get(request_id)
            if exchange is not None and exchange.tokens:
                order.note_tokens(name, exchange.tokens, time.monotonic_ns())

    def _wait_until(self, due_ns: int) -> None:
        """Wait until `due_ns` or the end of the load. If late, read arrivals first."""
        now_ns = time.monotonic_ns()
        if now_ns >= due_ns:
            self._receiver.yield_to_reads()
        while now_ns < due_ns and not self.control.stopping.is_set():
            self._timer.wait_until(min(due_ns, now_ns + int(CONTROL_POLL_S * 1e9)))
            now_ns = time.monotonic_ns()

    def _run_closed(self, phase: WorkerPhase, steps: Iterator[Step]) -> None:
        self._resize(phase.slots)
        begin_ns = time.monotonic_ns() - self.control.paused_ns()
        rounds = Rounds(steps, partial(self._recorder.phase, phase.index), drain=phase.drain)
        self._join_phase = partial(self._run_user, phase, rounds, begin_ns)
        while self._phase_continues(phase, begin_ns) and rounds.begin_round():
            while self._free_users:
                self._assign(self._join_phase)
            self._drain()
            while not self._users and self._phase_continues(phase, begin_ns):
                self.control.stopping.wait(CONTROL_POLL_S)  # the web UI has removed all users
        self._join_phase = None
        rounds.end_round()

    def _run_user(self, phase: WorkerPhase, rounds: Rounds, begin_ns: int, slot: Slot) -> None:
        while (
            self._phase_continues(phase, begin_ns)
            and not self._retire_user()
            and (step := rounds.next_step()) is not None
        ):
            prepared = self.plan.build_request(step)
            begun_ns = time.monotonic_ns()
            row = self._send(prepared, begun_ns, slot)
            pause_s = self.plan.pause_s(row, (time.monotonic_ns() - begun_ns) / 1e9, slot)
            if phase.for_s is not None:
                pause_s = min(pause_s, phase.for_s - self._phase_time_s(begin_ns))
            if pause_s > 0:
                self._recorder.backed_off += 1
                self.control.stopping.wait(pause_s)

    def _retire_user(self) -> bool:
        """True if this user has to leave, as there are too many."""
        self._surplus_users -= (one := self._surplus_users > 0)
        return one

    def _phase_continues(self, phase: WorkerPhase, begin_ns: int) -> bool:
        """Wait while paused. Returns False at the end of a closed phase. Paused time is not counted."""
        if not self.control.wait():
            return False
        return phase.for_s is None or self._phase_time_s(begin_ns) < phase.for_s

    def _phase_time_s(self, begin_ns: int) -> float:
        return (time.monotonic_ns() - self.control.paused_ns() - begin_ns) / 1e9

    def _change_round(self, phase: WorkerPhase, finished: int | None, next_round: int | None) -> None:
        """Record a change of rounds. After the last one (None) wait for all requests."""
        if finished is not None:
            if phase.drain or next_round is None:
                self._drain()
            self._recorder.phase(phase.index, finished, "end")
        if next_round is not None:
            self._recorder.phase(phase.index, next_round, "begin")

    def _drain(self) -> None:
        """Wait until nothing is in flight; after a stop only for its grace time."""
        while self._busy_users:
            if self.control.stopping.is_set():
                grace_s = STOP_GRACE_S if self.control.grace_s is None else self.control.grace_s
                self._idle.wait(grace_s)
                self._hang_up("stopped")
                self._idle.wait(5)  # requests that were hung up still write their rows
                return
            self._idle.wait(CONTROL_POLL_S)

    def _hang_up(self, why: str) -> None:
        for exchange in list(self._recorder.in_flight.values()):
            exchange.end("hung_up", why)

    def _resize(self, users: int) -> None:
        """Set the number of users, or use the one set in the web UI. Surplus users leave when free."""
        self._planned_users = users
        if users and self.control.manual_users and self._user_count is not None and not self.control.stopping.is_set():
            users = self._user_count()
        while len(self._users) < users:
            user = User(Slot(self.plan.target, self._receiver.collect))
            self._users.append(user)
            self._free_users.append(user)
        while len(self._users) > users and self._free_users:
            user = self._free_users.pop()
            user.slot.close()
            self._users.remove(user)
            if user.greenlet is not None:
                resume(user.greenlet)  # it ends, as it has no work
        self._surplus_users = max(0, len(self._users) - users)

    def _poll_control(self) -> None:
        self.control.read()
        if self._disk is not None and (change := self._disk.poll(time.monotonic())) is not None:
            change["text"] = f"on {socket.gethostname()} {change['text']}"
            self._recorder.write(change)
        self._recorder.set_compact(self.control.compact_rows or (self._disk is not None and self._disk.low))
        if self.control.manual_users:
            self._resize(self._planned_users)
            while self._free_users and self._join_phase is not None:
                self._assign(self._join_phase)

    def _assign(self, work: Callable[[Slot], object]) -> None:
        user = self._free_users.pop()
        self._busy_users += 1
        self._idle.clear()
        user.work = work
        if user.greenlet is None:
            user.greenlet = spawn(self._serve, user)  # kept: a new greenlet costs ten times a wake-up
        else:
            resume(user.greenlet)

    def _serve(self, user: User) -> None:
        while user.work is not None:
            try:
                user.work(user.slot)
            except Exception as e:  # noqa: BLE001 - a greenlet's exception would only be printed, and the load would continue unrecorded
                self._fail(e)
            user.work = None
            self._free_users.append(user)
            self._busy_users -= 1
            if not self._busy_users:
                self._idle.set()
            hub().switch()

    # ---- one request ----

    def _run_step(self, request: Request, due_ns: int, slot: Slot) -> EndRow:
        if request.step.traffic not in self.plan.sessions:
            return self._run_request(request, due_ns, slot)
        return SessionRun(self.plan, self.control, self._hands, request).run(due_ns, slot)

    def _run_request(self, request: Request, due_ns: int, slot: Slot) -> EndRow:
        return self._run_turn(request, due_ns, slot, None)[0]

    def _run_turn(
        self, request: Request, due_ns: int, slot: Slot, least: int | None
    ) -> tuple[EndRow, AnswerReader | None]:
        """Send one request, and again after each 429 that is waited for. Every try is due when the first one was, so that
        latencies have the waits in them.
        """
        tried = request
        while True:
            row, answer = self._run_try(tried, due_ns, slot, least)
            if (wait_ns := row["detail"].get(WAIT)) is None:
                return row, answer
            self.control.stopping.wait(wait_ns / NS_PER_S)
            self.control.wait()
            tried = self.plan.again(request, tried.tries + 1)

    def _run_try(
        self, request: Request, due_ns: int, slot: Slot, least: int | None
    ) -> tuple[EndRow, AnswerReader | None]:
        """Send one request, with those that its behaviour pipelines behind it. A prompt of fewer tokens than `least`, of a
        session, is recorded as a mismatch.
        """
        behaviour: Behaviour = request.step.behaviour_options
        exchange = Exchange(request, slot, self._recorder.progress, due_ns)
        self._recorder.begin(exchange)
        followers = self._begin_followers(exchange) if behaviour.follower_count(request.step.seed) else ()
        if request.tries and self.control.stopping.is_set():
            exchange.end("hung_up", "stopped")
            row = exchange.end_row()
        else:
            row = behaviour.act(exchange)
        if least is not None and request.tokens is None and (row["prompt_tokens"] or least) < least:
            row["planned_tokens"], row["length_mismatch"] = least, True
        if not followers and (wait_ns := self.plan.wait_ns(row, request.tries, self._phase_end_ns)) is not None:
            row["detail"] = {**row["detail"], WAIT: wait_ns}
        self._end(exchange, row)
        for follower in followers:
            self._end(follower, behaviour.act_pipelined(follower, exchange))
        return row, exchange.answer

    def _begin_followers(self, first: Exchange) -> list[PipelinedExchange]:
        before, found = first, []
        slot = Slot(self.plan.target, self._receiver.collect)  # it keeps no connection
        for request in self.plan.pipelined(first.request):
            found.append(PipelinedExchange(request, before, slot, self._recorder.progress))
            self._recorder.begin(found[-1])
            before = found[-1]
        first.pipelined = found
        return found

    def _end(self, exchange: Exchange, row: EndRow) -> None:
        self.plan.redact(row)
        if row["outcome"] == "connect_error" and _TOO_MANY_OPEN_FILES in (row["error"] or ""):
            # The request never left this machine, so the server is not to blame. The next row may find no handle either.
            raise LedgerError(
                f"no file handle is left for a connection ({row['error']}): raise `ulimit -n`, or use fewer users"
            )
        self._recorder.end(exchange, row)
        self._report(row)

    # ---- beside the dispatcher ----

    def _periodic_tasks(self) -> list[tuple[float, Callable[[], None]]]:
        return [
            (SWEEP_S, self._sweep),
            (CONTROL_POLL_S, self._poll_control),
            (HEARTBEAT_S, lambda: self._recorder.heartbeat(len(self._users))),
            (1.0, self._recorder.fold),
        ]

    def _repeat(self, every_s: float, work: Callable[[], None]) -> None:
        next_s = time.monotonic() + every_s
        try:
            while True:
                sleep(max(0.0, next_s - time.monotonic()))
                # A timer is late by as long as something blocked the hub; the receiver's planned waits do not count.
                self._recorder.note_lag(max(0, int((time.monotonic() - next_s) * 1e9) - self._receiver.batch_ns))
                next_s = max(next_s + every_s, time.monotonic())
                work()
        except Exception as e:  # noqa: BLE001 - without heartbeats and timeouts the load must stop
            self._fail(e)

    def _bracket_slice(self, begins: bool) -> None:
        """Hold rows during a slice of arrivals, to write them together."""
        try:
            self._recorder.hold() if begins else self._recorder.release()
        except LedgerError as e:
            self._fail(e)

    def _sweep(self) -> None:
        now_ns = time.monotonic_ns()
        for exchange in list(self._recorder.in_flight.values()):
            exchange.sweep(now_ns)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.stop(0.0)
