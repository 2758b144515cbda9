"""Make a trace of a recording. Bodies are those that were recorded, or synthetic ones of the recorded shapes. Requests
have their times. A request whose messages continue those of an earlier one waits for its answer, as its client did.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadchaos.campaigns.recorder.ring import FROZEN, RING, segments_of
from loadchaos.campaigns.recorder.synthetic import body_of
from loadchaos.core.body_hash import store_body
from loadchaos.core.errors import OptionError
from loadchaos.core.model import Row
from loadchaos.core.typed_json import from_json
from loadchaos.load.endpoints import known_endpoint_of_path
from loadchaos.load.wire.contract import OUTPUT_LIMITS
from loadchaos.profile.request_trace import (
    BODIES,
    VERSION,
    Cause,
    RequestTrace,
    TraceAbort,
    TraceHeader,
    TraceSend,
)

_ALSO_REPLAYED = ("/pooling", "/classify", "/generate")
"""Paths whose requests are sent again beside those of endpoints."""
_GENERATING = ("chat", "completions")
_GUIDED = {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "tools"}
"""Keys of bodies whose answer ends by its own grammar."""


@dataclass(frozen=True)
class _Header:
    """First row of a segment: id of its recording, the server, and one moment by both clocks."""

    recording: str
    upstream: str
    at_ns: int
    unix_ns: int

    def name(self, number: object) -> str:
        return f"r{self.recording[:4]}-{number}"

    def unix(self, row: Row) -> int:
        return self.unix_ns - self.at_ns + int(row["at_ns"])


@dataclass(frozen=True)
class _End:
    """End row of a request."""

    outcome: str | None = None
    finish: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0


@dataclass
class RecordedRequest:
    """Rows of one request; times in ns of the wall clock. `content` is its body, or the shape of it."""

    id: str
    at_ns: int
    path: str
    content: object = None
    whole: bool = False
    end: _End = _End()
    end_ns: int | None = None
    tokens: int = 0


def recording_of(path: Path) -> Path | None:
    """Folder with the segments of a recording: for the --out folder the newest kept recording, else the ring."""
    if segments_of(path):
        return path
    kept = sorted(p for p in path.glob(f"{FROZEN}-*") if segments_of(p))
    if kept:
        return kept[-1]
    return path / RING if segments_of(path / RING) else None


def trace_of_recording(path: Path, scratch: Path, until_ns: int | None = None) -> RequestTrace:
    """Make the trace of a recording, up to a moment of the monotonic clock of its machine; its bodies are stored under
    `scratch`. Raises OptionError where no request can be sent again.
    """
    found, url = _requests(path, math.inf if until_ns is None else until_ns)
    requests = sorted(found, key=lambda r: r.at_ns)
    usable = [
        (r, r.content)
        for r in requests
        if (known_endpoint_of_path(r.path) or r.path in _ALSO_REPLAYED)
        and isinstance(r.content, dict)
        and r.end.outcome != "connect_error"
    ]
    if not usable:
        raise OptionError(
            f"{path}: the recording has no request that can be sent again (of {len(requests):,}): run loadchaos record "
            "while clients send some"
        )
    sends: list[TraceSend] = []
    aborts: list[TraceAbort] = []
    causes = _Conversations()
    for request, content in usable:
        at_s = (request.at_ns - usable[0][0].at_ns) / 1e9
        outcome, streamed = request.end.outcome, content.get("stream") is True
        sends.append(
            TraceSend(
                id=request.id,
                at_s=at_s,
                after=causes.cause(request, content),
                path=request.path,
                body=store_body(scratch / BODIES, _body(request, content)),
                stream=streamed,
                outcome=outcome,
                images=images_in(content),
                max_tokens=_limit(content),
            )
        )
        if outcome == "aborted" and request.end_ns is not None:
            tokens = request.tokens if streamed else 0
            after_s = (request.end_ns - request.at_ns) / 1e9
            aborts.append(
                TraceAbort(
                    request=request.id,
                    at_s=at_s + after_s,
                    after_token=tokens or None,
                    after_s=None if tokens else after_s,
                )
            )
    model = next((str(content["model"]) for _, content in usable if content.get("model")), "")
    server = {} if url is None else {"url": url}
    header = TraceHeader(event="trace", version=VERSION, source=str(path), model=model, server=server)
    return RequestTrace(header, tuple(sends), tuple(aborts), folder=scratch)


def _requests(path: Path, until_ns: float) -> tuple[list[RecordedRequest], str | None]:
    """Read the requests of a recording, and the URL of the server; None without a whole segment."""
    found: dict[str, RecordedRequest] = {}
    url = None
    for segment in segments_of(path):
        header: _Header | None = None
        for row in _rows(segment):
            kind = row.get("row")
            if kind == "recording":
                header = from_json(_Header, row)
                url = header.upstream
            elif header is None:
                continue
            elif kind == "begin" and row["at_ns"] <= until_ns:
                name = header.name(row["id"])
                found[name] = RecordedRequest(name, header.unix(row), str(row["path"]))
            elif kind == "progress":
                for number, tokens in row["tokens"].items():
                    if (open_one := found.get(header.name(number))) is not None:
                        open_one.tokens = int(tokens)
            elif (request := found.get(header.name(row.get("id")))) is None:
                continue
            elif kind == "body":
                request.whole = "body" in row
                request.content = row.get("body", row.get("shape"))
            elif kind == "end":
                request.end, request.end_ns = from_json(_End, row), header.unix(row)
                request.tokens = request.end.tokens
    return list(found.values()), url


def _rows(segment: Path) -> Iterator[Row]:
    try:
        with segment.open("rb") as lines:
            for line in lines:
                try:
                    row = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # the disk was full, or the writer was killed
                if isinstance(row, dict):
                    yield row
    except OSError as e:
        raise OptionError(f"{segment}: {e.strerror}; give a folder that this user may read") from e


def _body(request: RecordedRequest, content: dict[str, object]) -> bytes:
    """Body to send: the recorded one, or one of its shape. Its answer shall be as long as the recorded one."""
    if request.whole:
        return orjson.dumps(content)
    settings: dict[str, object] = {}
    if known_endpoint_of_path(request.path) in _GENERATING and not _GUIDED & content.keys():
        settings["ignore_eos"] = True
        end = request.end
        length = end.usage.get("completion_tokens") or end.usage.get("output_tokens") or request.tokens
        if end.outcome == "ok" and end.finish == "stop" and length:
            settings[next((k for k in OUTPUT_LIMITS if k in content), "max_tokens")] = length
    return body_of(content, settings)


def _limit(content: Mapping[str, object]) -> int | None:
    return next((v for k in OUTPUT_LIMITS if type(v := content.get(k)) is int), None)


def images_in(content: Any) -> int:
    if isinstance(content, dict):
        if content.get("type") in ("image_url", "input_image", "image"):
            return 1
        return sum(images_in(v) for v in content.values())
    return sum(images_in(v) for v in content) if isinstance(content, list) else 0


class _Conversations:
    """Finds the request whose messages another one continues."""

    def __init__(self) -> None:
        self._newest: dict[bytes, RecordedRequest] = {}

    def cause(self, request: RecordedRequest, content: Mapping[str, object]) -> tuple[Cause, ...]:
        """Cause of a request; () without an earlier turn that had ended."""
        messages = content.get("messages")
        if not isinstance(messages, list) or not messages:
            return ()
        digest, names = hashlib.blake2b(digest_size=16), []
        for message in messages:
            digest.update(orjson.dumps(message))
            names.append(digest.digest())
        found: tuple[Cause, ...] = ()
        for name in reversed(names[:-1]):
            earlier = self._newest.get(name)
            if earlier is not None and earlier.end_ns is not None and earlier.end_ns <= request.at_ns:
                found = (Cause(request=earlier.id, delay_s=(request.at_ns - earlier.end_ns) / 1e9),)
                break
        self._newest[names[-1]] = request
        return found
