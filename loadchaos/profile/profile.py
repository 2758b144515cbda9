"""A profile: what is tested, with what traffic, and what is expected. Read from YAML, every mistake told at once."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, Field, ValidationError, field_validator
from ruamel.yaml import YAML

from loadchaos.core.model import DEFAULT_EXPECT, Terms
from loadchaos.core.units import DurationS, share
from loadchaos.profile import expectation, validate
from loadchaos.profile.attack import AttackPlan
from loadchaos.profile.base import Part
from loadchaos.profile.cron import Schedule
from loadchaos.profile.files import find
from loadchaos.profile.load import Phase, unrolled
from loadchaos.profile.monitor import Watching
from loadchaos.profile.overrides import apply
from loadchaos.profile.pacing import planned_requests
from loadchaos.profile.source import Document, Mistake, from_pydantic, plain, read
from loadchaos.profile.target import Launch, Target
from loadchaos.profile.traffic import Chosen, Traffic

_MOST_PHASES = 10_000
Mechanism = Literal[
    "images",
    "speculative_decoding",
    "development_endpoints",
    "prefix_caching",
    "preemption",
    "mm_cache",
]
"""What may be required: seen at preflight, or proved by the server's counters at the end."""


@dataclass(frozen=True)
class Registry:
    """What a profile may name. `attacks` and `defects` are sets of names by dialect; None: not checked here."""

    payloads: Mapping[str, type[BaseModel]]
    behaviours: Mapping[str, type[BaseModel]]
    attacks: Mapping[str, frozenset[str]] | None = None
    defects: Mapping[str, frozenset[str]] | None = None
    dialects: frozenset[str] = field(default_factory=frozenset)


@runtime_checkable
class Measured(Protocol):
    """Payload options whose prompt tokens have to be measured on the server."""

    def kind(self) -> str:
        """What decides them."""

    def sample(self) -> bytes:
        """A content part of that kind."""


@runtime_checkable
class Doubtful(Protocol):
    """Payload options that mean something only under a load that fits."""

    def warning(self, in_flight: float, requests: float | None) -> str | None:
        """What will not come to pass with so many at a time, and so many in the longest phase (None: not known)."""


class Limits(Part):
    """How long a client waits: for the first byte, between two bytes, in all."""

    first_byte: DurationS = 120.0
    between_bytes: DurationS = 30.0
    total: DurationS = 600.0


class Exposure(Part):
    """How often the run has to meet the mechanism it is about, or its pass proves nothing."""

    count: Literal["requests", "image_requests", "image_requests_while_drafting", "near_limit_requests", "attacks"]
    at_least: int = Field(gt=0)


class Accepted(Part):
    """A known failure that does not fail the run: why, until when, at most how often."""

    id: str
    because: str = Field(min_length=1)
    until: dt.date
    at_most: int | None = Field(default=None, gt=0)


class Profile(Part):
    """A whole profile. Made by `load` or `from_mapping` only: they hand the shelves' options in."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="a name of letters, digits, _, . and - that begins with a letter or digit",
    )
    about: str = ""
    target: Target = Target()
    requires: tuple[Mechanism, ...] = ()
    traffic: tuple[Traffic, ...] = Field(min_length=1)
    load: tuple[Phase, ...] = Field(min_length=1)
    limits: Limits = Limits()
    attacks: tuple[AttackPlan, ...] = ()
    watch: Watching = Watching()
    exposure: Exposure | None = None
    expect: tuple[str, ...] = ()
    accept: tuple[Accepted, ...] = ()
    schedule: Schedule | None = None
    can_kill: bool = False

    @field_validator("load")
    @classmethod
    def _unrolled(cls, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        found = tuple(islice(unrolled(phases), _MOST_PHASES + 1))
        if len(found) > _MOST_PHASES:
            raise ValueError(f"more than {_MOST_PHASES:,} phases, with all that repeat: make them longer")
        return found

    def terms(self, seed: int) -> Terms:
        """What the judge needs to know of this profile."""
        return Terms(
            profile=self.name,
            expect=self.expect or DEFAULT_EXPECT,
            accept=[a.model_dump(mode="json", exclude_none=True) for a in self.accept],
            requires=self.requires,
            exposure=self.exposure.model_dump() if self.exposure else None,
            planned_requests=planned_requests(self.load, seed),
            attacks=[a.operation for a in self.attacks],
            limits={
                "first_byte": self.limits.first_byte,
                "between_bytes": self.limits.between_bytes,
                "total": self.limits.total,
            },
            seed=seed,
        )

    def to_json(self) -> dict[str, Any]:
        """A mapping that `json` takes and `from_mapping` reads back; values as people write them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_yaml(self) -> str:
        """The profile as resolved, overrides in it, as a profile again."""
        out = io.StringIO()
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = None
        yaml.width = 120
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel types this attribute as None
        yaml.dump(self.to_json(), out)
        return out.getvalue()

    def with_launch(self, launch: Mapping[str, Any]) -> Profile:
        """The same profile with a server to start: `command`, `env` and `url` as under target.launch."""
        kept = self.target.launch.model_dump(exclude_unset=True) if self.target.launch is not None else {}
        started = Launch.model_validate({**kept, **launch})
        return self.model_copy(update={"target": self.target.model_copy(update={"launch": started})})

    def dangers(self) -> list[str]:
        """What in this profile can harm a server, in words; empty where nothing can."""
        found = [f"the attack {a.operation}" for a in self.attacks]
        for traffic in self.traffic:
            dangerous = [n for n, o in traffic.payload_options.items() if getattr(o, "can_kill", False)]
            found += [f"the payload {name} of traffic {traffic.name}" for name in dangerous]
        if self.can_kill:
            found.append("the profile is marked can_kill")
        return list(dict.fromkeys(found))

    def recovers_within_s(self) -> float:
        """How long a server may take to come back, as `expect` says; 0 where it says nothing."""
        parsed = [expectation.parse(text, self.traffic_names()) for text in self.expect]
        return max((e.value for e in parsed if e.name == "recovers_within"), default=0.0)

    def image_sizes(self) -> tuple[list[tuple[int, int]], int]:
        """(sizes in pixels that are sent, most images in one request)."""
        options = [t.payload_options["images"] for t in self.traffic if "images" in t.payload_options]
        sizes = dict.fromkeys((s.width, s.height) for o in options for s in getattr(o, "sizes", tuple)())
        counts = [c.high for o in options if (c := getattr(o, "count", None)) is not None]
        return list(sizes), max(counts, default=0)

    def searches_context_limit(self) -> bool:
        """Whether a ladder is sent whose limit the profile does not tell."""
        options = [t.payload_options["near_limit"] for t in self.traffic if "near_limit" in t.payload_options]
        return any(getattr(o, "limit", None) is None for o in options)

    def notes(self) -> list[str]:
        """What its payloads have to say before the load: files that are left out."""
        every = [o for t in self.traffic for o in t.payload_options.values()]
        return list(dict.fromkeys(str(told) for o in every for told in getattr(o, "notes", tuple)()))

    def warnings(self) -> list[str]:
        """What its payloads mean to do and will not under this load, as far as its users and requests are known."""
        closed = [phase for phase in self.load if phase.kind == "closed"]
        known = [phase.requests * phase.rounds for phase in closed if phase.requests is not None]
        requests = max(known) if len(known) == len(self.load) else None
        users, weights = max((phase.slots for phase in closed), default=0), sum(t.weight for t in self.traffic)
        found = []
        for traffic in self.traffic:
            part = traffic.weight / weights
            for options in traffic.payload_options.values():
                if isinstance(options, Doubtful):
                    told = options.warning(users * part, None if requests is None else requests * part)
                    found += [f"traffic {traffic.name}: {told}"] if told else []
        return found

    def video_kinds(self) -> list[tuple[str, bytes]]:
        """Each kind of video that is sent, with one to measure by."""
        options = [t.payload_options["video"] for t in self.traffic if "video" in t.payload_options]
        return list({o.kind(): o.sample() for o in options if isinstance(o, Measured)}.items())

    def text_needs(self) -> tuple[bool, list[str]]:
        """(whether conversations are sent, the scripts beside Latin that texts are written in)."""
        texts = [o for t in self.traffic for n, o in t.payload_options.items() if n == "text"]
        scripts = dict.fromkeys(str(getattr(o, "script", "latin")) for o in texts)
        wanted = ["cjk", "emoji", "code"] if "mixed" in scripts else [s for s in scripts if s != "latin"]
        return any("conversation" in t.payload_options for t in self.traffic), wanted

    def traffic_names(self) -> list[str]:
        """Names of all traffic, in order."""
        return [t.name for t in self.traffic]


def load(path: Path, shelves: Registry, overrides: Sequence[str] = ()) -> Profile:
    """Read, override and judge a profile file. Raises ProfileError with every mistake, each with its place."""
    node, origin = apply(read(path), overrides)
    return _judge(Document(node, str(path), origin), shelves, path.parent)


def from_mapping(data: Mapping[str, Any], shelves: Registry) -> Profile:
    """A profile from what `to_json` gave. Raises ProfileError as `load` does, without places."""
    return _judge(Document(dict(data), "profile", {}), shelves)


def _judge(document: Document, shelves: Registry, folder: Path | None = None) -> Profile:
    data = plain(document.node)
    if folder is not None:
        find(data, folder, document.override_of)
    mistakes: list[Mistake] = []
    profile = None
    try:
        profile = Profile.model_validate(data)
    except ValidationError as e:
        mistakes += from_pydantic([dict(x) for x in e.errors(include_url=False)], Profile)
    mistakes += validate.mistakes(data, shelves)
    if mistakes or profile is None:
        raise document.tell(mistakes)
    for traffic in profile.traffic:
        _resolve(traffic, shelves)
    return profile


def _resolve(traffic: Traffic, shelves: Registry) -> None:
    """Hand the shelves' models in; `_judge` has seen that they fit."""
    for name, raw in traffic.payload.items():
        traffic._options[name] = shelves.payloads[name].model_validate(raw)
    for name, raw in traffic.behaviour.items():
        options = {k: v for k, v in raw.items() if k != "share"}
        part = Chosen(name, share(raw.get("share", 1.0)), shelves.behaviours[name].model_validate(options))
        traffic._chosen.append(part)
    if "plain" in shelves.behaviours:
        traffic._plain = shelves.behaviours["plain"].model_validate({})
