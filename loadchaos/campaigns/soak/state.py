"""State of a soak (soak.json) and the lock of its folder. Each action is recorded before it is done, so that a kill -9
leaves either the old or the new state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from loadchaos.core.errors import LedgerError, OptionError, next_step
from loadchaos.core.whole_file import write_json

SCHEMA = 1
FILE = "soak.json"
_RUNS_KEY = "nights"  # the key in soak.json, which stays so that old files can be read
_MOST_RUNS = 1000
Why = Literal["schedule", "catch_up", "queued", "once"]
What = Literal["ran", "skipped", "missed", "not_begun", "cut_short"]


@dataclass
class SoakRun:
    """Planned start and its result. Times are ISO 8601 in UTC; `folder` is a name in the soak's folder."""

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
    """Current run, as recorded. Without `pid` the soak was killed while it started the run."""

    planned: str | None
    why: Why
    started: str
    pid: int | None = None


@dataclass
class State:
    """Contents of soak.json. Every start planned until `handled_to` was run, queued, or noted as skipped or missed."""

    profile: str
    name: str
    since: str
    handled_to: str
    queued: str | None = None
    running: Running | None = None
    runs: list[SoakRun] = field(default_factory=list)

    def add(self, run: SoakRun) -> None:
        """Add the result of a start; drop the oldest beyond 1000. Those that still have a folder are kept."""
        self.runs.append(run)
        for old in [r for r in self.runs[:-_MOST_RUNS] if not r.folder or r.deleted]:
            self.runs.remove(old)


def iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()


def format_time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def load(home: Path, profile: str, name: str, now: datetime) -> State:
    """Load the state of a folder, or make one whose schedule begins now. Raises OptionError for an unreadable state and
    for that of another profile.
    """
    path = home / FILE
    try:
        data = orjson.loads(path.read_bytes())
        if data["schema"] != SCHEMA:
            raise OptionError(
                f"{path} was written by another version of loadchaos (schema {data['schema']}); move it away to start over"
            )
        state = State(
            **{
                **_known(State, data),
                "running": _made(Running, data.get("running")),
                "runs": [SoakRun(**_known(SoakRun, r)) for r in data.get(_RUNS_KEY) or []],
            }
        )
        parse_time(state.handled_to)
    except FileNotFoundError:
        return State(profile, name, iso(now), iso(now))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise OptionError(f"{path} cannot be read ({type(e).__name__}); move it away to start over") from e
    except OSError as e:
        raise OptionError(f"{path} cannot be read: {e.strerror}; give this soak another folder with --out") from e
    if state.name != name:
        raise OptionError(f"{home} has the soak of {state.name}; give {name} another folder with --out")
    state.profile = profile
    return state


T = TypeVar("T", Running, SoakRun, State)


def _known(kind: type[T], data: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {k: v for k, v in data.items() if k in names}


def _made(kind: type[T], data: dict[str, Any] | None) -> T | None:
    return None if data is None else kind(**_known(kind, data))


def save(home: Path, state: State) -> None:
    """Write soak.json in one step.

    A kill or a power cut leaves the old or the new file.

    Raises LedgerError when it cannot be written.
    """
    fields_ = asdict(state)
    fields_[_RUNS_KEY] = fields_.pop("runs")
    path = home / FILE
    try:
        write_json(path, {"schema": SCHEMA, **fields_}, sync=True)
    except OSError as e:
        raise LedgerError(f"{path}: cannot be written: {e.strerror}; {next_step(e)}") from e
