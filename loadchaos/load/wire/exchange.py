"""One request on one connection: connect, send, receive, hang up; then its end row.

A behaviour is written with these steps alone. Network errors never leave here: they are part of the outcome. A step
returns False when the exchange has ended, and `end_row` says how it ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from loadchaos.core.histogram import bucket
from loadchaos.core.latency import INTERRUPTED, LOWER_BOUNDS
from loadchaos.core.ledger.rows import EndRow, WrongPart
from loadchaos.core.model import READS_AT_ONCE
from loadchaos.core.outcome_rules import CLOSED_UNANNOUNCED, MAX_ERROR_CHARS, End, OutcomeEvent, describe_os_error
from loadchaos.core.units import NS_PER_S
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.decision import (
    KEPT_ERROR_BYTES,
    ExchangeEnd,
    ResponseHead,
    content_of,
    decide,
    other_model,
    signs,
    text_ratio,
)
from loadchaos.load.wire.http1 import ResponseParser
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sockets import RECEIVE_BYTES, Connection, Feed, Slot

if TYPE_CHECKING:
    from loadchaos.load.wire._native import Lane

_JOIN_BYTES = 64 * 1024
_STALE_WITHIN_NS = NS_PER_S
_UNANNOUNCED_WITHIN_NS = 100_000_000  # a server that closes later has begun to work on the request, or died
SWEEP_S = 0.05
"""Period at which `Exchange.sweep` is called."""
CONNECT_AGAIN_S = 5.0
_WORTH_REPORTING_NS = 1_000_000
_MOST_HEADER_CHARS = 40
_KEPT_ALIVE_NS = NS_PER_S // 2
_PAUSE_SLICE_S = 0.05


@dataclass
class Progress:
    """Tokens and bytes that one worker received since its last heartbeat."""

    tokens: int = 0
    bytes_in: int = 0


class Exchange:
    """A request in progress, from taking a connection to its end row. Call the steps in order, then `end_row()`. `sweep`
    may be called from elsewhere at any time. `due_ns`: monotonic. A behaviour that is slow on purpose sets `slowed`: its
    times say nothing about the server. The answers of `pipelined` follow on the same connection. With `has_successor`
    another exchange reads on when this one has ended, from `leftover`: the connection and the bytes beyond this answer.
    """

    __slots__ = (
        "_bytes_in", "_bytes_out", "_connect_ns", "_connection", "_end", "_ended_from_outside", "_error_body",
        "_hang_up_at_ns", "_lane", "_next_check_ns", "_outside_why", "_parser", "_pausing", "_replaced", "_resent",
        "_send_ns", "_sent_all_ns", "_slot", "_why", "answer", "begun_ns", "connection_number", "due_ns",
        "ended", "first_body_ns", "first_byte_ns", "has_successor", "last_byte_ns", "leftover", "pipelined",
        "progress", "request", "reused", "sent_ns", "slowed", "step",
    )  # fmt: skip

    def __init__(self, request: Request, slot: Slot, progress: Progress, due_ns: int | None = None) -> None:
        self.request, self.step = request, request.step
        self.progress = progress
        self.begun_ns = time.monotonic_ns()
        self.due_ns = self.begun_ns if due_ns is None else due_ns
        self.sent_ns: int | None = None
        self.first_byte_ns: int | None = None
        self.first_body_ns: int | None = None
        self.last_byte_ns: int | None = None
        self.answer: AnswerReader | None = None
        self.ended = False
        self.slowed = False
        self.pipelined: Sequence[Exchange] = ()
        self.has_successor = False
        self.leftover: tuple[Connection, bytes] | None = None
        self._pausing = False
        self._slot = slot
        self._parser = ResponseParser()
        self._end: End | None = None
        self._why = ""
        self._ended_from_outside: End | None = None
        self._outside_why = ""
        self._hang_up_at_ns: int | None = None
        self._lane: Lane | None = None  # once the native reader counts for this exchange
        self._next_check_ns = 0
        self._error_body = b""
        self._bytes_in = 0
        self._bytes_out = 0
        self._connect_ns = 0
        self._send_ns = 0
        self._sent_all_ns = 0
        self._resent = 0
        self._connection, self._replaced = (None, False) if request.fresh else slot.acquire(self.begun_ns)
        self.reused = self._connection is not None
        if self._connection is None:
            slot.opened += 1
        self.connection_number = self._connection.number if self._connection else slot.opened

    # ---- the steps ----

    def connect(self, receive_buffer_bytes: int | None = None) -> bool:
        if self._connection is not None:
            return True
        begun = time.monotonic_ns()
        timeout_s = min(self.request.limits.first_byte_ns, self.request.limits.total_ns) / 1e9
        try:
            self._connection = Connection.open(
                self._slot.target, self.connection_number, timeout_s, receive_buffer_bytes=receive_buffer_bytes
            )
        except OSError as e:
            return self._finish("unreached", describe_os_error(e))
        self._connect_ns = time.monotonic_ns() - begun
        if self._ended_from_outside:  # while we were connecting
            return self._finish("cut", "")
        return True

    def send(self) -> bool:
        head, body = self.request.head, self.request.body
        if len(body) <= _JOIN_BYTES:
            return self.send_piece(head + body)
        return self.send_piece(head) and self.send_piece(body)

    def send_piece(self, piece: bytes, *, whole: bool = True) -> bool:
        """Send some bytes. With `whole=False` the request will never be complete, so a stale connection is not retried."""
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
        """Wait for the next bytes; returns False when the exchange has ended."""
        if self.ended:
            return False
        assert self._connection is not None, "connect() comes first"
        try:
            at_ns, data = self._connection.receive(most)
        except OSError as e:
            return self._on_read_error(e)
        return self._feed(at_ns, data) if data else self._on_peer_closed()

    def receive_all(self, until: Callable[[], bool] | None = None) -> bool:
        """Read until `until`, asked after each read, holds (True) or the exchange ends (False)."""
        while not self.ended:
            assert self._connection is not None, "connect() comes first"
            try:
                if self._slot.collect(
                    self._connection, self._feed_and_arm if until is None else self._feed_until(until)
                ):
                    self._on_peer_closed()
                elif not self.ended:
                    return True
            except OSError as e:
                self._on_read_error(e)
        return False

    def pause(self, seconds: float) -> bool:
        """Wait without reading; False when the exchange was ended from outside. This silence never counts as a stall."""
        until_s = time.monotonic() + seconds
        self._pausing = True
        while (left_s := until_s - time.monotonic()) > 0 and not self._ended_from_outside:
            time.sleep(min(left_s, _PAUSE_SLICE_S))
        self._pausing = False
        return self._ended_from_outside is None

    def hang_up(self, *, reset: bool = False) -> None:
        """End the exchange as planned, optionally with a TCP reset."""
        if not self.ended:
            if reset and self._connection is not None:
                self._connection.reset()
            self._finish("hung_up", "")

    def hang_up_after(self, seconds: float) -> None:
        """Have the sweeper hang up after `seconds`, whatever is going on."""
        self._next_check_ns = 0
        self._hang_up_at_ns = time.monotonic_ns() + int(seconds * 1e9)

    @property
    def failure(self) -> End | None:
        """The end `cut` or `unreached` if the connection broke, else None."""
        return "cut" if self._end == "not_http" else self._end if self._end in {"cut", "unreached"} else None

    @property
    def tokens(self) -> int:
        self._take_counted()
        return 0 if self.answer is None else self.answer.chunks

    @property
    def answered(self) -> bool:
        """True once every choice has a finish_reason. [DONE] and usage may still follow."""
        return self.answer is not None and self.answer.finished

    # ---- from outside ----

    def sweep(self, now_ns: int) -> None:
        """End the exchange if a timeout has passed; a waiting step wakes up."""
        if now_ns < self._next_check_ns or self.ended or self._ended_from_outside:
            return
        self._take_counted()
        limits = self.request.limits
        if self._hang_up_at_ns is not None and now_ns >= self._hang_up_at_ns:
            self.end("hung_up", "")
        elif now_ns - self.begun_ns > limits.total_ns:
            text = f"the request did not finish within {limits.total_ns / 1e9:g} s"
            self.end("timeout", text + self._without_token(now_ns))
        elif self.sent_ns is not None and not self._pausing:
            bound = limits.first_byte_ns if self.first_body_ns is None else limits.between_bytes_ns
            if self.silence_ns(now_ns) > bound:
                what = "no byte of the answer arrived" if self.first_body_ns is None else "no further byte arrived"
                self.end("stalled", f"{what} for {bound / 1e9:g} s{self._without_token(now_ns)}")
            elif self._hang_up_at_ns is None:
                # Nothing can pass before this: neither the silence that goes on nor one that begins now.
                silence_ns = min(bound - self.silence_ns(now_ns), limits.first_byte_ns, limits.between_bytes_ns)
                self._next_check_ns = min(now_ns + silence_ns, self.begun_ns + limits.total_ns)

    def end(self, end: End, why: str) -> None:
        if self.ended or self._ended_from_outside:
            return
        self._ended_from_outside, self._outside_why = end, why
        if self._connection is not None:
            self._connection.shutdown()

    def silence_ns(self, now_ns: int) -> int:
        """Time since the last body byte, or since sending, in ns."""
        self._take_counted()
        since = self.last_byte_ns if self.first_body_ns is not None else self._sent_all_ns or self.sent_ns
        return now_ns - (since or self.begun_ns)

    def token_silence_ns(self, now_ns: int) -> int:
        """Time without a token of an answer that streams, in ns. 0 where it proves nothing: no stream, a client that
        sends or reads slowly, or an answer that is complete.
        """
        if not self.step.stream or self.step.behaviour not in READS_AT_ONCE or self._pausing or self.answered:
            return 0
        self._take_counted()
        token_ns = None if self.answer is None else self.answer.last_token_ns
        since = token_ns or self._sent_all_ns
        return max(0, now_ns - since) if since else 0

    def _without_token(self, now_ns: int) -> str:
        """Say that only comments, empty deltas or a role arrived since the newest token. Empty where nothing did."""
        answer, last_ns = self.answer, self.last_byte_ns
        if answer is None or not answer.is_stream or answer.finished or last_ns is None or not self._kept_alive:
            return ""
        silence_s = self.token_silence_ns(now_ns) / NS_PER_S
        n = answer.without_token
        return f"; no token for {silence_s:.3g} s: the server kept the stream alive with {n} comments or events without one"

    @property
    def _kept_alive(self) -> bool:
        """True when bytes without a token arrived long after the newest token, or after sending."""
        answer, last_ns = self.answer, self.last_byte_ns
        token_ns = (None if answer is None else answer.last_token_ns) or self._sent_all_ns
        return last_ns is not None and bool(token_ns) and last_ns - token_ns > _KEPT_ALIVE_NS

    @property
    def planned_tokens(self) -> int:
        return self.request.tokens or 0

    # ---- the end ----

    def end_row(self) -> EndRow:
        """Make the end row; each exchange has exactly one outcome."""
        if not self.ended:
            self._finish("hung_up", "")
        now_ns = time.monotonic_ns()
        (first, *others), wrong = self._decide(now_ns)
        request, step, parser, a = self.request, self.step, self._parser, self.answer or _NO_ANSWER
        gaps, largest_gap_ns = self._gaps(now_ns, first, a)
        tokens, prompt_tokens = request.tokens, a.prompt_tokens
        row: EndRow = {
            "row": "end",
            "id": request.id,
            "step": step.index,
            "phase": step.phase,
            "traffic": step.traffic,
            "at_ns": now_ns,
            "due_ns": self.due_ns,
            "sent_ns": self.sent_ns,
            "outcome": first.outcome,
            "status": parser.status if parser.has_head else None,
            "first_byte_ns": self.first_byte_ns,
            "first_token_ns": a.first_token_ns,
            "first_answer_ns": a.first_answer_ns,
            "last_byte_ns": self.last_byte_ns,
            "chunks": a.chunks,
            "itl_hist": gaps,
            "largest_gap_ns": largest_gap_ns,
            "finish_reason": a.finish_reason,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": a.completion_tokens,
            "cached_tokens": a.cached_tokens,
            "request_id": parser.request_id or a.answer_id,
            "error": first.text[:MAX_ERROR_CHARS] or None,
            "error_code": first.code,
            "detail": self._detail(first),
            "evidence": _evidence(others) if others else [],
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
            "expect": request.expect,
            "planned_tokens": tokens,
            "length_mismatch": tokens is not None and prompt_tokens is not None and tokens != prompt_tokens,
            "images": request.images,
            "image_tokens": request.image_tokens,
            "edge": request.edge,
            "exact_tokens": request.exact,
            "most_tokens": request.most,
        }
        self._add_rare_fields(row, first, a)
        if wrong:
            row["wrong"] = wrong
        if a.labels:
            row["labels"] = a.labels
        if first.outcome == "ok" and self.answer is not None:
            self._add_signs(row, a)
        return row

    # ---- inside ----

    def _add_rare_fields(self, row: EndRow, first: OutcomeEvent, answer: AnswerReader) -> None:
        request = self.request
        if request.asked is not None:
            row["asked_tokens"] = request.asked
        if first.outcome in LOWER_BOUNDS and answer.is_stream and self._kept_alive:
            row["last_token_ns"], row["without_token"] = answer.last_token_ns, answer.without_token
        if request.image_file:
            row["image_file"] = request.image_file
        if request.tries:
            row["tries"] = request.tries
        if answer.drafts:
            row["drafted_tokens"], row["accepted_tokens"] = answer.drafts

    def _add_signs(self, row: EndRow, answer: AnswerReader) -> None:
        text, detail = answer.text, row["detail"]
        found = signs(answer, text)
        if detail.get("no_text") and row["finish_reason"] == "length" and _demands_call(self.request.body):
            row["detail"] = {**{k: v for k, v in detail.items() if k != "no_text"}, "call_cut": True}
            found = [sign for sign in found if sign != "no_text"]
        if found and _IGNORES_EOS.search(self.request.body):
            found.append("ignores_eos")
        if found:
            row["signs"] = found
        if (ratio := text_ratio(text)) is not None:
            row["text_ratio"] = ratio
        if content := content_of(self.request, answer, text, one_word="one_word" in found):
            row["content"] = content
            if "hash" in content and (name := answer.answer_id) is not None and name != row["request_id"]:
                content["id"] = name[:_MOST_HEADER_CHARS]

    def _feed_until(self, until: Callable[[], bool]) -> Feed:
        return lambda at_ns, data: self._feed(at_ns, data) and not until()

    def _on_read_error(self, error: OSError) -> bool:
        """Reading failed; True when it continues on a new connection."""
        return self._retry_as_stale() or self._finish("cut", self._closed_unannounced() or describe_os_error(error))

    def _on_peer_closed(self) -> bool:
        """The peer closed; True when it continues on a new connection."""
        if self._retry_as_stale():
            return True
        self._parser.eof()
        if self._parser.done and not self._ended_from_outside:
            return self._finish("complete", "")
        text = self._closed_unannounced() or "the server closed the connection before the end of its answer"
        return self._finish("cut", text)

    def _closed_unannounced(self) -> str:
        """Error text of a request whose kept-alive connection was closed. Empty where the server may have had a reason:
        an answer that began, or work on the request. One that reads the request and drops it at once looks the same from
        here.
        """
        sent_ns = self._sent_all_ns or self.sent_ns or self.begun_ns
        if not self.reused or self._resent or self.first_byte_ns is not None or self._ended_from_outside:
            return ""
        if time.monotonic_ns() - sent_ns > _UNANNOUNCED_WITHIN_NS:
            return ""
        return CLOSED_UNANNOUNCED

    def _feed_and_arm(self, at_ns: int, data: bytes) -> bool:
        """Feed what was not counted natively. What follows is counted there where it is like the tokens before it."""
        if self._lane is not None:
            self._take_counted()
            self._lane.disarm()
        if not self._feed(at_ns, data):
            return False
        connection, answer = self._connection, self.answer
        lane = None if connection is None else connection.lane
        if lane is None or answer is None or lane.outstanding or not self._parser.between_chunks:
            return True
        if (form := answer.countable()) is not None:
            self._lane = lane
            lane.arm(*form)
        return True

    def _take_counted(self) -> None:
        """Add what was counted natively since the last call."""
        lane, answer = self._lane, self.answer
        if lane is None or answer is None or (taken := lane.take()) is None:
            return
        tokens, size, last_byte_ns, last_token_ns, largest_gap_ns = taken
        answer.add_counted(tokens, last_token_ns, largest_gap_ns)
        self.progress.tokens += tokens
        self.progress.bytes_in += size
        self._bytes_in += size
        self.last_byte_ns = last_byte_ns

    def _feed(self, at_ns: int, data: bytes) -> bool:
        self._bytes_in += len(data)
        self.progress.bytes_in += len(data)
        self.last_byte_ns = at_ns
        answer = self.answer
        # Nearly every packet of a stream is one chunk: it can neither end the body nor break it.
        if answer is not None and self.first_body_ns is not None and (chunk := self._parser.single_chunk(data)):
            self.progress.tokens += answer.feed(at_ns, chunk)
            return answer.fault is None or self._finish("not_http", answer.fault)
        if self.first_byte_ns is None:
            self.first_byte_ns = at_ns
        parser = self._parser
        had_head = parser.has_head
        body = parser.feed(data)
        if not had_head and parser.has_head and 200 <= (parser.status or 0) < 300:
            declared = parser.headers.get("content-type", "").startswith("text/event-stream")
            request = self.request
            self.answer = request.reader(request.rules, asked_stream=request.stream, declared_stream=declared)
        if body:
            if self.first_body_ns is None:
                self.first_body_ns = at_ns
            if self.answer is not None:
                self.progress.tokens += self.answer.feed(at_ns, body)
            elif len(self._error_body) < KEPT_ERROR_BYTES:
                self._error_body += body
        fault = parser.broken or (self.answer.fault if self.answer is not None else None)
        if fault is not None:
            return self._finish("not_http", fault)
        return self._finish("complete", "") if parser.done else True

    def _finish(self, end: End, why: str) -> bool:
        """End the exchange; an end from outside explains the error it caused."""
        self._take_counted()
        self._lane = None
        self.ended = True
        if self._ended_from_outside and end != "complete":
            end, why = self._ended_from_outside, self._outside_why
        self._end, self._why = end, why
        connection, self._connection = self._connection, None
        if connection is None:
            return False
        if end == "complete" and self._parser.reusable and not self._ended_from_outside and not self.request.fresh:
            self._slot.release(connection, time.monotonic_ns())
        elif end == "complete" and self.has_successor and not self._ended_from_outside:
            self.leftover = connection, self._parser.excess
        else:
            connection.close()
        return False

    def _retry_as_stale(self) -> bool:
        """Send again, once, if an idle connection closed before a byte came. A server may close a connection that has
        been idle for a while just as we send (RFC 9112, 9.3.1). It has no reason to close one that was idle for a moment
        only, or one that closes long after sending: it dropped the request.
        """
        connection = self._connection
        if not self.reused or connection is None or self.first_byte_ns is not None:
            return False
        if self._resent or self._ended_from_outside:
            return False
        sent_ns = self.sent_ns or self.begun_ns
        if sent_ns - connection.idle_since_ns <= self.request.limits.retry_idle_ns:
            return False
        if time.monotonic_ns() - (self._sent_all_ns or sent_ns) > _STALE_WITHIN_NS:
            return False
        self._resent = 1
        connection.close()
        self._slot.opened += 1
        try:
            self._connection = Connection.open(self._slot.target, self._slot.opened, CONNECT_AGAIN_S)
            self._connection.send(self.request.head + self.request.body)
        except OSError:
            return False  # the server is gone: the first error stands
        self._sent_all_ns = time.monotonic_ns()
        return True

    def _read_early_answer(self, error: OSError) -> bool:
        connection = self._connection
        while not self.ended and connection is not None and self._connection is connection:
            try:
                at_ns, data = connection.receive()
            except OSError:
                break
            if not data:
                break
            self._feed(at_ns, data)
        return False if self.ended else self._finish("cut", describe_os_error(error))

    def _decide(self, now_ns: int) -> tuple[list[OutcomeEvent], Sequence[WrongPart]]:
        parser, answer = self._parser, self.answer
        head = ResponseHead(parser.status or 0, parser.reason, parser.headers) if parser.has_head else None
        ended = ExchangeEnd(self._end or "hung_up", self._why, self.last_byte_ns or now_ns)
        decided = decide(ended, head, answer, self._error_body, self.request.rules.server)
        if answer is not None and not answer.is_stream and answer.has_text:
            self.progress.tokens += 1  # one that came whole is progress, too
        return decided

    def _gaps(self, now_ns: int, first: OutcomeEvent, answer: AnswerReader) -> tuple[dict[int, int], int]:
        """Return the gaps between tokens and the largest; of an interrupted answer also the open one if it is that. A
        server that freezes and is given up would otherwise look as fast as before.
        """
        if self.slowed:
            return {}, 0
        gaps, largest_ns, since_ns = answer.itl_hist, answer.largest_gap_ns, answer.last_token_ns
        if since_ns is None or answer.finished or first.outcome not in INTERRUPTED:
            return gaps, largest_ns
        open_ns = now_ns - since_ns
        if open_ns > largest_ns:
            gaps = {**gaps, bucket(open_ns): gaps.get(bucket(open_ns), 0) + 1}
        return gaps, max(largest_ns, open_ns)

    def _detail(self, first: OutcomeEvent) -> dict[str, Any]:
        detail: dict[str, Any] = {}
        if self.slowed:
            detail["slowed"] = True
        if self._replaced:
            detail["stale_retry"] = 1
        if self._resent:
            detail["resent"] = 1
        if self._send_ns > _WORTH_REPORTING_NS:
            detail["send_ns"] = self._send_ns
        if self._connect_ns > _WORTH_REPORTING_NS:
            detail["connect_ns"] = self._connect_ns
        if self._parser.interim:
            detail["interim"] = self._parser.interim
        if self._end == "hung_up" and first.outcome != "aborted":
            detail["hung_up"] = True
        elif self._end == "hung_up" and self._why:
            detail["why"] = self._why
        if first.outcome == "shed" and (after := self._parser.headers.get("retry-after")):
            detail["retry_after"] = after[:_MOST_HEADER_CHARS]
        if self.answer is not None and first.outcome == "ok":
            detail |= self.answer.anomalies(self._parser.headers.get("content-type", ""))
            if (model := other_model(self.answer)) is not None:
                detail["other_model"] = model
        return detail


_NO_ANSWER = AnswerReader(AnswerRules(), asked_stream=False, declared_stream=False)


_IGNORES_EOS = re.compile(rb'"ignore_eos"\s*:\s*true')


def _demands_call(body: bytes) -> bool:
    """True if a tool call is demanded. Cut before the tool's name, vLLM's parsers pass nothing on."""
    try:
        asked: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(asked, dict) and asked.get("tool_choice") not in (None, "auto", "none")


def _evidence(events: Sequence[OutcomeEvent]) -> list[str]:
    return [f"{d.outcome}: {d.text}"[:MAX_ERROR_CHARS] for d in events if d.outcome != "ok"][:20]
