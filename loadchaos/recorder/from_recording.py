"""Make a trace of a recording. Bodies are those that were recorded, or synthetic ones of the recorded shapes. Requests
have their times. A request whose messages continue those of an earlier one waits for its answer, as its client did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.body_hash import store_body
from loadchaos.core.errors import OptionError
from loadchaos.profile.request_trace import (
    BODIES,
    VERSION,
    Cause,
    RequestTrace,
    TraceAbort,
    TraceHeader,
    TraceSend,
)
from loadchaos.recorder.ring import FROZEN, RING, segments_of
from loadchaos.recorder.synthetic import body_of

_REPLAYED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
    "/generate",
)
_GENERATING = ("/v1/chat/completions", "/v1/completions")
_GUIDED = {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "tools"}
"""Keys of bodies whose answer ends by its own grammar."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass
class RecordedRequest:
    """Rows of one request; times in ns of the wall clock."""

    id: str
    at_ns: int
    path: str
    body: dict[str, object] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    end_ns: int | None = None
    tokens: int = 0

    @property
    def content(self) -> Any:
        """The body, or its shape."""
        return self.body.get("body", self.body.get("shape"))


def recording_of(path: Path) -> Path | None:
    """Folder with the segments of a recording: for the --out folder the newest kept recording, else the ring."""
    if segments_of(path):
        return path
    kept = sorted(p for p in path.glob(f"{FROZEN}-*") if segments_of(p))
    if kept:
        return kept[-1]
    return path / RING if segments_of(path / RING) else None


def trace_of_recording(path: Path, scratch: Path) -> RequestTrace:
    """Make the trace of a recording; its bodies are stored under `scratch`. Raises OptionError where no request can be
    sent again.
    """
    server: dict[str, object] = {}
    requests = sorted(_requests(path, server).values(), key=lambda r: r.at_ns)
    usable = [
        r
        for r in requests
        if r.path in _REPLAYED and isinstance(r.content, dict) and r.end.get("outcome") != "connect_error"
    ]
    if not usable:
        raise OptionError(
            f"{path}: the recording has no request that can be sent again (of {len(requests):,}): run loadchaos record "
            "while clients send some"
        )
    sends: list[TraceSend] = []
    aborts: list[TraceAbort] = []
    causes = _Conversations()
    for request in usable:
        content: dict[str, object] = request.content
        at_s = (request.at_ns - usable[0].at_ns) / 1e9
        outcome, streamed = request.end.get("outcome"), content.get("stream") is True
        sends.append(
            TraceSend(
                id=request.id,
                at_s=at_s,
                after=causes.cause(request, content),
                path=request.path,
                body=store_body(scratch / BODIES, _body(request, content)),
                stream=streamed,
                outcome=outcome,
                images=_images(content),
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
    model = next((str(r.content["model"]) for r in usable if r.content.get("model")), "")
    header = TraceHeader(event="trace", version=VERSION, source=str(path), model=model, server=server)
    return RequestTrace(header, tuple(sends), tuple(aborts), folder=scratch)


def _requests(path: Path, server: dict[str, object]) -> dict[str, RecordedRequest]:
    found: dict[str, RecordedRequest] = {}
    for segment in segments_of(path):
        header: dict[str, Any] = {}
        for row in _rows(segment):
            kind = row.get("row")
            if kind == "recording":
                header = row
                server["url"] = str(row.get("upstream") or "")
                continue
            if not header:
                continue
            name = f"r{header['recording'][:4]}-{row.get('id')}"
            zero_ns = int(header["unix_ns"]) - int(header["at_ns"])
            if kind == "begin":
                found[name] = RecordedRequest(name, zero_ns + int(row["at_ns"]), str(row["path"]))
            elif kind == "body" and name in found and ("shape" in row or "body" in row):
                found[name].body = row
            elif kind == "end" and name in found:
                found[name].end, found[name].end_ns = row, zero_ns + int(row["at_ns"])
                found[name].tokens = int(row.get("tokens") or 0)
            elif kind == "progress":
                for number, tokens in row["tokens"].items():
                    if (open_one := found.get(f"r{header['recording'][:4]}-{number}")) is not None:
                        open_one.tokens = int(tokens)
    return found


def _rows(segment: Path) -> Iterator[dict[str, Any]]:
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
    if "body" in request.body:
        return orjson.dumps(content)
    settings: dict[str, object] = {}
    if request.path in _GENERATING and not _GUIDED & content.keys():
        settings["ignore_eos"] = True
        end, usage = request.end, request.end.get("usage") or {}
        length = usage.get("completion_tokens") or usage.get("output_tokens") or request.tokens
        if end.get("outcome") == "ok" and end.get("finish") == "stop" and length:
            settings[next((k for k in _LIMITS if k in content), "max_tokens")] = length
    return body_of(content, settings)


def _limit(content: Mapping[str, object]) -> int | None:
    return next((v for k in _LIMITS if type(v := content.get(k)) is int), None)


def _images(content: Any) -> int:
    if isinstance(content, dict):
        if content.get("type") in ("image_url", "input_image", "image"):
            return 1
        return sum(_images(v) for v in content.values())
    return sum(_images(v) for v in content) if isinstance(content, list) else 0


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
