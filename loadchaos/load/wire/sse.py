"""Parse server-sent events (SSE, text/event-stream) from bytes.

The rules are those of the HTML standard (9.2.6, "Interpreting an event stream"): a line ends with CR LF, LF or CR and
with nothing else, a blank line ends the event, `:` begins a comment, several data lines are joined with LF. Text stays
bytes, so a UTF-8 character cut by a packet needs no care, and U+2028 is no line end. Sans-I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 8 << 20
"""Limit of one event of a stream. Those of chat answers have up to some 100 kB (log probabilities)."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """One event: its data lines joined with LF, and its name ("" without)."""

    data: bytes
    name: str


class SseParser:
    """Incremental parser: any split of the bytes gives the same events.

    `comments` counts comment lines (keep-alives). After the last byte, `close` returns an unfinished event. `too_long`: an
    event has passed MAX_EVENT_BYTES, and nothing more is read.
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
        """Take the unfinished line."""
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
