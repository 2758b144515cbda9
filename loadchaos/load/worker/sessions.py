"""Run sessions: conversations that send the server's own answers back.

A user runs a whole session, one request after the other. Continuations of one history run at the same time, each on a
connection of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from loadchaos.core.ledger.rows import AnswerRow, BeginOrEnd, ConversationEnd, ConversationRow, EndRow
from loadchaos.core.session_ids import suffix
from loadchaos.load.payloads import live
from loadchaos.load.wire.answer_reader import AnswerReader
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.greenlets import Flag, spawn
from loadchaos.load.worker.worker_plan import WorkerPlan

_BYTES_PER_TOKEN = 4
"""Bytes of text in a token, for answers whose chunks hold several tokens."""


class SendTurn(Protocol):
    """Sends a request and records it. `least` is the fewest prompt tokens that the server can count; None: unknown."""

    def __call__(
        self, request: Request, due_ns: int, slot: Slot, least: int | None, /
    ) -> tuple[EndRow, AnswerReader | None]: ...


class Going(Protocol):
    """State of the load: it stops, or it is paused as the server is down."""

    stopping: Flag
    paused: bool


class Hands(NamedTuple):
    """Functions of a worker that its sessions use. They send, write rows, and open a slot for a continuation."""

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
        self.lost += turns
        self.why = why

    def leave(self, turns: int, why: str) -> None:
        self.left += turns
        self.why = self.why or why

    @property
    def end(self) -> ConversationEnd:
        """End of the session. A lost turn counts before one that was not sent, this one before one without room."""
        return "lost" if self.lost else "left" if self.left else "cut" if self.cut else "finished"


class _Position(NamedTuple):
    """A history with the tokens that it has in a prompt, estimated from above."""

    history: live.History
    tokens: int


@dataclass(frozen=True)
class _Path:
    """Part of a session that runs in order. It is the common beginning, or a continuation. It ends when `until`
    questions are answered. `turns` are those of the session that depend on it.
    """

    branch: int
    until: int
    turns: int


class SessionRun:
    """One session, from its first request to its last answer."""

    def __init__(self, plan: WorkerPlan, control: Going, hands: Hands, first: Request) -> None:
        self._plan, self._control, self._hands, self._first = plan, control, hands, first
        self._session = live.Session(first.step, plan.facts)
        self._tally = _Tally()

    def run(self, due_ns: int, slot: Slot) -> EndRow:
        """Run the session. Returns the last row of the user."""
        session = self._session
        begin = self._row("begin", due_ns)
        if session.tool_choice is not None:
            begin["tools"] = session.tool_choice
        self._hands.write(begin)
        path = _Path(0, session.fork, session.planned_turns)
        first = session.begin()
        fork, row = self._run_path(path, _Position(first, session.first_tokens(first)), self._first, due_ns, slot)
        if fork is not None and session.branches:
            row = self._run_branches(fork, slot) or row
        tally = self._tally
        end: ConversationRow = {
            **self._row("end", due_ns),
            "end": tally.end,
            "why": tally.why,
            "turns": tally.done,
            "turns_lost": tally.lost,
            "turns_left": tally.left,
            "turns_cut": tally.cut,
            "requests": tally.requests,
            "tool_calls": tally.tool_calls,
            "bad_calls": tally.bad_calls,
            "think_ns": tally.think_ns,
        }
        self._hands.write(end)
        return row

    def _row(self, what: BeginOrEnd, due_ns: int) -> ConversationRow:
        step = self._first.step
        return {
            "row": "conversation",
            "at_ns": time.monotonic_ns(),
            "what": what,
            "id": self._first.id,
            "step": step.index,
            "phase": step.phase,
            "traffic": step.traffic,
            "due_ns": due_ns,
            "planned_turns": self._session.planned_turns,
        }

    def _run_branches(self, fork: _Position, slot: Slot) -> EndRow | None:
        """Run the continuations at the same time. Returns the last row of the user's own."""
        failures: list[BaseException] = []
        rows: list[EndRow] = []

        def run(branch: int, own: Slot) -> None:
            path = _Path(branch, self._session.turns, self._session.turns - self._session.fork)
            begin = fork._replace(history=replace(fork.history, branch=branch))
            try:
                request = self._next(path, begin, 1)
                if request is not None:
                    row = self._run_path(path, begin, request, time.monotonic_ns(), own)[1]
                    if own is slot:
                        rows.append(row)
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
        return rows[0] if rows else None

    def _run_path(
        self, path: _Path, at: _Position, request: Request, due_ns: int, slot: Slot
    ) -> tuple[_Position | None, EndRow]:
        """Send the requests of a path. Returns (history at its end, None if it ended early; last row)."""
        tally = self._tally
        begun, number = at.history.question, 1 if path.branch else 0
        while True:
            row, completion = self._hands.send(request, due_ns, slot, self._session.least_tokens(at.history))
            tally.requests += 1
            remaining = path.turns - (at.history.question - begun)
            if row["outcome"] == "aborted":
                tally.leave(remaining, str(row["detail"].get("why") or "aborted"))
                return None, row
            if row["outcome"] != "ok" or completion is None:
                tally.lose(remaining, row["outcome"])
                return None, row
            before, at = at, self._note_answer(request, at, row, completion)
            tally.done += at.history.question - before.history.question
            if at.history.question == path.until:
                return at, row
            number += 1
            following = self._next(
                _Path(path.branch, path.until, path.turns - (at.history.question - begun)), at, number
            )
            if following is None:
                return None, row
            request, due_ns = following, time.monotonic_ns()

    def _note_answer(self, request: Request, at: _Position, row: EndRow, completion: AnswerReader) -> _Position:
        contents = completion.contents()
        text, calls, reason = contents[0] if contents else ("", [], None)
        answer = live.answer_of(text, () if reason == "length" else calls)
        answer = self._plan.redact_answer(answer)
        self._tally.bad_calls += len(calls) - len(answer.calls)
        self._hands.write(
            {
                "row": "answer",
                "at_ns": time.monotonic_ns(),
                "id": request.id,
                "text": answer.text,
                "calls": answer.calls_json(),
            }
        )
        after = self._session.answered(at.history, answer)
        self._tally.tool_calls += len(answer.calls) if after.round else 0
        sent = row["prompt_tokens"]
        sent = self._session.next_tokens(*at) if sent is None else sent
        used = sent + _answer_tokens(row, answer)
        return _Position(after, self._session.tokens_after(after, at.history, used))

    def _next(self, path: _Path, at: _Position, number: int) -> Request | None:
        """Wait and build the next request of a path; None if it must not be sent."""
        history = at.history
        if not self._session.fits(*at):
            self._tally.cut += path.turns
            return None
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


def _answer_tokens(row: EndRow, answer: live.SentBack) -> int:
    """Tokens of an answer, as the server counted them. Without its `usage` an estimate from above."""
    if row["completion_tokens"] is not None:
        return row["completion_tokens"]
    size = len(answer.text.encode()) + sum(len(c.name) + len(c.arguments.encode()) for c in answer.calls)
    return max(row["chunks"], size // _BYTES_PER_TOKEN)
