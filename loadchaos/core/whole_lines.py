"""Join the parts of log lines that a log collector cut.

Known are the parts `P` and `F` of Kubernetes' log files (CRI), records of Docker's json-file driver whose text does not
end with a newline, and lines over 48 KiB that journald split. A MESSAGE that journald wrote as a list of bytes becomes
text. Lines come one by one; a part is held until its line is whole, for two seconds at most while a log is followed.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from loadchaos.core.foreign_json import json_object

LONGEST_CHARS = 1 << 20
"""A line that is longer is given in pieces."""
HELD_NS = 2_000_000_000
_DOCKER_PART_CHARS = 16_000  # parts have 16 KiB; redacted ones and those with characters of several bytes are shorter
_JOURNAL_PART_BYTES = 48 << 10
_LONG_CHARS = 8 << 10  # no part of journald has fewer: a character has up to 4 bytes
_MOST_OPEN = 64
_MOST_UNPROVED = 100

_CRI = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?P<stream>stdout|stderr) (?P<part>[PF])(?::\S*)? ")
_DOCKER = re.compile(r'(?P<begin>\{"log":")(?P<text>[^"\\]*(?:\\.[^"\\]*)*)(?P<end>","(?:stream|attrs)".*\})\Z')
_DOCKER_STREAM = re.compile(r'"stream":"(\w+)"')
_BYTES = re.compile(r'\{.*"MESSAGE" ?: ?\[')
_SHORT = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\S+) (?P<writer>[\w.-]+ [\w.@/()-]+\[\d+\]): "
)
_STAMP_CHARS = 48


class WholeLine(NamedTuple):
    """A line as its first part began it, with the texts of the others. Number and arrival (monotonic ns; None for a log
    that is not followed) are those of the first part. `raw_lines` is the number of lines of the file that it was cut
    into.
    """

    text: str
    line_no: int
    at_ns: int | None = None
    raw_lines: int = 1


class _Piece(NamedTuple):
    """A raw line that may be a part. `kind` and `writer` say which other pieces belong to it. `text` is its own text,
    `more`: its line is not whole. `unproved`: only the next piece shows that.
    """

    kind: str
    writer: str
    begin: str
    text: str
    end: str
    more: bool
    unproved: bool = False


class _Held(NamedTuple):
    first: _Piece
    texts: list[str]
    line_no: int
    at_ns: int | None
    newest_ns: int
    raw_lines: int

    @property
    def chars(self) -> int:
        return sum(map(len, self.texts))

    def line(self) -> WholeLine:
        text = "".join(self.texts)
        if self.first.kind == "journal":
            record = json.loads(self.first.begin)
            return WholeLine(json.dumps({**record, "MESSAGE": text}), self.line_no, self.at_ns, self.raw_lines)
        return WholeLine(self.first.begin + text + self.first.end, self.line_no, self.at_ns, self.raw_lines)


class LineJoiner:
    """Joins the lines of one log: `feed` them in order, then `flush`. A held line is given when its last part has come,
    when a line of another kind follows, when it is too long, and by `expire` and `flush`. So a line may come after
    others that began later.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._keeps_newlines = False  # Docker's records have ended with a newline
        self._unproved = 0

    def feed(
        self, line: str, line_no: int, at_ns: int | None = None, *, now_ns: int = 0, raw_lines: int = 1
    ) -> list[WholeLine]:
        """Fold the next raw line; gives the lines that are whole now. `raw_lines` is the number of lines of the file
        that it was made of, `now_ns` the present for `expire`.
        """
        held = self._held
        if not held and line[:1] != "{" and " std" not in line[:_STAMP_CHARS] and len(line) < _LONG_CHARS:
            return [WholeLine(line, line_no, at_ns, raw_lines)]
        if '"MESSAGE"' in line and _BYTES.match(line):
            line = _as_text(line)
        piece = self._piece(line)
        if piece is None:
            return [*self.flush(), WholeLine(line, line_no, at_ns, raw_lines)]
        found = [] if all(h.first.kind == piece.kind for h in held.values()) else self.flush()
        before = held.pop(piece.writer, None)
        if before is not None and piece.unproved and before.first.unproved:
            found.append(before.line())  # this writer drops the newlines: each record is a line
            before = None
        if before is None:
            this = _Held(piece, [piece.text], line_no, at_ns, now_ns, raw_lines)
        else:
            texts = (
                [*before.texts, piece.text] if len(before.texts) < _MOST_OPEN else ["".join(before.texts), piece.text]
            )
            this = before._replace(texts=texts, newest_ns=now_ns, raw_lines=before.raw_lines + raw_lines)
        if piece.more and this.chars < LONGEST_CHARS:
            held[piece.writer] = this
            if len(held) > _MOST_OPEN:
                found.append(held.pop(next(iter(held))).line())
        elif before is None:
            found.append(WholeLine(line, line_no, at_ns, raw_lines))
        else:
            found.append(this.line())
        return found

    def expire(self, now_ns: int) -> list[WholeLine]:
        """Give the lines whose next part has not come for two seconds."""
        late = [writer for writer, held in self._held.items() if now_ns - held.newest_ns > HELD_NS]
        return [self._held.pop(writer).line() for writer in late]

    def flush(self) -> list[WholeLine]:
        """Give all held lines, in the order in which they began."""
        held, self._held = sorted(self._held.values(), key=lambda h: h.line_no), {}
        return [one.line() for one in held]

    def held_texts(self) -> list[str]:
        return [held.line().text for held in self._held.values()]

    def _piece(self, line: str) -> _Piece | None:
        if (found := _CRI.match(line)) is not None:
            begin, text = line[: found.end()], line[found.end() :]
            return _Piece("cri", found["stream"], begin, text, "", found["part"] == "P")
        if (found := _DOCKER.match(line)) is not None:
            return self._docker_piece(found)
        held_kinds = {held.first.kind for held in self._held.values()}
        if line.startswith("{"):
            return _journal_piece(line) if "journal" in held_kinds or "line-max" in line else None
        if "plain" in held_kinds or len(line) >= _LONG_CHARS:
            more = len(line.encode("utf-8", "replace")) == _JOURNAL_PART_BYTES
            if (stamp := _SHORT.match(line)) is not None:
                text = line[stamp.end() :]
                more = len(text.encode("utf-8", "replace")) == _JOURNAL_PART_BYTES
                return _Piece("plain", stamp["writer"], line[: stamp.end()], text, "", more)
            return _Piece("plain", "", "", line, "", more) if more or "" in self._held else None
        return None

    def _docker_piece(self, found: re.Match[str]) -> _Piece:
        text, stream = found["text"], _DOCKER_STREAM.search(found["end"])
        backslashes = len(text) - 1 - len(text[:-1].rstrip("\\"))
        ended = text.endswith("n") and backslashes % 2 == 1
        self._keeps_newlines = self._keeps_newlines or ended
        unproved = not ended and not self._keeps_newlines and len(text) < _DOCKER_PART_CHARS
        self._unproved += unproved
        more = not ended and not (unproved and self._unproved > _MOST_UNPROVED)
        return _Piece("docker", stream[1] if stream else "", found["begin"], text, found["end"], more, unproved)


def _journal_piece(line: str) -> _Piece | None:
    record = json_object(line)
    text = record.get("MESSAGE")
    if not isinstance(text, str):
        return None
    writer = str(record.get("_STREAM_ID") or record.get("_PID") or "")
    return _Piece("journal", writer, line, text, "", record.get("_LINE_BREAK") == "line-max")


def _as_text(line: str) -> str:
    record = json_object(line)
    try:
        record["MESSAGE"] = bytes(record["MESSAGE"]).decode("utf-8", "replace")
    except (ValueError, TypeError, KeyError):  # no such record
        return line
    return json.dumps(record)
