"""Run sessions: conversations that send the server's own answers back.

A user runs a whole session, one request after the other. Continuations of one history run at the same time, each on a
connection of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from loadchaos.core.ledger.rows import AnswerRow, ConversationEnd, ConversationRow
from loadchaos.core.model import Reply
from loadchaos.core.session_ids import suffix
from loadchaos.load.payloads import live
from loadchaos.load.wire.completion import Completion
from loadchaos.load.wire.request import WireRequest
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.greenlets import Flag, spawn
from loadchaos.load.worker.worker_plan import WorkerPlan


class SendTurn(Protocol):
    """Sends a request and records it.

    `least` is the fewest prompt tokens that the server can count; None: unknown.
    """

    def __call__(
        self, wire: WireRequest, due_ns: int, slot: Slot, least: int | None, /
    ) -> tuple[Reply, Completion | None]:
        """Return the reply and the answer that it was made of."""


class Going(Protocol):
    """State of the load: it stops, or it is paused as the server is down."""

    stopping: Flag

    @property
    def paused(self) -> bool:
        """True if no request may be sent now."""


class Hands(NamedTuple):
    """Functions of a worker that its sessions use.

    They send, write rows, and open a slot for a continuation.
    """

    send: SendTurn
    write: Callable[[ConversationRow | AnswerRow], None]
    new_slot: Callable[[], Slot]


@dataclass
class _Tally:
    """Counts of a session and its continuations; `why` it ended badly."""

    requests: int = 0
    done: int = 0
    lost: int = 0
    left: int = 0
    cut: int = 0
    tool_calls: int = 0
    bad_calls: int = 0
    think_ns: int = 0
    why: str = ""

    def lose(self, turns: int, why: str) -> None:
        """Count turns that were lost with the server's answer."""
        self.lost += turns
        self.why = why

    def leave(self, turns: int, why: str) -> None:
        """Count turns that we did not send."""
        self.left += turns
        self.why = self.why or why

    @property
    def end(self) -> ConversationEnd:
        """End of the session: a lost turn counts before one that was not sent."""
        return "lost" if self.lost else "left" if self.left else "finished"


@dataclass(frozen=True)
class _Path:
    """Part of a session that runs in order.

    It is the common beginning, or a continuation. It ends when `until` questions are answered. `turns` are those of the
    session that depend on it.
    """

    branch: int
    until: int
    turns: int


class SessionRun:
    """One session, from its first request to its last answer."""

    def __init__(self, plan: WorkerPlan, control: Going, hands: Hands, first: WireRequest) -> None:
        self._plan, self._control, self._hands, self._first = plan, control, hands, first
        self._session = live.Session(first.request.step, plan.facts)
        self._tally = _Tally()

    def run(self, due_ns: int, slot: Slot) -> Reply:
        """Run the session. Returns the last reply of the user."""
        session = self._session
        begin = self._row("begin", due_ns)
        self._hands.write({**begin, "planned_turns": session.planned_turns})
        path = _Path(0, session.fork, session.planned_turns)
        history, reply = self._run_path(path, session.begin(), self._first, due_ns, slot)
        if history is not None and session.branches:
            reply = self._run_branches(history, slot) or reply
        tally = self._tally
        end: ConversationRow = {
            **self._row("end", due_ns), "planned_turns": session.planned_turns, "end": tally.end, "why": tally.why,
            "turns": tally.done, "turns_lost": tally.lost, "turns_left": tally.left, "turns_cut": tally.cut,
            "requests": tally.requests, "tool_calls": tally.tool_calls, "bad_calls": tally.bad_calls,
            "think_ns": tally.think_ns,
        }  # fmt: skip
        self._hands.write(end)
        return reply

    def _row(self, what: str, due_ns: int) -> ConversationRow:
        step = self._first.request.step
        row: ConversationRow = {
            "row": "conversation", "at_ns": time.monotonic_ns(), "what": "begin" if what == "begin" else "end",
            "id": self._first.request_id, "step": step.index, "phase": step.phase, "traffic": step.traffic,
            "due_ns": due_ns, "planned_turns": 0,
        }  # fmt: skip
        return row

    def _run_branches(self, history: live.History, slot: Slot) -> Reply | None:
        """Run the continuations at the same time.

        Returns the last reply of the user's own.
        """
        failures: list[BaseException] = []
        replies: list[Reply] = []

        def run(branch: int, own: Slot) -> None:
            path = _Path(branch, self._session.turns, self._session.turns - self._session.fork)
            begin = replace(history, branch=branch)
            try:
                wire = self._next(path, begin, 1)
                if wire is not None:
                    reply = self._run_path(path, begin, wire, time.monotonic_ns(), own)[1]
                    if own is slot:
                        replies.append(reply)
            except Exception as e:  # noqa: BLE001 - raised below, in the user's greenlet
                failures.append(e)
            finally:
                if own is not slot:
                    own.close()

        others = [spawn(run, branch, self._hands.new_slot()) for branch in range(2, self._session.branches + 1)]
        run(1, slot)
        for other in others:
            other.join()
        if failures:
            raise failures[0]
        return replies[0] if replies else None

    def _run_path(
        self, path: _Path, history: live.History, wire: WireRequest, due_ns: int, slot: Slot
    ) -> tuple[live.History | None, Reply]:
        """Send the requests of a path.

        Returns (history, None if it ended early; last reply).
        """
        session, tally = self._session, self._tally
        begun, number = history.question, 1 if path.branch else 0
        while True:
            reply, completion = self._hands.send(wire, due_ns, slot, session.least_tokens(history))
            tally.requests += 1
            remaining = path.turns - (history.question - begun)
            if reply.outcome == "aborted":
                tally.leave(remaining, str(reply.detail.get("why") or "aborted"))
                return None, reply
            if reply.outcome != "ok" or completion is None:
                tally.lose(remaining, reply.outcome)
                return None, reply
            before, history = history, self._note_answer(wire, history, completion)
            tally.done += history.question - before.question
            if history.question == path.until:
                return history, reply
            if not session.fits(history, before, _used_tokens(reply)):
                tally.cut += path.turns - (history.question - begun)
                return None, reply
            number += 1
            following = self._next(
                _Path(path.branch, path.until, path.turns - (history.question - begun)), history, number
            )
            if following is None:
                return None, reply
            wire, due_ns = following, time.monotonic_ns()

    def _note_answer(self, wire: WireRequest, history: live.History, completion: Completion) -> live.History:
        """Record an answer and make the history with it."""
        contents = completion.contents()
        text, calls, reason = contents[0] if contents else ("", [], None)
        answer = live.answer_of(text, () if reason == "length" else calls)
        answer = self._plan.redact_answer(answer)
        self._tally.bad_calls += len(calls) - len(answer.calls)
        row: AnswerRow = {
            "row": "answer",
            "at_ns": time.monotonic_ns(),
            "id": wire.request_id,
            "text": answer.text,
            "calls": answer.calls_json(),
        }
        self._hands.write(row)
        after = self._session.answered(history, answer)
        self._tally.tool_calls += len(answer.calls) if after.round else 0
        return after

    def _next(self, path: _Path, history: live.History, number: int) -> WireRequest | None:
        """Wait and build the next request of a path; None if it must not be sent."""
        if history.round == 0 and (think_s := self._session.think_s(history)) > 0:
            begun_ns = time.monotonic_ns()
            self._control.stopping.wait(think_s)
            self._tally.think_ns += time.monotonic_ns() - begun_ns
        if self._control.stopping.is_set():
            self._tally.leave(path.turns, "stopped")
            return None
        if self._control.paused:
            self._tally.lose(path.turns, "server_down")
            return None
        return self._plan.build_request(self._session.step_of(history), suffix(path.branch, number))


def _used_tokens(reply: Reply) -> int | None:
    """Tokens of the prompt and its answer, as the server counted them."""
    if reply.prompt_tokens is None:
        return None
    return reply.prompt_tokens + (reply.completion_tokens or 0)
