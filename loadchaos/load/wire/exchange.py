"""One request on one connection, step by step: connect, send, receive, hang up, and what it came to.

A behaviour is written with these steps alone. Network errors never leave here: they are part of what a request comes
to, so a step answers False when the exchange is over, and `reply` says how it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from loadchaos.core.model import Reply
from loadchaos.load.wire.completion import Completion, completion
from loadchaos.load.wire.http1 import ResponseParser
from loadchaos.load.wire.outcome import MAX_ERROR_CHARS, End, OutcomeEvent, error_answer, in_words, of_end
from loadchaos.load.wire.request import Progress, WireRequest, WireTimeouts, length_of, request_head
from loadchaos.load.wire.sockets import RECEIVE_BYTES, Connection, Slot, Take

__all__ = ["CONNECT_AGAIN_S", "Exchange", "Progress", "WireRequest", "WireTimeouts", "length_of", "request_head"]

_JOIN_BYTES = 64 * 1024
_KEPT_ERROR_BYTES = 64 * 1024
_STALE_WITHIN_NS = 1_000_000_000
CONNECT_AGAIN_S = 5.0
_WORTH_TELLING_NS = 1_000_000
_REST_SLICE_S = 0.05


class Exchange:
    """One exchange. Take the steps in order, then `reply()`; `sweep` may be called from elsewhere at any time."""

    __slots__ = (
        "_bytes_in", "_bytes_out", "_connect_ns", "_connection", "_end", "_ended_from_outside", "_error_body",
        "_hang_up_at_ns", "_outside_why", "_parser", "_quiet_until_ns", "_resting", "_retries", "_send_ns",
        "_sent_all_ns", "_slot", "_why", "answer", "begun_ns", "behind", "connection_number", "due_ns", "first_body_ns",
        "first_byte_ns", "followed", "last_byte_ns", "left", "over", "progress", "reused", "sent_ns",
        "slowed", "step", "wire",
    )  # fmt: skip

    def __init__(self, wire: WireRequest, slot: Slot, progress: Progress, due_ns: int | None = None) -> None:
        self.wire = wire
        self.step = wire.request.step
        self.progress = progress
        self.begun_ns = time.monotonic_ns()
        self.due_ns = self.begun_ns if due_ns is None else due_ns
        self.sent_ns: int | None = None
        self.first_byte_ns: int | None = None
        self.first_body_ns: int | None = None
        self.last_byte_ns: int | None = None
        self.answer: Completion | None = None
        self.over = False
        self.slowed = False
        """Set by a behaviour that is slow on purpose: what its times say is its own doing."""
        self.behind: Sequence[Exchange] = ()
        """Whose answers come behind ours; the connection, and what has come of them, is `left` to the next."""
        self.followed = False
        self.left: tuple[Connection, bytes] | None = None
        self._resting = False
        self._slot = slot
        self._parser = ResponseParser()
        self._end: End | None = None
        self._why = ""
        self._ended_from_outside: End | None = None
        self._outside_why = ""
        self._hang_up_at_ns: int | None = None
        self._quiet_until_ns = 0
        self._error_body = b""
        self._bytes_in = 0
        self._bytes_out = 0
        self._connect_ns = 0
        self._send_ns = 0
        self._sent_all_ns = 0
        self._retries = 0
        self._connection, dropped = (None, False) if wire.fresh else slot.take(self.begun_ns)
        self.reused = self._connection is not None
        if dropped:
            self._retries += 1
        if self._connection is None:
            slot.opened += 1
        self.connection_number = self._connection.number if self._connection else slot.opened

    # ---- the steps ----

    def connect(self, receive_buffer_bytes: int | None = None) -> bool:
        """Have a connection: the slot's own when it is still good, else a new one."""
        if self._connection is not None:
            return True
        begun = time.monotonic_ns()
        limit_s = min(self.wire.limits.first_byte_ns, self.wire.limits.total_ns) / 1e9
        try:
            self._connection = Connection.open(
                self._slot.target, self.connection_number, limit_s, receive_buffer_bytes=receive_buffer_bytes
            )
        except OSError as e:
            return self._finish("unreached", in_words(e))
        self._connect_ns = time.monotonic_ns() - begun
        if self._ended_from_outside:  # while we were connecting
            return self._finish("cut", "")
        return True

    def send(self) -> bool:
        """Send the whole request at once."""
        head, body = self.wire.head, self.wire.request.body
        if len(body) <= _JOIN_BYTES:
            return self.send_piece(head + body)
        return self.send_piece(head) and self.send_piece(body)

    def send_piece(self, piece: bytes, *, whole: bool = True) -> bool:
        """Send some bytes of the request; where it never gets `whole`, a stale connection is not tried again."""
        assert self._connection is not None, "connect() comes first"
        now = time.monotonic_ns()
        if self.sent_ns is None:
            self.sent_ns = now
        try:
            self._connection.send(piece)
        except OSError as e:
            # A server may refuse early and close; its answer may be waiting to be read.
            if whole and self._retry_as_stale():
                return True
            return self._read_early_answer(e)
        self._bytes_out += len(piece)
        self._sent_all_ns = time.monotonic_ns()
        self._send_ns += self._sent_all_ns - now
        return True

    def receive(self, most: int = RECEIVE_BYTES) -> bool:
        """Wait for the next bytes and take them in, `most` at a time; False when the exchange is over."""
        if self.over:
            return False
        assert self._connection is not None, "connect() comes first"
        try:
            at_ns, data = self._connection.receive(most)
        except OSError as e:
            return self._broke_off(e)
        return self._take(at_ns, data) if data else self._closed()

    def receive_all(self, until: Callable[[], bool] | None = None) -> bool:
        """Take in what comes until the exchange is over (False) or `until`, asked after each read, says so (True)."""
        while not self.over:
            assert self._connection is not None, "connect() comes first"
            try:
                if self._slot.collect(self._connection, self._take if until is None else self._take_until(until)):
                    self._closed()
                elif not self.over:
                    return True
            except OSError as e:
                self._broke_off(e)
        return False

    def rest(self, seconds: float) -> bool:
        """Do nothing for so long, not even read; silence is ours then. False when it was ended from outside."""
        until_s = time.monotonic() + seconds
        self._resting = True
        while (left_s := until_s - time.monotonic()) > 0 and not self._ended_from_outside:
            time.sleep(min(left_s, _REST_SLICE_S))
        self._resting = False
        return self._ended_from_outside is None

    def hang_up(self, *, reset: bool = False) -> None:
        """End it here, as planned; with a reset where that is asked for."""
        if not self.over:
            if reset and self._connection is not None:
                self._connection.reset()
            self._finish("hung_up", "")

    def hang_up_after(self, seconds: float) -> None:
        """Have the sweeper hang up then, whatever is going on."""
        self._quiet_until_ns = 0
        self._hang_up_at_ns = time.monotonic_ns() + int(seconds * 1e9)

    @property
    def broke(self) -> End | None:
        """How the exchange broke, where it was not its end nor our will: `cut` or `unreached`."""
        return "cut" if self._end == "not_http" else self._end if self._end in {"cut", "unreached"} else None

    @property
    def tokens(self) -> int:
        """Chunks with content so far."""
        return 0 if self.answer is None else self.answer.chunks

    @property
    def answered(self) -> bool:
        """Whether the answer has said why it ended; its last bytes ([DONE], usage) may be still to come."""
        return self.answer is not None and self.answer.finished

    # ---- from outside ----

    def sweep(self, now_ns: int) -> None:
        """End it when a limit has passed; whoever waits in a step wakes up."""
        if now_ns < self._quiet_until_ns or self.over or self._ended_from_outside:
            return
        limits = self.wire.limits
        if self._hang_up_at_ns is not None and now_ns >= self._hang_up_at_ns:
            self.end("hung_up", "")
        elif now_ns - self.begun_ns > limits.total_ns:
            self.end("timeout", f"not over after {limits.total_ns / 1e9:g} s")
        elif self.sent_ns is not None and not self._resting:
            bound = limits.first_byte_ns if self.first_body_ns is None else limits.between_bytes_ns
            if self.silence_ns(now_ns) > bound:
                what = "no byte of the answer" if self.first_body_ns is None else "no further byte"
                self.end("stalled", f"{what} for {bound / 1e9:g} s")
            elif self._hang_up_at_ns is None:
                # Nothing can pass before this: neither the silence that goes on nor one that begins now.
                silence_ns = min(bound - self.silence_ns(now_ns), limits.first_byte_ns, limits.between_bytes_ns)
                self._quiet_until_ns = min(now_ns + silence_ns, self.begun_ns + limits.total_ns)

    def end(self, end: End, why: str) -> None:
        """End it from another greenlet, with what that means."""
        if self.over or self._ended_from_outside:
            return
        self._ended_from_outside, self._outside_why = end, why
        if self._connection is not None:
            self._connection.end()

    def silence_ns(self, now_ns: int) -> int:
        """How long nothing has come: since the last byte of the body, or since sending."""
        since = self.last_byte_ns if self.first_body_ns is not None else self._sent_all_ns or self.sent_ns
        return now_ns - (since or self.begun_ns)

    # ---- the end ----

    def reply(self) -> Reply:
        """What it came to. Every call has exactly one outcome, whatever happened to it."""
        if not self.over:
            self._finish("hung_up", "")
        now = time.monotonic_ns()
        decisive = self._decisive(now)
        first, *others = decisive
        a = self.answer
        error = first.text[:MAX_ERROR_CHARS] if first.outcome != "ok" else ""
        return Reply(
            outcome=first.outcome,
            status=self._parser.status if self._parser.has_head else None,
            sent_ns=self.sent_ns,
            first_byte_ns=self.first_byte_ns,
            first_token_ns=a.first_token_ns if a else None,
            first_answer_ns=a.first_answer_ns if a else None,
            last_byte_ns=self.last_byte_ns,
            end_ns=now,
            chunks=a.chunks if a else 0,
            itl_hist=a.itl_hist if a and not self.slowed else {},
            largest_gap_ns=self._largest_gap(now, first),
            finish_reason=a.finish_reason if a else None,
            prompt_tokens=a.prompt_tokens if a else None,
            completion_tokens=a.completion_tokens if a else None,
            cached_tokens=a.cached_tokens if a else None,
            request_id=self._parser.request_id or (a.answer_id if a else None),
            error=error or None,
            error_code=first.code,
            detail=self._detail(first),
            evidence=[f"{d.outcome}: {d.text}"[:MAX_ERROR_CHARS] for d in others if d.outcome != "ok"][:20],
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            text=a.text if a else "",
        )

    # ---- inside ----

    def _take_until(self, until: Callable[[], bool]) -> Take:
        return lambda at_ns, data: self._take(at_ns, data) and not until()

    def _broke_off(self, error: OSError) -> bool:
        """Reading failed; True when it goes on with a new connection."""
        return self._retry_as_stale() or self._finish("cut", in_words(error))

    def _closed(self) -> bool:
        """The peer closed; True when it goes on with a new connection."""
        if self._retry_as_stale():
            return True
        self._parser.eof()
        if self._parser.done and not self._ended_from_outside:
            return self._finish("complete", "")
        return self._finish("cut", "the server closed the connection before the end of its answer")

    def _take(self, at_ns: int, data: bytes) -> bool:
        self._bytes_in += len(data)
        self.progress.bytes_in += len(data)
        self.last_byte_ns = at_ns
        answer = self.answer
        # Nearly every packet of a stream is one chunk: it can neither end the body nor break it.
        if answer is not None and self.first_body_ns is not None and (chunk := self._parser.whole_chunk(data)):
            self.progress.tokens += answer.add(at_ns, chunk)
            return True
        if self.first_byte_ns is None:
            self.first_byte_ns = at_ns
        parser = self._parser
        had_head = parser.has_head
        body = parser.feed(data)
        if not had_head and parser.has_head and 200 <= (parser.status or 0) < 300:
            declared = parser.headers.get("content-type", "").startswith("text/event-stream")
            self.answer = Completion(self.wire.rules, asked_stream=self.wire.request.stream, declared_stream=declared)
        if body:
            if self.first_body_ns is None:
                self.first_body_ns = at_ns
            if self.answer is not None:
                self.progress.tokens += self.answer.add(at_ns, body)
            elif len(self._error_body) < _KEPT_ERROR_BYTES:
                self._error_body += body
        if parser.broken is not None:
            return self._finish("not_http", parser.broken)
        return self._finish("complete", "") if parser.done else True

    def _finish(self, end: End, why: str) -> bool:
        """The exchange is over; an end from outside explains the error it caused."""
        self.over = True
        if self._ended_from_outside and end != "complete":
            end, why = self._ended_from_outside, self._outside_why
        self._end, self._why = end, why
        connection, self._connection = self._connection, None
        if connection is None:
            return False
        if end == "complete" and self._parser.reusable and not self._ended_from_outside and not self.wire.fresh:
            self._slot.give_back(connection, time.monotonic_ns())
        elif end == "complete" and self.followed and not self._ended_from_outside:
            self.left = connection, self._parser.excess
        else:
            connection.close()
        return False

    def _retry_as_stale(self) -> bool:
        """Send again on a new connection, once, when the old one was kept alive and closed before a byte came.

        Only right after sending: a connection that goes later was not stale, the server let go of the request.
        """
        fresh = not self.reused or self.first_byte_ns is not None or self._retries or self._ended_from_outside
        began = self._sent_all_ns or self.sent_ns or 0
        if fresh or time.monotonic_ns() - began > _STALE_WITHIN_NS:
            return False
        self._retries += 1
        if self._connection is not None:
            self._connection.close()
        self._slot.opened += 1
        try:
            self._connection = Connection.open(self._slot.target, self._slot.opened, CONNECT_AGAIN_S)
            self._connection.send(self.wire.head + self.wire.request.body)
        except OSError:
            return False  # nobody is there any more: then it was the server that went, and the first error stands
        self._sent_all_ns = time.monotonic_ns()
        return True

    def _read_early_answer(self, error: OSError) -> bool:
        """Sending failed; take in what the server said before it closed, if anything."""
        connection = self._connection
        while not self.over and connection is not None and self._connection is connection:
            try:
                at_ns, data = connection.receive()
            except OSError:
                break
            if not data:
                break
            self._take(at_ns, data)
        return False if self.over else self._finish("cut", in_words(error))

    def _decisive(self, now_ns: int) -> list[OutcomeEvent]:
        end = self._end or "hung_up"
        ending = [] if end == "complete" else [of_end(end, self._why)]
        parser = self._parser
        if not parser.has_head:
            return ending or [OutcomeEvent("protocol_error", "an end without a beginning")]
        status = parser.status or 0
        if self.answer is None:
            told = error_answer(status, parser.reason, parser.headers, self._error_body, self.wire.rules)
            return [told, *ending]
        self.answer.close(self.last_byte_ns or now_ns, complete=end == "complete")
        if not self.answer.is_stream and self.answer.has_text:
            self.progress.tokens += 1  # one that came whole is progress, too
        if not ending and not self.answer.done_seen:
            ending = [completion(self.answer)]
        return [*self.answer.decisive, *ending]

    def _largest_gap(self, now_ns: int, first: OutcomeEvent) -> int:
        if self.answer is None or self.slowed:
            return 0
        gap = self.answer.largest_gap_ns
        if first.outcome in {"stalled", "timeout"} and self.answer.last_token_ns is not None:
            gap = max(gap, now_ns - self.answer.last_token_ns)
        return gap

    def _detail(self, first: OutcomeEvent) -> dict[str, Any]:
        detail: dict[str, Any] = {}
        if self.slowed:
            detail["slowed"] = True
        if self._retries:
            detail["stale_retry"] = self._retries
        if self._send_ns > _WORTH_TELLING_NS:
            detail["send_ns"] = self._send_ns
        if self._connect_ns > _WORTH_TELLING_NS:
            detail["connect_ns"] = self._connect_ns
        if self._parser.interim:
            detail["interim"] = self._parser.interim
        if self._end == "hung_up" and first.outcome != "aborted":
            detail["hung_up"] = True
        elif self._end == "hung_up" and self._why:
            detail["why"] = self._why
        if self.answer is not None and first.outcome == "ok":
            detail |= self.answer.oddities(self._parser.headers.get("content-type", ""))
        return detail
