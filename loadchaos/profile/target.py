"""`target` of a profile: what is tested where the command line names no server, and what to do when it dies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from loadchaos.core.units import Bytes, DurationS
from loadchaos.profile.base import Part


def _version(value: object) -> object:
    if isinstance(value, float | int) and not isinstance(value, bool):
        raise ValueError(f'a version is text, or 0.20 becomes 0.2: write "{value}"')
    return value


Version = Annotated[str, BeforeValidator(_version)]


class Embedded(Part):
    """The embedded server: which one it plays, which bugs are planted, flags under the server's own names."""

    dialect: str = "vllm"
    era: Version | None = None
    defects: tuple[str, ...] = ()
    flags: Mapping[str, Any] = {}


class LaunchLimits(Part):
    """What each process of the server may have at most: RLIMIT_DATA, RLIMIT_NOFILE, RLIMIT_CORE of setrlimit(2)."""

    memory: Bytes | None = None
    open_files: int | None = Field(default=None, gt=0)
    core: Bytes | None = None


class Launch(Part):
    """A server to start: its command, what is added to its environment, where it will listen, what it may use."""

    command: tuple[str, ...] = Field(min_length=1)
    env: Mapping[str, str] = {}
    url: str = "http://127.0.0.1:8000"
    ready_within: DurationS = 1200.0
    limits: LaunchLimits = LaunchLimits()


class Stopping(Part):
    """The run ends when the server is dead."""


class Waiting(Part):
    """The load waits for the server's return: `at_most` so long, and no more after so many `deaths`."""

    at_most: DurationS | None = None
    deaths: int | None = Field(default=None, gt=0)


class Restarting(Part):
    """A server that loadchaos started is started again, `at_most` so often."""

    at_most: int = Field(default=20, gt=0)


class OnDeath(Part):
    """What to do when the server dies: one of the three."""

    stop: Stopping | None = None
    wait: Waiting | None = None
    restart: Restarting | None = None

    @model_validator(mode="after")
    def _one(self) -> OnDeath:
        if sum(way is not None for way in (self.stop, self.wait, self.restart)) != 1:
            raise ValueError("one of stop, wait or restart was expected")
        return self

    @property
    def policy(self) -> Literal["stop", "wait", "restart"]:
        """Which of them."""
        return "wait" if self.wait is not None else "restart" if self.restart is not None else "stop"


_OnDeathName = Literal["stop", "wait", "restart"]


def _on_death(value: object) -> object:
    """`wait` is `{wait: {}}`."""
    if isinstance(value, str):
        if value not in get_args(_OnDeathName):
            raise ValueError(f"one of {', '.join(get_args(_OnDeathName))} was expected (got {value!r})")
        return {value: {}}
    if isinstance(value, Mapping):
        return {name: {} if options is None else options for name, options in value.items()}
    return value


class Replica(Part):
    """One of several servers behind the target: watched and attacked one by one."""

    name: str
    url: str
    log: str | None = None


class Target(Part):
    """What is tested where the command line names no server, and what to do when it dies.

    `ca` and `insecure` are for https: a PEM file with the certificates to believe, or none is checked. `tokenizer` is a
    folder with tokenizer.json to count words by, for a server that does not tell how it counts.
    """

    dialect: str = "auto"
    on_death: Annotated[OnDeath, BeforeValidator(_on_death, json_schema_input_type=_OnDeathName | OnDeath)] = OnDeath(
        wait=Waiting()
    )
    embedded: Embedded | None = None
    launch: Launch | None = None
    replicas: tuple[Replica, ...] = ()
    toxiproxy: str | None = None
    ca: str | None = None
    insecure: bool = False
    tokenizer: str | None = None
