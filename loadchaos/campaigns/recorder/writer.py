"""Process that writes a recording: `python -m loadchaos.campaigns.recorder.writer FD`.

It reads frames from a socket, makes rows of them and appends them to the ring. Its first frame has the key of the hashes,
which it never writes. When the socket ends, it writes what it has and ends. A disk that is full stops the recording for a
while; the frames that come meanwhile are dropped.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from loadchaos.campaigns.recorder.frames import FrameKind, FrameReader, RecordingSetup
from loadchaos.campaigns.recorder.ring import RingLimits, SegmentRing
from loadchaos.campaigns.recorder.shape import BLOCK_CHARS, BodyShaper, UnreadableBodyError
from loadchaos.core.redact import REDACTED, Redactor
from loadchaos.core.secret_patterns import is_secret_header

VERSION = 1
RETRY_S = 5.0
_READ_BYTES = 1 << 20


class RecordingWriter:
    """Makes rows of frames. `notices` collects what the proxy has to tell its user."""

    def __init__(self) -> None:
        self.notices: list[dict[str, object]] = []
        self._bodies_kept = False
        self._shaper = BodyShaper(b"")
        self._ring: SegmentRing | None = None
        self._rows: list[bytes] = []
        self._bodies: dict[int, list[bytes]] = {}
        self._secrets: dict[int, list[str]] = {}
        self._stopped_s: float | None = None
        self._dropped = 0

    def feed(self, kind: FrameKind, number: int, data: bytes) -> None:
        if kind is FrameKind.BODY:
            if number in self._bodies:
                self._bodies[number].append(data)
            return
        given = orjson.loads(data)
        if kind is FrameKind.SETUP:
            self._open(RecordingSetup(**given))
        elif kind is FrameKind.BEGIN:
            self._bodies[number] = []
            self._secrets[number] = given.pop("secrets", [])
            self._row({"row": "begin", "id": number, **given})
        elif kind is FrameKind.BODY_END:
            self._row(
                {"row": "body", "id": number, "bytes": given["bytes"], **self._content(number, lost=given["lost"])}
            )
        elif kind is FrameKind.FREEZE:
            self._freeze(str(given["reason"]), int(given["at_ns"]))
        else:
            names = {FrameKind.END: "end", FrameKind.PROGRESS: "progress", FrameKind.GAP: "gap"}
            self._row({"row": names[kind], **({"id": number} if kind is FrameKind.END else {}), **given})

    def flush(self) -> None:
        """Write all rows; where the disk refuses, drop them and try again later."""
        rows, self._rows = self._rows, []
        if not rows or self._ring is None:
            return
        now = time.monotonic()
        if self._stopped_s is not None and now - self._stopped_s < RETRY_S:
            self._dropped += len(rows)
            return
        try:
            if self._stopped_s is not None:
                self._ring.append([_line({"row": "gap", "rows": self._dropped, "why": "the disk refused rows"})])
            self._ring.append(rows)
        except OSError as e:
            self._ring.close()
            self._dropped += len(rows)
            if self._stopped_s is None:
                self.notices.append({"what": "stopped", "why": e.strerror or str(e)})
            self._stopped_s = now
            return
        if self._stopped_s is not None:
            self.notices.append({"what": "resumed", "rows": self._dropped})
            self._stopped_s, self._dropped = None, 0

    def close(self) -> None:
        self.flush()
        if self._ring is not None:
            self._ring.close()

    def _open(self, setup: RecordingSetup) -> None:
        self._shaper = BodyShaper(bytes.fromhex(setup.key))
        self._ring = SegmentRing(Path(setup.folder), RingLimits(setup.keep_s, setup.max_bytes), lambda: _header(setup))
        self._bodies_kept = setup.bodies

    def _row(self, row: dict[str, object]) -> None:
        self._rows.append(_line(row))

    def _content(self, number: int, *, lost: bool) -> dict[str, object]:
        pieces, secrets = self._bodies.pop(number, None), self._secrets.pop(number, [])
        if pieces is None or lost:
            return {"why": "it did not arrive whole, or was too large to be kept"}
        body = b"".join(pieces)
        if not body:
            return {}
        try:
            if self._bodies_kept:
                return {"body": _redacted(body, secrets)}
            return {"shape": self._shaper.shape(body)}
        except UnreadableBodyError:
            return {"why": "it is no JSON"}

    def _freeze(self, reason: str, at_ns: int) -> None:
        if self._ring is None:
            return
        self._row({"row": "freeze", "at_ns": at_ns, "reason": reason})
        self.flush()
        try:
            self.notices.append({"what": "frozen", "reason": reason, "path": str(self._ring.freeze(reason))})
        except OSError as e:
            why = e.strerror if e.errno else str(e)
            self.notices.append({"what": "not_frozen", "reason": reason, "why": why})


def _header(setup: RecordingSetup) -> bytes:
    return _line(
        {
            "row": "recording",
            "version": VERSION,
            "block_chars": BLOCK_CHARS,
            "at_ns": time.monotonic_ns(),
            "unix_ns": time.time_ns(),
            "bodies": setup.bodies,
            "upstream": setup.upstream,
            "recording": setup.recording,
        }
    )


def _line(row: dict[str, object]) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _redacted(body: bytes, secrets: list[str]) -> Any:
    """Replace secrets in every text of a body, but not in images. Base64 of an image may look like a key."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise UnreadableBodyError("no JSON: a JSON body was expected") from None
    redactor = Redactor(secrets)

    def text(one: str) -> str:
        if one.startswith("data:"):
            return one
        return redactor.redact(one.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")

    def replaced(one: Any) -> Any:
        if isinstance(one, str):
            return text(one)
        if isinstance(one, list):
            return [replaced(v) for v in one]
        if isinstance(one, dict):
            return {
                text(k): REDACTED if isinstance(v, str) and is_secret_header(k) else replaced(v) for k, v in one.items()
            }
        return one

    try:
        return replaced(value)
    except RecursionError:
        raise UnreadableBodyError("nested too deeply: fewer levels were expected") from None


def main(argv: list[str]) -> int:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(ignored, signal.SIG_IGN)  # the proxy ends us, after its last answers
    os.umask(0o077)
    os.nice(5)
    channel = socket.socket(fileno=int(argv[1]))
    reader, writer = FrameReader(), RecordingWriter()
    while data := channel.recv(_READ_BYTES):
        for kind, number, content in reader.feed(data):
            writer.feed(kind, number, content)
        writer.flush()
        for notice in writer.notices:
            channel.sendall(_line(notice))
        writer.notices.clear()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
