"""`target` of a profile: the default server and the reaction to its death."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from loadchaos.core.limits import READY_WITHIN_S
from loadchaos.core.unit_fields import Bytes, DurationS
from loadchaos.profile.base import ProfilePart, spelled_out


def _version(value: object) -> object:
    if isinstance(value, float | int) and not isinstance(value, bool):
        raise ValueError(f'a version is text, because the number 0.20 equals 0.2: write "{value}"')
    return value


Version = Annotated[str, BeforeValidator(_version)]


class EmbeddedServer(ProfilePart):
    """The embedded server: simulated server and version, planted bugs, flags."""

    dialect: str = "vllm"
    era: Version | None = None
    defects: tuple[str, ...] = ()
    flags: Mapping[str, object] = {}


class LaunchLimits(ProfilePart):
    """Limits of each server process. They are RLIMIT_DATA, RLIMIT_NOFILE and RLIMIT_CORE of setrlimit(2)."""

    memory: Bytes | None = None
    open_files: int | None = Field(default=None, gt=0)
    core: Bytes | None = None


class Launch(ProfilePart):
    """A server that loadchaos starts: command, environment, URL and limits. `ready_within` is in seconds."""

    command: tuple[str, ...] = Field(min_length=1)
    env: Mapping[str, str] = {}
    url: str = "http://127.0.0.1:8000"
    ready_within: DurationS = READY_WITHIN_S
    limits: LaunchLimits = LaunchLimits()


class StopOnDeath(ProfilePart):
    """End the run when the server dies."""


class WaitOnDeath(ProfilePart):
    """Pause the load until the server is back. The run ends if that takes more than `at_most` seconds, or after
    `deaths` deaths.
    """

    at_most: DurationS | None = None
    deaths: int | None = Field(default=None, gt=0)


class RestartOnDeath(ProfilePart):
    """Start the server again, at most `at_most` times. Only for a server that loadchaos started."""

    at_most: int = Field(default=20, gt=0)


class OnDeath(ProfilePart):
    """Reaction to the death of the server: one of three."""

    stop: StopOnDeath | None = None
    wait: WaitOnDeath | None = None
    restart: RestartOnDeath | None = None

    @model_validator(mode="after")
    def _one(self) -> OnDeath:
        if sum(way is not None for way in (self.stop, self.wait, self.restart)) != 1:
            raise ValueError("one of stop, wait or restart was expected")
        return self

    @property
    def policy(self) -> Literal["stop", "wait", "restart"]:
        return "wait" if self.wait is not None else "restart" if self.restart is not None else "stop"


_OnDeathName = Literal["stop", "wait", "restart"]


def _on_death(value: object) -> object:
    if isinstance(value, str) and value not in get_args(_OnDeathName):
        raise ValueError(f"one of {', '.join(get_args(_OnDeathName))} was expected (got {value!r})")
    return spelled_out(value)


class Replica(ProfilePart):
    """One of several servers behind the target, monitored and attacked alone."""

    name: str
    url: str
    log: str | None = None


class Target(ProfilePart):
    """Default server of a profile, and the reaction to its death. `ca` is a PEM file with trusted certificates;
    `insecure` accepts any certificate. `tokenizer` is a folder with tokenizer.json, to count tokens for a server that
    offers no way to count them.
    """

    dialect: str = "auto"
    on_death: Annotated[OnDeath, BeforeValidator(_on_death, json_schema_input_type=_OnDeathName | OnDeath)] = OnDeath(
        wait=WaitOnDeath()
    )
    embedded: EmbeddedServer | None = None
    launch: Launch | None = None
    replicas: tuple[Replica, ...] = ()
    ca: str | None = None
    insecure: bool = False
    tokenizer: str | None = None
