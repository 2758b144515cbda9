"""What a soak remembers between its starts: soak.json, written whole or not at all, and the lock that makes it the only one.

Everything that is about to be done is written down before it is done, so a kill -9 leaves either the old or the new truth.
"""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from loadchaos.core.errors import LedgerError, OptionError, next_step

SCHEMA = 1
FILE = "soak.json"
_LOCK = ".soak.lock"
_MOST_NIGHTS = 1000
Why = Literal["schedule", "catch_up", "queued", "once"]
What = Literal["ran", "skipped", "missed", "not_begun", "cut_short"]


@dataclass
class SoakRun:
    """One start that was due and what became of it. Times are ISO 8601 in UTC; `folder` is a name in the soak's folder."""

    planned: str | None
    why: Why
    what: What
    started: str | None = None
    ended: str | None = None
    exit_code: int | None = None
    verdict: str | None = None
    folder: str | None = None
    times: int = 1
    text: str = ""
    deleted: bool = False


@dataclass
class Running:
    """The run that was begun and is not yet recorded as ended; without `pid` we were killed while starting it."""

    planned: str | None
    why: Why
    started: str
    pid: int | None = None


@dataclass
class State:
    """`handled_to`: every start planned until then has been run, queued, or noted as skipped or missed."""

    profile: str
    name: str
    since: str
    handled_to: str
    queued: str | None = None
    running: Running | None = None
    nights: list[SoakRun] = field(default_factory=list)

    def note(self, night: SoakRun) -> None:
        """Remember what became of a start; what is older than the last thousand and has no folder is forgotten."""
        self.nights.append(night)
        for old in [n for n in self.nights[:-_MOST_NIGHTS] if not n.folder or n.deleted]:
            self.nights.remove(old)


def iso(when: datetime) -> str:
    """A time as it stands in soak.json."""
    return when.astimezone(UTC).isoformat()


def told(at: datetime) -> str:
    """A time as a person reads it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def when(text: str) -> datetime:
    """A time out of soak.json."""
    return datetime.fromisoformat(text)


def load(home: Path, profile: str, name: str, now: datetime) -> State:
    """The state in a folder, or a new one whose schedule begins now. OptionError for what is another soak's."""
    path = home / FILE
    try:
        data = orjson.loads(path.read_bytes())
        if data["schema"] != SCHEMA:
            raise OptionError(
                f"{path} was written by another version of loadchaos (schema {data['schema']}); move it away to begin anew"
            )
        state = State(
            **{
                **_known(State, data),
                "running": _made(Running, data.get("running")),
                "nights": [SoakRun(**_known(SoakRun, n)) for n in data.get("nights") or []],
            }
        )
        when(state.handled_to)
    except FileNotFoundError:
        return State(profile, name, iso(now), iso(now))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise OptionError(f"{path} cannot be read ({type(e).__name__}); move it away to begin anew") from e
    except OSError as e:
        raise OptionError(f"{path} cannot be read: {e.strerror}; --out gives this soak a folder of its own") from e
    if state.name != name:
        raise OptionError(f"{home} holds the soak of {state.name}; --out gives {name} a folder of its own")
    state.profile = profile
    return state


T = TypeVar("T", Running, SoakRun, State)


def _known(kind: type[T], data: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {k: v for k, v in data.items() if k in names}


def _made(kind: type[T], data: dict[str, Any] | None) -> T | None:
    return None if data is None else kind(**_known(kind, data))


def save(home: Path, state: State) -> None:
    """Write soak.json so that a kill or a power cut leaves the old one or the new one. LedgerError when it cannot be."""
    data = orjson.dumps({"schema": SCHEMA, **asdict(state)}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_whole(home / FILE, data)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file in one step, on disk when this returns. LedgerError when it cannot be written."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as e:
        raise LedgerError(f"{path}: cannot be written: {e.strerror}; {next_step(e)}") from e


class Lock:
    """One soak a folder: held while this object lives, and free at once when its process is killed."""

    def __init__(self, home: Path, what: str, now: datetime) -> None:
        path = home / _LOCK
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise OptionError(f"{path} cannot be written: {e.strerror}; {next_step(e)}") from e
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 1000).decode("utf-8", "replace").strip() or "somebody who has not said who"
            os.close(self._fd)
            raise OptionError(f"{home}: soaked already by {holder}; --out gives this one a folder of its own") from None
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"pid {os.getpid()} on {socket.gethostname()} since {iso(now)} ({what})\n".encode())

    def close(self) -> None:
        """Give it free."""
        os.close(self._fd)
