"""State of a soak (soak.json) and the lock of its folder. Each action is recorded before it is done, so that a kill -9
leaves either the old or the new state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from loadchaos.campaigns.campaign import Campaign, saved
from loadchaos.core.errors import OptionError
from loadchaos.core.typed_json import from_json, key
from loadchaos.core.units import iso_utc

SCHEMA: Literal[1] = 1
FILE = "soak.json"
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

    schema: Literal[1]
    profile: str
    name: str
    since: str
    handled_to: str
    queued: str | None = None
    running: Running | None = None
    runs: tuple[SoakRun, ...] = field(default=(), metadata=key("nights"))  # the key stays: old files can be read

    def add(self, run: SoakRun) -> None:
        """Add the result of a start; drop the oldest beyond 1000. Those that still have a folder are kept."""
        runs = (*self.runs, run)
        self.runs = (*(r for r in runs[:-_MOST_RUNS] if r.folder and not r.deleted), *runs[-_MOST_RUNS:])


def iso(time: datetime) -> str:
    return iso_utc(time.timestamp(), "auto")


def format_time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def load(campaign: Campaign, profile: str, name: str, now: datetime) -> State:
    """Load the state, or begin one now. Raises OptionError for an unreadable one and for another profile's."""
    path = campaign.folder / FILE
    if not path.exists():
        return State(SCHEMA, profile, name, iso(now), iso(now))
    try:
        state = from_json(State, saved(path, SCHEMA, "move it away to start over"))
        parse_time(state.handled_to)
    except ValueError as e:
        raise OptionError(f"{path} cannot be read ({e}); move it away to start over") from e
    if state.name != name:
        raise OptionError(f"{campaign.folder} has the soak of {state.name}; give {name} another folder with --out")
    state.profile = profile
    return state


def save(campaign: Campaign, state: State) -> None:
    """Write soak.json in one step: a kill or a power cut leaves the old or the new file."""
    campaign.write({FILE: state}, sync=True)
