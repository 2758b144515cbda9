"""A profile: what is tested, with what traffic, and what is expected. Read from YAML, every mistake told at once."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, Field, ValidationError, field_validator
from ruamel.yaml import YAML

from loadchaos.model import Terms
from loadchaos.plan import expectation
from loadchaos.plan.attack import AttackPlan
from loadchaos.plan.files import beside
from loadchaos.plan.overrides import apply
from loadchaos.plan.positions import Document, Mistake, from_pydantic, near, plain, read
from loadchaos.plan.schedule import Schedule
from loadchaos.plan.shape import (
    Accepted,
    Chosen,
    Exposure,
    Launch,
    Limits,
    Part,
    Phase,
    Target,
    Traffic,
    unrolled,
)
from loadchaos.plan.watching import Watching
from loadchaos.units import share

_MOST_PHASES = 10_000
DEFAULT_EXPECT = ("failures == 0", "engine_deaths == 0", "hangs == 0", "ok_share >= 95%")
"""What is expected of a server where a profile says nothing."""

Mechanism = Literal[
    "images", "speculative_decoding", "development_endpoints", "prefix_caching", "preemption", "mm_cache",
]  # fmt: skip
"""What may be required: seen at preflight, or proved by the server's counters at the end."""


@dataclass(frozen=True)
class Shelves:
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
        from loadchaos.plan.steps import total  # steps know profiles, a profile needs steps only here

        return Terms(
            profile=self.name,
            expect=self.expect or DEFAULT_EXPECT,
            accept=[a.model_dump(mode="json", exclude_none=True) for a in self.accept],
            requires=self.requires,
            exposure=self.exposure.model_dump() if self.exposure else None,
            planned_requests=total(self, seed),
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

    def launching(self, launch: Mapping[str, Any]) -> Profile:
        """The same profile with a server to start: `command`, `env` and `url` as under target.launch."""
        kept = self.target.launch.model_dump(exclude_unset=True) if self.target.launch is not None else {}
        started = Launch.model_validate({**kept, **launch})
        return self.model_copy(update={"target": self.target.model_copy(update={"launch": started})})

    def harms(self) -> list[str]:
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

    def looks_for_limit(self) -> bool:
        """Whether a ladder is sent whose limit the profile does not tell."""
        options = [t.payload_options["near_limit"] for t in self.traffic if "near_limit" in t.payload_options]
        return any(getattr(o, "limit", None) is None for o in options)

    def notes(self) -> list[str]:
        """What its payloads have to say before the load: files that are left out."""
        every = [o for t in self.traffic for o in t.payload_options.values()]
        return list(dict.fromkeys(str(told) for o in every for told in getattr(o, "notes", tuple)()))

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


def load(path: Path, shelves: Shelves, overrides: Sequence[str] = ()) -> Profile:
    """Read, override and judge a profile file. Raises ProfileError with every mistake, each with its place."""
    node, origin = apply(read(path), overrides)
    return _judge(Document(node, str(path), origin), shelves, path.parent)


def from_mapping(data: Mapping[str, Any], shelves: Shelves) -> Profile:
    """A profile from what `to_json` gave. Raises ProfileError as `load` does, without places."""
    return _judge(Document(dict(data), "profile", {}), shelves)


def _judge(document: Document, shelves: Shelves, folder: Path | None = None) -> Profile:
    data = plain(document.node)
    if folder is not None:
        beside(data, folder, document.override_of)
    mistakes: list[Mistake] = []
    profile = None
    try:
        profile = Profile.model_validate(data)
    except ValidationError as e:
        mistakes += from_pydantic([dict(x) for x in e.errors(include_url=False)], Profile)
    for look in _LOOKS:
        mistakes += look(data, shelves)
    if mistakes or profile is None:
        raise document.tell(mistakes)
    for traffic in profile.traffic:
        _resolve(traffic, shelves)
    return profile


def _resolve(traffic: Traffic, shelves: Shelves) -> None:
    """Hand the shelves' models in; `_judge` has seen that they fit."""
    for name, raw in traffic.payload.items():
        traffic._options[name] = shelves.payloads[name].model_validate(raw)
    for name, raw in traffic.behaviour.items():
        options = {k: v for k, v in raw.items() if k != "share"}
        part = Chosen(name, share(raw.get("share", 1.0)), shelves.behaviours[name].model_validate(options))
        traffic._chosen.append(part)
    if "plain" in shelves.behaviours:
        traffic._plain = shelves.behaviours["plain"].model_validate({})


# --- what the models alone cannot see: names of shelves, and what belongs together ------------------------------------


def _entries(data: Mapping[str, Any], key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    entries = data.get(key)
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, Mapping):
            yield i, entry


def _payloads(data: Mapping[str, Any], shelves: Shelves) -> Iterator[Mistake]:
    for i, entry in _entries(data, "traffic"):
        payload = entry.get("payload")
        for name, raw in payload.items() if isinstance(payload, Mapping) else ():
            yield from _shelf("payload", shelves.payloads, ("traffic", i, "payload", name), name, raw)
            in_vain = getattr(shelves.payloads.get(name), "in_vain", None)
            for other in in_vain(payload) if in_vain is not None else ():
                text = f"is in vain beside {name}, which says by itself what is sent: leave one of the two out"
                yield Mistake(("traffic", i, "payload", other), text, of_key=True)


def _behaviours(data: Mapping[str, Any], shelves: Shelves) -> Iterator[Mistake]:
    for i, entry in _entries(data, "traffic"):
        given = entry.get("behaviour")
        if isinstance(given, str):
            given = {given: {}}
        shares = 0.0
        for name, raw in given.items() if isinstance(given, Mapping) else ():
            loc = ("traffic", i, "behaviour", name)
            options = dict(raw) if isinstance(raw, Mapping) else {} if raw is None else raw
            try:
                shares += share(options.pop("share", 1.0)) if isinstance(options, dict) else 0.0
            except ValueError as e:
                yield Mistake((*loc, "share"), str(e))
            yield from _shelf("behaviour", shelves.behaviours, loc, name, options)
            if entry.get("stream") is False and _needs_stream(shelves.behaviours.get(name), options):
                yield Mistake(loc, "hangs up within a stream, and stream is false: hang up after a time (after: 200ms)")
        if shares > 1 + 1e-9:
            yield Mistake(("traffic", i, "behaviour"), f"the shares add up to more than 100% (got {shares * 100:g}%)")


def _needs_stream(model: type[BaseModel] | None, options: object) -> bool:
    try:
        return model is not None and bool(getattr(model.model_validate(options), "needs_stream", False))
    except ValidationError:
        return False


def _shelf(
    what: str, shelf: Mapping[str, type[BaseModel]], loc: tuple[int | str, ...], name: str, raw: Any
) -> Iterator[Mistake]:
    model = shelf.get(name)
    if model is None:
        yield Mistake(loc, f"unknown {what} {name!r}{near(str(name), list(shelf))}", of_key=True)
        return
    try:
        model.model_validate({} if raw is None else raw)
    except ValidationError as e:
        yield from from_pydantic([dict(x) for x in e.errors(include_url=False)], model, loc)


def _weights(data: Mapping[str, Any], _: Shelves) -> Iterator[Mistake]:
    entries = list(_entries(data, "traffic"))
    weights = [entry.get("weight", 1) for _, entry in entries]
    if entries and all(isinstance(w, int | float) and w == 0 for w in weights):
        yield Mistake(("traffic",), "every weight is 0: nothing would be sent")
    seen: dict[Any, int] = {}
    for i, entry in entries:
        if (name := str(entry.get("name"))) in seen:
            yield Mistake(("traffic", i, "name"), f"traffic {seen[name]} has that name already (got {name!r})")
        seen.setdefault(name, i)


def _dialects(data: Mapping[str, Any], shelves: Shelves) -> Iterator[Mistake]:
    target = data.get("target")
    if not isinstance(target, Mapping):
        return
    if shelves.dialects and isinstance(d := target.get("dialect"), str) and d not in {*shelves.dialects, "auto"}:
        known = [*shelves.dialects, "auto"]
        yield Mistake(("target", "dialect"), f"unknown dialect {d!r}{near(d, known)}")
    embedded = target.get("embedded")
    if not isinstance(embedded, Mapping) or shelves.defects is None:
        return
    dialect = embedded.get("dialect", "vllm")
    if dialect not in shelves.defects:
        text = f"no embedded server speaks {dialect!r}{near(str(dialect), list(shelves.defects))}"
        yield Mistake(("target", "embedded", "dialect"), text)
        return
    defects = embedded.get("defects")
    for i, name in enumerate(defects if isinstance(defects, list) else ()):
        if name not in shelves.defects[dialect]:
            hint = near(str(name), list(shelves.defects[dialect]))
            yield Mistake(("target", "embedded", "defects", i), f"unknown defect {name!r} of {dialect}{hint}")


def _attacks(data: Mapping[str, Any], shelves: Shelves) -> Iterator[Mistake]:
    if shelves.attacks is None:
        return
    dialect = _dialect_of(data)
    if dialect is not None and dialect in shelves.attacks:
        known, of = shelves.attacks[dialect], f" {dialect} has no such attack"
    else:
        known, of = frozenset().union(*shelves.attacks.values()), " no dialect has such an attack"
    for i, entry in _entries(data, "attacks"):
        name = entry.get("admin")
        if isinstance(name, str) and name not in known:
            yield Mistake(("attacks", i, "admin"), f"unknown attack {name!r}:{of}{near(name, list(known))}")


def _traces(data: Mapping[str, Any], _: Shelves) -> Iterator[Mistake]:
    """What a trace says of lengths has to be made by somebody."""
    if not _replays(data):
        return
    for i, entry in _entries(data, "traffic"):
        payload = entry.get("payload")
        if isinstance(payload, Mapping) and "text" not in payload:
            yield Mistake(
                ("traffic", i, "payload"), "a phase replays a trace: every traffic needs a text payload for it"
            )


def _replays(data: Mapping[str, Any], key: str = "load") -> bool:
    return any("trace" in entry or _replays(entry, "phases") for _, entry in _entries(data, key))


def _dialect_of(data: Mapping[str, Any]) -> str | None:
    target = data.get("target")
    if not isinstance(target, Mapping):
        return None
    if (dialect := target.get("dialect", "auto")) != "auto":
        return str(dialect)
    embedded = target.get("embedded")
    return str(embedded.get("dialect", "vllm")) if isinstance(embedded, Mapping) else None


def _expectations(data: Mapping[str, Any], _: Shelves) -> Iterator[Mistake]:
    names = [str(entry.get("name")) for _, entry in _entries(data, "traffic")]
    lines = data.get("expect")
    for i, text in enumerate(lines if isinstance(lines, list) else ()):
        try:
            if isinstance(text, str):
                expectation.parse(text, names)
        except ValueError as e:
            yield Mistake(("expect", i), str(e))


_LOOKS: tuple[Callable[[Mapping[str, Any], Shelves], Iterator[Mistake]], ...] = (
    _payloads, _behaviours, _weights, _dialects, _attacks, _expectations, _traces,
)  # fmt: skip
