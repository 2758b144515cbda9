"""Read a chat or text completion, streamed or whole: tokens, times, usage. `AnswerRules` says what is right.

Answers of other endpoints are subclasses (load/endpoints). Bytes are stamped by the receiver. Nearly every event of a
stream repeats the one before it with another text: such events are recognised by their first and last bytes
(sse.EventTemplate) and never parsed. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import orjson

from loadchaos.core.answer_labels import BODY_KEYS, label_value
from loadchaos.core.histogram import bucket
from loadchaos.core.ledger.rows import WrongPart
from loadchaos.core.outcome_rules import (
    ANSWER_KEYS,
    MAX_ERROR_CHARS,
    TEXT_AFTER_DONE,
    TEXT_AFTER_FINISH,
    TEXT_OF_OTHER_AFTER_DONE,
    WORD_OF_ANOTHER,
    ErrorObject,
    OutcomeEvent,
    OutcomeRules,
    error_event_outcome,
    error_object,
    finish_outcome,
)
from loadchaos.core.slotted import slotted_dataclass
from loadchaos.load.wire.contract import AnswerContract, ToolCall
from loadchaos.load.wire.drafts import KEYS, DraftCount, draft_count
from loadchaos.load.wire.sse import (
    MAX_EVENT_BYTES,
    THOUGHT_KEYS,
    UNLEARNED,
    Event,
    EventTemplate,
    JsonObject,
    SseParser,
    json_string,
)

_PREFIX_BYTES = 300
_SSE_BEGINS = (b"data:", b"event:", b":", b"id:", b"retry:", b"\xef\xbb\xbf")
_TOKEN_KEYS = ("content", *THOUGHT_KEYS, "refusal")
_ANSWER_KEYS = ("content", "refusal")
_READ_KEYS = frozenset({*_TOKEN_KEYS, "role", "tool_calls", "function_call", "reasoning_details", "name", "id", "type"})
_FEWEST_UNREAD, _MOST_UNREAD = 3, 8  # chunks whose text differs; fields
_PART_KEYS = ("text", "thinking", "summary", "content")
PART_CHARS = 400
"""Characters of a wrong part that its row keeps."""
MAX_BODY_BYTES = 64 << 20
"""Limit of an answer that is one JSON value."""
_SKIPPED_CHOICE = -1
"""Stands for the choices that ended before the part of a stream that is read."""
_MOST_LOGPROB = 1e-3  # more than rounding gives
_MIN_COUNTED_TOKENS = 8
"""Shorter answers may be special tokens, or bytes of one character, and hold less text than tokens."""
SMALLEST_CONTEXT = 2_048
"""Context of a server that does not tell its own: the least that an answer may have to end by."""


Countable = tuple[bytes, bytes, list[str], list[str] | None, dict[int, int], int]
"""Begin and end of a token's event, the lists that its text belongs to, the gaps, and the time of the newest token."""


class WrongShapeError(Exception):
    """A JSON value of the wrong type inside the answer; the text says which."""


@slotted_dataclass(frozen=True)
class AnswerRules:
    """Rules of a `server`'s answers, and of the answer to one request. `foreign_nonce` finds a word of another request in
    the answer's text. `answers` is the number of choices that were requested, `most_tokens` that of tokens that each may
    have, `model` the one that was asked for (None: unknown). `logprobs`: they were asked for. `texts_differ`: the
    request has several texts, and all of them differ. `limit`: tokens that each choice was allowed, also where
    `most_tokens` is None as lengths are judged over all answers. `context`: tokens of prompt and answer that the server
    takes.
    """

    server: OutcomeRules = field(default_factory=OutcomeRules)
    foreign_nonce: Callable[[str], str | None] | None = None
    contract: AnswerContract | None = None
    answers: int | None = None
    most_tokens: int | None = None
    model: str | None = None
    logprobs: bool = False
    texts_differ: bool = False
    limit: int | None = None
    context: int = SMALLEST_CONTEXT


class AnswerReader:
    """The body of one 2xx answer. `feed` bytes, `close`, then read the attributes. `outcome_events` lists what can
    decide the outcome, in byte order. `finish` maps a choice's index to its finish_reason. Times are monotonic ns of the
    packet that completed the event. `chunks` counts those with content. `contradictions`: wrong parts that a subclass
    found. `fault`: why the rest is not read, as the body is too long.
    """

    FINISH = "a finish_reason"
    """Name of the mark that ends a choice, in error texts."""
    DONE = "[DONE]"
    """Name of the mark that ends a stream."""
    HAS_CHOICES = True
    """False for an endpoint whose answers are results (wire/results.py), which it counts itself."""
    LIMIT_IS_OF_WHOLE_ANSWER = True
    """False where the limit of tokens that was asked for holds for each part of an answer."""
    ALWAYS_DONE = False
    """Streams of this protocol end with DONE on every server."""

    __slots__ = (
        "_between_events", "_body", "_body_bytes", "_calls", "_content", "_events", "_number", "_pending", "_prefix",
        "_sse", "_stream_known", "_template", "_text", "answer_id", "asked_stream", "chunks", "contradictions",
        "digest", "disorder", "done_seen", "drafts", "fault", "finish", "first_answer_ns", "first_token_ns", "front_skipped",
        "has_answer", "has_calls", "has_text", "id_changes", "is_stream", "itl_hist", "labels", "largest_gap_ns",
        "last_token_ns", "logprob_entries", "model", "names_call", "outcome_events", "rules", "second_done",
        "unread", "usage",
    )  # fmt: skip

    _sse: SseParser  # of a stream, once it is known to be one

    def __init__(self, rules: AnswerRules, *, asked_stream: bool, declared_stream: bool) -> None:
        self.rules = rules
        self.asked_stream = asked_stream
        self.outcome_events: list[OutcomeEvent] = []
        self.first_token_ns: int | None = None
        self.first_answer_ns: int | None = None
        self.last_token_ns: int | None = None
        self.itl_hist: dict[int, int] = {}
        self.largest_gap_ns = 0
        self.chunks = 0
        self.finish: dict[int, str | None] = {}
        self.usage: JsonObject | None = None
        self.drafts: DraftCount | None = None
        self.answer_id: str | None = None
        self.digest = ""  # of an answer without text
        self.labels: dict[str, str] = {}
        self.model: str | None = None
        self.done_seen = False
        self.fault: str | None = None
        self.is_stream = asked_stream or declared_stream
        self.has_text = False
        self.has_answer = False
        self.has_calls = self.names_call = False
        self._prefix = b""
        self._stream_known = False
        self._text: list[str] = []
        self._events = 0
        self._between_events = False
        self._template = UNLEARNED
        self._content: dict[int, list[str]] | None = None if rules.contract is None else {}
        self._calls: dict[tuple[int, int], list[str]] = {}
        self._number: int | None = None
        self.disorder: list[str] = []
        self.contradictions: list[WrongPart] = []
        self.id_changes = 0
        self.logprob_entries: int | None = None
        self.second_done = False
        self.unread: dict[str, tuple[int, str]] = {}
        """Unknown fields with text in chunks without a token: how often it differed from the one before, and that text."""
        self.front_skipped = False
        self._pending: list[tuple[int, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0

    def feed(self, at_ns: int, piece: bytes) -> int:
        """Read bytes that arrived at `at_ns`. Returns how many chunks with content they complete."""
        template = self._template
        if template.learned and piece.startswith(template.frame_begin) and piece.endswith(template.frame_end):
            text = json_string(piece[len(template.frame_begin) : -len(template.frame_end)])
            if text and self._between_events:
                self._events += 1
                self._text.append(text)
                if self._content is not None and template.is_answer:
                    self._content.setdefault(template.index, []).append(text)
                self._record_token(at_ns, answer=template.is_answer)
                return 1
        if not self._prefix and piece.startswith(b"{"):  # one JSON value, often in one piece
            self._prefix = piece[:_PREFIX_BYTES]
            self.is_stream, self._stream_known = False, True
            self._read(at_ns, piece)
            return 0
        before = self.chunks + self._unread_chunks
        if len(self._prefix) < _PREFIX_BYTES:
            self._prefix += piece[:_PREFIX_BYTES]
        if self._stream_known:
            self._read(at_ns, piece)
        else:
            self._pending.append((at_ns, piece))
            if self._detect_stream(final=False):
                self._read_pending()
        return self.chunks + self._unread_chunks - before

    def countable(self) -> Countable | None:
        """Return what a native reader needs to count tokens of the learned form. None where the next bytes must be read
        in full.
        """
        template, last_ns = self._template, self.last_token_ns
        if not template.learned or not self._between_events or last_ns is None or self.fault is not None:
            return None
        content = None
        if template.is_answer:
            if self.first_answer_ns is None:
                return None
            if self._content is not None:
                content = self._content.setdefault(template.index, [])
        return template.frame_begin, template.frame_end, self._text, content, self.itl_hist, last_ns

    def add_counted(self, tokens: int, last_token_ns: int, largest_gap_ns: int) -> None:
        """Add tokens that a native reader has counted; texts and gaps are there already."""
        self.chunks += tokens
        self._events += tokens
        self.last_token_ns = last_token_ns
        self.largest_gap_ns = max(self.largest_gap_ns, largest_gap_ns)

    @property
    def _unread_chunks(self) -> int:
        return sum(n for n, _ in self.unread.values()) if self.unread else 0

    def skip_front(self) -> None:
        """Begin inside a stream: what came before was right, and had tokens."""
        self.front_skipped = self.has_text = True
        self.finish[_SKIPPED_CHOICE] = "stop"

    def close(self, at_ns: int, *, complete: bool) -> None:
        """End the body. With `complete` it ended as promised, so that missing parts are faults."""
        if not self._stream_known:
            self._detect_stream(final=True)
            self._read_pending()
        if self.is_stream:
            last = self._sse.close()
            # Some servers forget the last blank line; a cut frame is no such case.
            if last is not None and (complete or last.data == b"[DONE]"):
                self._event(at_ns, last)
            if self.fault is None and not self._events and self._sse.comments == 0 and self._prefix.strip():
                self.fail(f"the stream contained no event: {excerpt(self._prefix)!r}")
        elif complete and self.fault is None:
            self._read_json_body(b"".join(self._body))

    @property
    def text(self) -> str:
        """The answer's text so far, reasoning included."""
        text = self._text
        return text[0] if len(text) == 1 else "".join(text)

    @property
    def completion_tokens(self) -> int | None:
        value = self.usage.get("completion_tokens") if self.usage else None  # not by _count: it is asked for often
        return value if type(value) is int else None

    @property
    def prompt_tokens(self) -> int | None:
        return self._count("prompt_tokens")

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the server took from its prefix cache."""
        return self._count_in("prompt_tokens_details", "cached_tokens")

    @property
    def finish_reason(self) -> str | None:
        """finish_reason of the first choice, or of the one that finished badly."""
        if len(self.finish) == 1:
            (reason,) = self.finish.values()
            return reason
        reasons = [r for r in self.finish.values() if r is not None]
        bad = [r for r in reasons if "error" in r or "abort" in r]
        return bad[0] if bad else reasons[0] if reasons else None

    @property
    def finished(self) -> bool:
        return bool(self.finish) and None not in self.finish.values()

    @property
    def is_empty(self) -> bool:
        return not self._events

    @property
    def without_token(self) -> int:
        """Comments and events of a stream that held no token."""
        return self._events - self.chunks + (self._sse.comments if self.is_stream and self._stream_known else 0)

    def anomalies(self, content_type: str) -> JsonObject:
        """List unusual properties of an ok answer, for the detail of its row."""
        found: JsonObject = {}
        if self.has_text and not self.has_answer:
            found["reasoning_only"] = True
        if not self.has_text:
            found["no_text"] = True
        if self.is_stream and (unread := [key for key, (n, _) in self.unread.items() if n >= _FEWEST_UNREAD]):
            found["unread_text"] = unread[0][:40]
        if self.usage is None:
            found["usage_missing"] = True
        else:
            self._add_count_anomalies(found)
        if not content_type.startswith("text/event-stream" if self.is_stream else "application/json"):
            found["content_type"] = content_type[:80]
        return found

    def _add_count_anomalies(self, found: JsonObject) -> None:
        tokens = self.completion_tokens
        if tokens is None:
            return
        if self.chunks > tokens:
            found["extra_chunks"] = self.chunks - tokens
        if not self.has_text or self.has_calls or tokens < _MIN_COUNTED_TOKENS:
            return  # tokens of tool calls are not in the text
        # A token is a byte of text at least, unless it is special.
        text = self.text
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        ends = len(self.finish)  # each choice may end with a token without text
        visible = tokens - self.reasoning_tokens()
        if visible >= _MIN_COUNTED_TOKENS and size + ends < visible:
            found["thin_text"] = size

    def reasoning_tokens(self) -> int:
        """Tokens of reasoning that the server counted, and may keep to itself."""
        return self._count_in("completion_tokens_details", "reasoning_tokens") or 0

    def _count_in(self, details_key: str, key: str) -> int | None:
        details = self.usage.get(details_key) if self.usage else None
        value = details.get(key) if isinstance(details, dict) else None
        return value if type(value) is int else None  # a bool is no count

    def _read_pending(self) -> None:
        early, self._pending = self._pending, []
        for at_ns, piece in early:
            self._read(at_ns, piece)

    def _read(self, at_ns: int, piece: bytes) -> None:
        if self.fault is not None:
            return
        if not self.is_stream:
            self._body.append(piece)
            self._body_bytes += len(piece)
            if self._body_bytes > MAX_BODY_BYTES:
                self.fault, self._body = f"the body is longer than {MAX_BODY_BYTES >> 20} MiB", []
            return
        for event in self._sse.feed(piece):
            self._event(at_ns, event)
        self._between_events = self._sse.between_events
        if self._sse.too_long:
            self.fault = f"an event of the stream is longer than {MAX_EVENT_BYTES >> 20} MiB"

    def _count(self, key: str) -> int | None:
        value = self.usage.get(key) if self.usage else None
        return value if type(value) is int else None

    def _detect_stream(self, *, final: bool) -> bool:
        if len(self._prefix.lstrip()) < 6 and not final:
            return False
        self.is_stream = begins_stream(self._prefix, declared=self.is_stream)
        self._stream_known = True
        if self.is_stream:
            self._sse = SseParser()
        return True

    def _event(self, at_ns: int, event: Event) -> None:
        self._events += 1
        if event.data == b"[DONE]":
            self.end_stream()
            return
        word = self._template.token_text(event.data) if not event.name else None
        if word:
            self._text.append(word)
            if self._content is not None and self._template.is_answer:
                self._content.setdefault(self._template.index, []).append(word)
            self._record_token(at_ns, answer=self._template.is_answer)
            return
        try:
            data = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            self._not_json(event)
            return
        if self._is_error(event, data):
            return
        if event.name not in {"", "message"}:
            return  # a named event is an extension (ping, progress) that no client of this protocol reads
        if self.done_seen:
            self._after_done(data)
            return
        try:
            self._read_chunk(at_ns, data)
        except WrongShapeError as e:
            self.fail(f"{e}: {excerpt(event.data)}")
            return
        if self.chunks > 1:  # an answer of one token has no second like it
            if self._template is UNLEARNED:
                self._template = EventTemplate()
            self._template.learn(event.data, data)

    def _not_json(self, event: Event) -> None:
        if event.name == "error":
            self._on_error(ErrorObject(excerpt(event.data), None, ""))
        elif event.name in {"", "message"}:
            self.fail(f"an event is not JSON: {excerpt(event.data)}")

    def _is_error(self, event: Event, data: object, *, named: bool = False) -> bool:
        """Note the error of an event; with `named`, or by its name, it is one in any form."""
        error = error_object(data)
        if error is None and (named or event.name == "error"):
            error = ErrorObject(event.data.decode("utf-8", "replace")[:MAX_ERROR_CHARS], None, "")
        if error is not None:
            self._on_error(error)
        return error is not None

    def fail(self, why: str) -> None:
        self.spoil(OutcomeEvent("protocol_error", why))

    def end_stream(self) -> None:
        """Note the mark that ends the stream."""
        if self.done_seen:
            self.second_done = True
            return
        self.done_seen = True
        self._template = UNLEARNED  # events that follow are read in full
        # Of what follows, only usage is right. Nothing can mend the answer.
        self.outcome_events.append(final_event(self))

    def _on_error(self, error: ErrorObject) -> None:
        after_token = self.has_text or self.done_seen
        outcome = error_event_outcome(error, after_token=after_token, rules=self.rules.server)
        self.spoil(OutcomeEvent(outcome, error.text[:MAX_ERROR_CHARS], error.code))

    def _after_done(self, data: object) -> None:
        """Read an event after [DONE]: usage may come late, text may not."""
        known_id, usage = self.answer_id, self.usage
        try:
            choices = self._read_choices(data)
        except WrongShapeError:
            return  # the answer is complete: this is no part of it
        if usage is not None:
            self.usage = usage
        if not any(_has_token(choice.get("delta") or choice) for choice in choices):
            return
        other_id = data.get("id") if isinstance(data, dict) else None  # of any type, a dict included
        other = other_id is not None and other_id != known_id
        self.spoil(OutcomeEvent("wrong_output", TEXT_OF_OTHER_AFTER_DONE if other else TEXT_AFTER_DONE))

    def spoil(self, event: OutcomeEvent) -> None:
        """Add an outcome event; one that follows [DONE] takes the place of `ok`."""
        if self.done_seen:
            self.outcome_events = [e for e in self.outcome_events if e.outcome != "ok"]
        self.outcome_events.append(event)

    def _read_chunk(self, at_ns: int, data: object) -> None:
        choices = self._read_choices(data)
        token = answer = False
        for choice in choices:
            index = _index(choice)
            delta = choice.get("delta")
            finished = self.finish.get(index) is not None
            if delta is None:
                text = choice.get("text")
                if text is not None and not isinstance(text, str):
                    raise WrongShapeError("text is not a string")
                if text:
                    self._text.append(text)
                    token = answer = True
            elif isinstance(delta, dict):
                got_token, got_answer = self._read_message(delta)
                token, answer = token or got_token, answer or got_answer
            else:
                raise WrongShapeError("delta is not an object")
            if finished and _has_token(delta if isinstance(delta, dict) else choice):
                self._after_finish(index)
            self._read_extras(index, choice, delta)
            self._read_finish_reason(index, choice)
        if token:
            self._record_token(at_ns, answer=answer)

    def _read_labels(self, answer: Mapping[str, object]) -> None:
        """Keep the model and the labels at the top of an answer, or of a chunk of it. The last label counts."""
        if self.model is None and (model := answer.get("model")):
            self.model = self.rules.model if model == self.rules.model else label_value(model)
        for key in BODY_KEYS:
            if (given := answer.get(key)) and (value := label_value(given)) is not None:
                self.labels[key] = value

    def _after_finish(self, index: int) -> None:  # noqa: ARG002 - a subclass needs it
        """Note that a token follows the finish_reason of its choice."""
        self.outcome_events.append(OutcomeEvent("wrong_output", TEXT_AFTER_FINISH))

    def _read_choices(self, data: object) -> list[JsonObject]:
        if not isinstance(data, dict):
            raise WrongShapeError("the value is not an object")
        choices = data.get("choices")
        usage = usage_of(data)
        if usage is not None:
            self.usage = usage
        self._read_labels(data)
        usual = data.keys() <= ANSWER_KEYS
        if not usual and not KEYS.isdisjoint(data):
            self.drafts = draft_count(data) or self.drafts
        if choices is None and usage is not None:
            return []
        if not isinstance(choices, list) or not _all_objects(choices):
            raise WrongShapeError("choices is not a list of objects")
        known_id = data.get("id")
        if self.answer_id is None and isinstance(known_id, str):
            self.answer_id = known_id
        elif choices and known_id != self.answer_id and isinstance(known_id, str):
            self.id_changes += 1
        if not usual and "sequence_number" in data:
            self._read_number(data["sequence_number"])
        return choices

    def _read_number(self, number: object) -> None:
        if not isinstance(number, int):
            return
        before, self._number = self._number, number
        if before is not None and number != before + 1 and not self.disorder:
            kind = "missing" if number > before + 1 else "repeated or out of order"
            self.disorder.append(f"a chunk is {kind}: number {number} follows {before}")

    def _read_extras(self, index: int, choice: JsonObject, message: Any) -> None:
        """Read what the checks of the content need (decision.py)."""
        if self.rules.answers is not None and not 0 <= index < self.rules.answers and not self.disorder:
            self.disorder.append(f"choice {index} was not requested: there are {self.rules.answers}")
        if isinstance(logprobs := choice.get("logprobs"), dict):
            self._read_logprobs(logprobs)
        if self._content is None:
            return
        message = message if isinstance(message, dict) else {"content": choice.get("text")}
        if text := message.get("content") or message.get("refusal"):
            self._content.setdefault(index, []).extend(_answer_texts(text))
        for n, call in enumerate(message.get("tool_calls") or ()):
            self._read_call(index, n, call)

    def _read_logprobs(self, logprobs: JsonObject) -> None:
        """Read the log probabilities of chat (`content`) or of completions (`token_logprobs`)."""
        if isinstance(entries := logprobs.get("content"), list):
            values = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
        elif isinstance(entries := logprobs.get("token_logprobs"), list):
            values = entries
        else:
            return
        self.logprob_entries = (self.logprob_entries or 0) + len(values)
        for value in values:
            if isinstance(value, float) and value > _MOST_LOGPROB and not self.contradictions:
                text = f"a log probability is {value:g}; none is above 0"
                self.contradictions.append({"id": "logprob_above_zero", "text": text})

    def _read_call(self, index: int, n: int, call: Any) -> None:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return
        number = call.get("index", n)
        known = [i for of, i in self._calls if of == index]
        if number not in known and number != len(known) and not self.disorder:
            self.disorder.append(f"tool call {number} begins after {len(known)} calls")
        name, arguments, call_id = self._calls.setdefault((index, number), ["", "", ""])
        given, more, own_id = function.get("name"), function.get("arguments"), call.get("id")
        self._calls[index, number] = [
            name or (given if isinstance(given, str) else ""),
            arguments + (more if isinstance(more, str) else ""),
            call_id or (own_id if isinstance(own_id, str) else ""),
        ]

    def contents(self) -> list[tuple[str, list[ToolCall], str | None]]:
        """List text, tool calls and finish_reason of each choice. Empty unless the request has a contract."""
        if self._content is None:
            return []
        calls: dict[int, list[ToolCall]] = {}
        for (index, _), (name, arguments, call_id) in sorted(self._calls.items()):
            calls.setdefault(index, []).append(ToolCall(name, arguments, call_id))
        return [
            ("".join(self._content.get(index, ())), calls.get(index, []), reason)
            for index, reason in self.finish.items()
        ]

    @property
    def texts(self) -> list[str]:
        """The pieces of the text in order of arrival, reasoning included."""
        return self._text

    def _read_message(self, delta: JsonObject) -> tuple[bool, bool]:
        """Read a delta or message. Returns (it has a token, it has a token of the answer itself)."""
        text = delta.get("content")
        if text and isinstance(text, str) and len(delta) == 1 + ("role" in delta):
            self._text.append(text)  # nearly every message: there is nothing else
            return True, True
        token = answer = False
        thought: object = None
        for key in _TOKEN_KEYS:
            text = delta.get(key)
            if text is None or text == "":
                continue
            if key in THOUGHT_KEYS:
                if text == thought:
                    continue  # one text under two names
                thought = text
            if isinstance(text, dict) and key in THOUGHT_KEYS:
                text = [text]
            if isinstance(text, list):
                got_token, got_answer = self._read_parts(text, answer=key in _ANSWER_KEYS)
                token, answer = token or got_token, answer or got_answer
                continue
            if not isinstance(text, str):
                raise WrongShapeError(f"{key} is not a string")
            self._text.append(text)
            token = True
            answer = answer or key in _ANSWER_KEYS
        if not token and (details := delta.get("reasoning_details")) and isinstance(details, list):
            token, _ = self._read_parts(details, answer=False)  # beside `reasoning` it repeats that
        calls = delta.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise WrongShapeError("tool_calls is not a list")
        if calls or delta.get("function_call"):
            self.has_calls = True
            if delta.get("function_call") or any(map(_is_call_part, calls or ())):
                token = answer = True
            functions = [call.get("function") for call in calls or () if isinstance(call, dict)]
            functions.append(delta.get("function_call"))
            self.names_call = self.names_call or any(isinstance(f, dict) and f.get("name") for f in functions)
        if not token and not calls and not delta.keys() <= _READ_KEYS:
            self._note_unread(delta)
        return token, answer

    def _note_unread(self, delta: JsonObject) -> None:
        """Note strings in unknown fields of a delta without a token: a text that nobody reads, if it differs each time."""
        for key, value in delta.items():
            if key in _READ_KEYS or not value or len(self.unread) >= _MOST_UNREAD:
                continue
            if text := _strings(value):
                n, before = self.unread.get(key, (0, ""))
                self.unread[key] = n + (text != before), text

    def _read_parts(self, parts: list[object], *, answer: bool) -> tuple[bool, bool]:
        """Read a content that is a list of parts, as Mistral's and OpenRouter's. Returns as `_read_message`."""
        token = of_answer = False
        for part in parts:
            if isinstance(part, str):
                part = {"text": part}
            if not isinstance(part, dict):
                raise WrongShapeError("a part of the content is no object")
            thought = _is_thought(part)
            for key in _PART_KEYS:
                value = part.get(key)
                if value and isinstance(value, str):
                    self._text.append(value)
                    token, of_answer = True, of_answer or (answer and not thought)
                elif value and isinstance(value, list):
                    got, got_answer = self._read_parts(value, answer=answer and not thought)
                    token, of_answer = token or got, of_answer or got_answer
        return token, of_answer

    def _read_finish_reason(self, index: int, choice: JsonObject) -> None:
        reason = choice.get("finish_reason")
        if reason is None or reason == "":  # some gateways say "" where there is none yet
            self.finish.setdefault(index, None)
            return
        if not isinstance(reason, str):
            raise WrongShapeError("finish_reason is not a string")
        self.set_finish(reason, index, f"unrequested finish_reason {reason}")

    def set_finish(
        self, reason: str, index: int = 0, cancelled: str = "unrequested end: the answer was cancelled"
    ) -> None:
        """Set the reason why a choice ended, in the words of chat. `cancelled` explains an end that we did not ask for."""
        self.finish[index] = reason
        self._template = UNLEARNED  # a token that follows is read in full, as it is a fault
        if (outcome := finish_outcome(reason)) is not None:
            said = self.text[-MAX_ERROR_CHARS:] if outcome == "finish_error" else cancelled
            self.outcome_events.append(OutcomeEvent(outcome, said))

    def _record_token(self, at_ns: int, *, answer: bool) -> None:
        self.chunks += 1
        self.has_text = True
        self.has_answer = self.has_answer or answer
        if answer and self.first_answer_ns is None:
            self.first_answer_ns = at_ns
        if self.first_token_ns is None:
            self.first_token_ns = at_ns
        elif self.last_token_ns is not None and at_ns != self.last_token_ns:
            # Chunks of one packet are one arrival: a gap of nothing between them would be no measurement.
            gap = at_ns - self.last_token_ns
            self.largest_gap_ns = max(self.largest_gap_ns, gap)
            i = bucket(gap)
            self.itl_hist[i] = self.itl_hist.get(i, 0) + 1
        self.last_token_ns = at_ns

    def _read_json_body(self, body: bytes) -> None:
        try:
            data = orjson.loads(body)
        except orjson.JSONDecodeError:
            if body.strip() or not self.asked_stream:
                self.fail(f"the body is not JSON: {excerpt(body)!r}")
            return
        self._events += 1
        error = error_object(data)
        if error is not None:
            self.outcome_events.append(OutcomeEvent("http_error", error.text[:MAX_ERROR_CHARS], error.code))
            return
        if self.asked_stream:
            self.fail("a stream was requested, but one JSON value arrived")
        try:
            self._read_whole(data)
        except WrongShapeError as e:
            self.fail(f"{e}: {excerpt(body)}")

    def _read_usual(self, data: object) -> bool:
        """Read an answer of one finished choice with a text and nothing else; False, with nothing read, for any other."""
        if self._content is not None or not isinstance(data, dict) or not data.keys() <= ANSWER_KEYS:
            return False
        choices, usage, known_id = data.get("choices"), data.get("usage"), data.get("id")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            return False
        choice: JsonObject = choices[0]
        message, reason = choice.get("message"), choice.get("finish_reason")
        if type(index := choice.get("index")) is not int or index or self.rules.answers == 0:
            return False
        if reason not in ("stop", "length") or choice.get("logprobs") is not None:
            return False
        if not isinstance(message, dict) or len(message) != 2 or "role" not in message:
            return False
        text = message.get("content")
        if not text or not isinstance(text, str) or not isinstance(usage, dict) or not isinstance(known_id, str):
            return False
        self.usage, self.answer_id = usage, known_id
        self._read_labels(data)
        self._text.append(text)
        self.has_text = self.has_answer = True
        self.finish[0] = reason
        return True

    def _read_whole(self, data: object) -> None:
        if self._read_usual(data):
            return
        for choice in self._read_choices(data):
            message = choice.get("message")
            if isinstance(message, dict):
                token, answer = self._read_message(message)
            elif isinstance(choice.get("text"), str):
                token = answer = bool(choice["text"])
                self._text.append(choice["text"])
            else:
                raise WrongShapeError("a choice without message or text")
            self.has_text = self.has_text or token
            self.has_answer = self.has_answer or answer
            self._read_extras(_index(choice), choice, message)
            self._read_finish_reason(_index(choice), choice)


_OK = OutcomeEvent("ok")


def final_event(answer: AnswerReader) -> OutcomeEvent:
    """Make the outcome event of a complete body in which nothing was decisive."""
    rules = answer.rules
    if answer.is_stream and not answer.asked_stream:
        return OutcomeEvent("protocol_error", "one JSON value was requested, but a stream arrived")
    if not answer.finished:
        if answer.is_empty and not answer.done_seen:
            return OutcomeEvent("truncated", "the answer ended without a byte of content")
        return OutcomeEvent("truncated", f"the answer ended without {answer.FINISH}")
    if answer.is_stream and (rules.server.sends_done or answer.ALWAYS_DONE) and not answer.done_seen:
        return OutcomeEvent("truncated", f"the stream ended without its {answer.DONE}")
    if not answer.has_text and not answer.completion_tokens:
        return OutcomeEvent("empty", "finished without a token")
    if rules.foreign_nonce is not None:
        foreign = rules.foreign_nonce(answer.text)
        if foreign is not None:
            return OutcomeEvent("wrong_output", f"{WORD_OF_ANOTHER}: {foreign[:80]}")
    return _OK


def begins_stream(begin: bytes, *, declared: bool) -> bool:
    """Tell if a body is a stream, by its bytes or else its declared type."""
    begin = begin[:_PREFIX_BYTES].lstrip()
    if begin[:1] in {b"{", b"["}:
        return False
    return declared or begin.startswith(_SSE_BEGINS)


def object_of(holder: Mapping[str, object], key: str) -> JsonObject:
    """Return a member that must be an object. Raises WrongShapeError."""
    value = holder.get(key)
    if not isinstance(value, dict):
        raise WrongShapeError(f"{key} is not an object")
    return value


def list_of(holder: Mapping[str, object], key: str) -> list[JsonObject]:
    """Return a member that must be a list of objects. Raises WrongShapeError."""
    value = holder.get(key)
    if not isinstance(value, list) or not _all_objects(value):
        raise WrongShapeError(f"{key} is not a list of objects")
    return value


def usage_of(holder: Mapping[str, object]) -> JsonObject | None:
    return None if holder.get("usage") is None else object_of(holder, "usage")


def int_of(holder: Mapping[str, object], key: str) -> int:
    """Return a member that must be a number; 0 where it is missing. Raises WrongShapeError."""
    value = holder.get(key, 0)
    if not isinstance(value, int):
        raise WrongShapeError(f"{key} is not a number")
    return value


def whole_object(data: object) -> JsonObject:
    if not isinstance(data, dict):
        raise WrongShapeError("the value is not an object")
    return data


def excerpt(data: bytes) -> str:
    return data[:300].decode("utf-8", "replace")


def _all_objects(choices: list[Any]) -> bool:
    for choice in choices:  # noqa: SIM110 - all() makes a generator for what is nearly always one choice
        if not isinstance(choice, dict):
            return False
    return True


def _answer_texts(content: object) -> Iterator[str]:
    """Texts of a content, in parts or not, without thought."""
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict) and not _is_thought(part):
            for key in _PART_KEYS:
                yield from _answer_texts(part.get(key))


def _strings(value: object, depth: int = 3) -> str:
    """The strings of a value and of what it holds, such as `thinking_blocks` and `provider_specific_fields`."""
    if isinstance(value, str):
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "".join(_strings(each, depth - 1) for each in inner) if depth else ""


def _is_thought(part: JsonObject) -> bool:
    kind = str(part.get("type", ""))
    return "think" in kind or "reason" in kind


def _has_token(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return any(message.get(key) for key in (*_TOKEN_KEYS, "text", "tool_calls", "function_call"))


def _is_call_part(call: object) -> bool:
    """True for a piece of a tool call that says something; some servers keep a stream alive with empty ones."""
    if not isinstance(call, dict):
        return True
    function = call.get("function")
    said = (function.get("name") or function.get("arguments")) if isinstance(function, dict) else function
    return bool(said or call.get("id") or call.get("custom"))


def _index(choice: JsonObject) -> int:
    index = choice.get("index", 0)
    if not isinstance(index, int):
        raise WrongShapeError("a choice's index is not a number")
    return index
