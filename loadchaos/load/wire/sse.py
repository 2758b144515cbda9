"""Parse server-sent events (SSE, text/event-stream) from bytes.

The rules are those of the HTML standard (9.2.6, "Interpreting an event stream"): a line ends with CR LF, LF or CR and
with nothing else, a blank line ends the event, `:` begins a comment, several data lines are joined with LF. Text stays
bytes, so a UTF-8 character cut by a packet needs no care, and U+2028 is no line end. Sans-I/O.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 8 << 20
"""Limit of one event of a stream. Those of chat answers have up to some 100 kB (log probabilities)."""
THOUGHT_KEYS = ("reasoning", "reasoning_content", "reasoning_text", "thinking", "thoughts", "thought")
"""Keys of a delta or message with the text that a model thinks, by server and gateway."""
_TOKEN_KEYS = ("content", *THOUGHT_KEYS)
_PROBE_TEXT = "another word, to prove it"
_TRIES = 4
"""Learning stops where every event differs in more than its text (token ids, log probabilities)."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


JsonObject = dict[str, Any]
"""An object that a server sent; its members may have any type."""


class Event(NamedTuple):
    """One event: its data lines joined with LF, and its name ("" without)."""

    data: bytes
    name: str


class SseParser:
    """Incremental parser: any split of the bytes gives the same events. `comments` counts comment lines (keep-alives).
    After the last byte, `close` returns an unfinished event. `too_long`: an event has passed MAX_EVENT_BYTES, and
    nothing more is read.
    """

    __slots__ = ("_at_start", "_data", "_data_bytes", "_name", "_rest", "_skip_lf", "_tail", "comments", "too_long")

    def __init__(self) -> None:
        self.comments = 0
        self.too_long = False
        self._rest = b""
        self._tail: list[bytes] = []  # pieces that continue the line of `_rest`: joined once, when it ends
        self._data: list[bytes] = []
        self._data_bytes = 0  # of `_rest`, `_tail` and `_data`
        self._name = ""
        self._skip_lf = False  # the last line ended with CR at the end of a packet: an LF now still belongs to it
        self._at_start = True

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events completed by this piece, in order."""
        if self.too_long:
            return []
        if self._skip_lf and piece:
            self._skip_lf = False
            piece = piece.removeprefix(b"\n")
        if self._rest and not self._at_start and b"\n" not in piece and b"\r" not in piece:
            self._tail.append(piece)
            self._grow(len(piece))
            return []
        data = self._take_rest() + piece
        if self._at_start:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            self._at_start = False
            data = data.removeprefix(_BOM)
        events = self._feed_lf(data) if b"\r" not in data else self._feed_any(data)
        self._grow(len(self._rest))
        return events

    @property
    def between_events(self) -> bool:
        """True when the bytes so far ended with an event's end."""
        return not (self._rest or self._data or self._name or self._skip_lf or self._at_start)

    def close(self) -> Event | None:
        """Return an event that no blank line ended. The standard drops such an event."""
        rest = self._take_rest()
        if self.too_long:
            return None
        if rest:
            self._line(rest)
        return self._dispatch()

    def _take_rest(self) -> bytes:
        rest = self._rest
        if self._tail:
            rest = b"".join((rest, *self._tail))
            self._tail = []
        self._rest = b""
        self._data_bytes -= min(len(rest), self._data_bytes)
        return rest

    def _grow(self, size: int) -> None:
        self._data_bytes += size
        if self._data_bytes > MAX_EVENT_BYTES:
            self.too_long = True
            self._rest, self._tail, self._data = b"", [], []

    def _feed_lf(self, data: bytes) -> list[Event]:
        # Nearly every server sends LF only, and most frames are one data line.
        *frames, rest = data.split(b"\n\n")
        events: list[Event] = []
        for frame in frames:
            if frame.startswith(b"data: ") and not self._data and not self._name and b"\n" not in frame:
                events.append(Event(frame[6:], ""))
                continue
            self._lines(frame.split(b"\n"), events)
            self._push(events)
        *lines, self._rest = rest.split(b"\n")
        self._lines(lines, events)
        return events

    def _feed_any(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        *lines, self._rest = _LINE_END.split(data)
        self._lines(lines, events)
        self._skip_lf = data.endswith(b"\r")
        return events

    def _lines(self, lines: list[bytes], events: list[Event]) -> None:
        for line in lines:
            if line:
                self._line(line)
            else:
                self._push(events)

    def _line(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        if not name and colon:
            self.comments += 1
            return
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._grow(len(value))
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        # id, retry and unknown fields say nothing about an answer

    def _push(self, events: list[Event]) -> None:
        event = self._dispatch()
        if event is not None:
            events.append(event)

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._name, self._data_bytes = [], "", 0
        return Event(b"\n".join(data), name) if data else None


def json_string(between: bytes) -> str | None:
    """Decode bytes as the inside of a JSON string. Returns None where they cannot stand in one."""
    try:
        text: str = orjson.loads(b'"%s"' % between)
    except orjson.JSONDecodeError:
        return None
    return text


class EventTemplate:
    """Bytes around the text of a stream's token events, once `learned`.

    A server sends the same JSON over and over with another token in it. Once one such event was parsed, its bytes around
    the token's text are kept. A second parse with another text between them proves that they surround exactly one JSON
    string. A later event with the same begin and end, and valid JSON string content between them, is then the same JSON
    value with that text, by JSON's own grammar, and is not parsed.

    `is_answer`: the text belongs to the answer itself, not to its reasoning. `index`: its choice. `frame_begin` and
    `frame_end` are the same bytes with the SSE line around them.
    """

    __slots__ = ("_begin", "_end", "_tries", "frame_begin", "frame_end", "index", "is_answer", "learned")

    def __init__(self) -> None:
        self.learned = False
        self.is_answer = False
        self.index = 0
        self.frame_begin = self.frame_end = b""
        self._begin = self._end = b""
        self._tries = _TRIES

    def token_text(self, data: bytes) -> str | None:
        """Return the text of an event like the learned one. Returns None or "" where the event must be parsed."""
        if self.learned and data.startswith(self._begin) and data.endswith(self._end):
            return json_string(data[len(self._begin) : -len(self._end)])
        return None

    def learn(self, data: bytes, value: Any) -> None:
        """Learn from an event that held one token and nothing else. Changes `value`, which `data` was parsed to."""
        # A line end inside came from several data lines: framed anew it would be something else.
        # A numbered event must be read in full each time.
        if not self._tries or value.get("usage") is not None or "sequence_number" in value or b"\n" in data:
            return
        found = _token(value.get("choices"))
        if found is None:
            return
        holder, key = found
        quoted = b'"%s"' % holder[key].encode()
        at = data.rfind(quoted)
        if at < 0:  # it was written with escapes; another one will not be
            return
        self._tries -= 1
        begin, end = data[: at + 1], data[at + len(quoted) - 1 :]
        holder[key] = _PROBE_TEXT
        try:
            proved = orjson.loads(begin + _PROBE_TEXT.encode() + end) == value
        except orjson.JSONDecodeError:
            return
        if proved:
            self.learned, self._begin, self._end = True, begin, end
            self.frame_begin, self.frame_end = b"data: " + begin, end + b"\n\n"
            self.is_answer = key in {"content", "text"}
            self.index = value["choices"][0].get("index", 0)


UNLEARNED = EventTemplate()
"""A template that recognises nothing; whoever wants to learn makes one of its own."""


def _token(choices: Any) -> tuple[JsonObject, str] | None:
    """Find the event's only token. Returns None where there are several, or a finish_reason."""
    if not isinstance(choices, list) or len(choices) != 1 or choices[0].get("finish_reason") is not None:
        return None
    delta = choices[0].get("delta")
    if delta is None:
        return (choices[0], "text") if choices[0].get("text") else None
    if delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"):
        return None
    keys = [key for key in _TOKEN_KEYS if delta.get(key)]
    if keys and not isinstance(delta[keys[0]], str):
        return None
    return (delta, keys[0]) if len(keys) == 1 else None
