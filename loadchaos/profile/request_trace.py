"""Requests of a recorded run in order of cause: `trace.jsonl`.

The first line is the header, each further line one event: a request that is sent, an abort, an attack. A request names
the event that it waits for (`after`); without one it is sent at its time. Its body is a file `bodies/<hash>.json` beside
the trace, or a step of the plan that the header names. schemas/trace.json is generated from these models.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from loadchaos.core.errors import why_unread
from loadchaos.core.model import Outcome
from loadchaos.core.urls import CHAT_PATH
from loadchaos.core.whole_file import write_whole
from loadchaos.profile.base import ProfilePart
from loadchaos.profile.json_lines import json_lines, read_text

VERSION = 1
FILE, BODIES = "trace.jsonl", "bodies"


class Cause(ProfilePart):
    """Event of another request that has to come first. `token` counts chunks with content, from 1. `delay_s` is the
    time from the event to the request.
    """

    request: str
    event: Literal["begin", "token", "end"] = "end"
    token: int = Field(default=1, ge=1)
    delay_s: float = Field(default=0.0, ge=0)


class PlannedBody(ProfilePart):
    """Step of the plan that a body is built from, and the checks of its bytes."""

    phase: int = Field(ge=0)
    step: int = Field(ge=0)
    seed: int | None = None
    len: int | None = None
    crc: int | None = None
    hash: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")


class TraceHeader(ProfilePart):
    """First line of a trace.

    Attributes:
        source: Run, incident, recording or file that the trace was made from.
        model: Model that the bodies name; it is replaced where a server has another one.
        plan: File with the plan of the run, relative to the trace; `facts` has what was known of its server.
        failure: Failure that the trace led to, as in verdict.json.
        server: Command, URL, dialect and version of the server, where they are known.
    """

    event: Literal["trace"]
    version: int
    source: str = ""
    model: str = ""
    plan: str | None = None
    facts: str | None = None
    failure: Mapping[str, object] | None = None
    server: Mapping[str, object] = {}


class TraceSend(ProfilePart):
    """One request.

    Attributes:
        at_s: Time from the start of the load; it counts where `after` is empty.
        after: Events that have to come first.
        body: Content address: BLAKE2b of the body, 8 bytes as hex.
        plan: Step that the body is built from, where it is not stored.
        behaviour: Client behaviour with its options, as in a profile.
        outcome: Outcome that was recorded; None: it did not end.
    """

    event: Literal["send"] = "send"
    id: str
    at_s: float = Field(default=0.0, ge=0)
    after: tuple[Cause, ...] = ()
    traffic: str = Field(default="replay", pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")
    path: str = Field(default=CHAT_PATH, pattern=r"^/[!-~]*$")  # another character would begin a header of its own
    body: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    plan: PlannedBody | None = None
    stream: bool = True
    behaviour: Mapping[str, Mapping[str, object]] = {}
    expect: tuple[Outcome, ...] = ("ok",)
    outcome: str | None = None
    images: int = Field(default=0, ge=0)
    max_tokens: int | None = None


class TraceAbort(ProfilePart):
    """Abort of a request by its client: after a token, or after a time."""

    event: Literal["abort"] = "abort"
    request: str
    at_s: float = Field(default=0.0, ge=0)
    after_token: int | None = Field(default=None, ge=1)
    after_s: float | None = Field(default=None, ge=0)


class TraceAttack(ProfilePart):
    """One act of an attack. `attack` is its entry in a profile, without its times."""

    event: Literal["attack"] = "attack"
    id: str
    at_s: float = Field(ge=0)
    attack: Mapping[str, object]


TraceEvent = Annotated[TraceHeader | TraceSend | TraceAbort | TraceAttack, Field(discriminator="event")]
_EVENT: TypeAdapter[TraceEvent] = TypeAdapter(TraceEvent)


@dataclass(frozen=True)
class RequestTrace:
    """A trace in memory. `folder` has its bodies and its plan."""

    header: TraceHeader
    sends: tuple[TraceSend, ...]
    aborts: tuple[TraceAbort, ...] = ()
    attacks: tuple[TraceAttack, ...] = ()
    folder: Path = Path()

    def body_file(self, send: TraceSend) -> Path:
        """File with the body of a request; the request needs a content address."""
        return self.folder / BODIES / f"{send.body}.json"

    def only(self, ids: Iterable[str]) -> RequestTrace:
        """Trace of these requests alone. A request that waited for one that is left out waits for what that one waited
        for.
        """
        kept = set(ids)
        known = {s.id: s for s in self.sends}
        begin_s = min((s.at_s for s in self.sends if s.id in kept), default=0.0)
        return replace(
            self,
            sends=tuple(
                s.model_copy(update={"at_s": s.at_s - begin_s, "after": _kept_causes(s.after, known, kept)})
                for s in self.sends
                if s.id in kept
            ),
            aborts=tuple(a for a in self.aborts if a.request in kept),
            attacks=tuple(
                a.model_copy(update={"at_s": a.at_s - begin_s})
                for a in self.attacks
                if a.at_s >= begin_s or begin_s == 0
            ),
        )

    @property
    def dialect(self) -> str:
        """Dialect of the recorded server; vllm where it is not known."""
        return str(self.header.server.get("dialect") or "vllm")

    def traffic_names(self) -> list[str]:
        return list(dict.fromkeys(s.traffic for s in self.sends))


def _kept_causes(after: Sequence[Cause], known: Mapping[str, TraceSend], kept: set[str]) -> tuple[Cause, ...]:
    found: dict[tuple[str, str, int], Cause] = {}
    waiting, seen = list(after), set[str]()
    while waiting:
        cause = waiting.pop()
        if cause.request in kept:
            found.setdefault((cause.request, cause.event, cause.token), cause)
        elif cause.request in known and cause.request not in seen:
            seen.add(cause.request)
            waiting += known[cause.request].after
    return tuple(found.values())


def read(file: Path) -> RequestTrace:
    """Read a trace. Raises ValueError with file, line and key of a mistake."""
    try:
        status = file.stat()
    except OSError as e:
        raise ValueError(f"{file}: {why_unread(e)}") from e
    return _read(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read(file: Path, _changed_ns: int, _size: int) -> RequestTrace:
    events = [(where, _event(where, value)) for where, value in json_lines(file, read_text(file))]
    if not events or not isinstance(events[0][1], TraceHeader):
        raise ValueError(f'{file}:1: event: the first line of a trace has the event "trace"')
    header = events[0][1]
    if header.version > VERSION:
        raise ValueError(f"{file}:1: version: at most {VERSION} was expected (got {header.version}): update loadchaos")
    sends = tuple(e for _, e in events if isinstance(e, TraceSend))
    aborts = tuple(e for _, e in events if isinstance(e, TraceAbort))
    _check_names(events, {s.id for s in sends})
    if not sends:
        raise ValueError(f"{file}: the trace has no requests")
    attacks = tuple(e for _, e in events if isinstance(e, TraceAttack))
    return RequestTrace(header, sends, aborts, attacks, file.parent)


def _event(where: str, value: object) -> TraceEvent:
    try:
        return _EVENT.validate_python(value)
    except ValidationError as e:
        raise ValueError(f"{where}: {first_mistake(e, 1)}") from e


def first_mistake(e: ValidationError, outer: int = 0) -> str:
    """Say in one line what was wrong first, without the `outer` first parts of its place."""
    first = e.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"][outer:]) or "event"
    return f"{key}: {first['msg']} (got {str(first['input'])[:60]!r})"


def _check_names(events: Sequence[tuple[str, TraceEvent]], ids: set[str]) -> None:
    seen: set[str] = set()
    for where, event in events:
        if isinstance(event, TraceSend):
            if event.id in seen:
                raise ValueError(f"{where}: id: another request of the trace has the id {event.id!r}")
            seen.add(event.id)
            missing = next((c.request for c in event.after if c.request not in ids), None)
            if missing is not None:
                raise ValueError(f"{where}: after: the trace has no request {missing!r}")
        elif isinstance(event, TraceAbort) and event.request not in ids:
            raise ValueError(f"{where}: request: the trace has no request {event.request!r}")


def write(trace: RequestTrace, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[TraceSend | TraceAbort | TraceAttack] = sorted(
        [*trace.sends, *trace.aborts, *trace.attacks], key=lambda e: (e.at_s, e.event != "send")
    )
    lines = [_line(row) for row in (trace.header, *rows)]
    file = folder / FILE
    write_whole(file, "".join(lines))
    return file


def _line(row: ProfilePart) -> str:
    return json.dumps({"event": row.__dict__["event"], **row.model_dump(mode="json", exclude_defaults=True)}) + "\n"


def schema() -> str:
    """JSON Schema of one line, as committed in schemas/trace.json."""
    data = _EVENT.json_schema()
    data["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
