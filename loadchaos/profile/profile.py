"""Profile model: target, traffic, load, attacks and expectations."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from loadchaos.core import expectation_names
from loadchaos.core.latency_percentiles import FEWEST_STEADY_S, SESSION_TIME
from loadchaos.core.latency_percentiles import parse as parse_latency
from loadchaos.core.model import DEFAULT_EXPECT, EXPOSURES, Acceptance, ExposureGoal, Terms
from loadchaos.core.unit_fields import DurationS
from loadchaos.core.units import share
from loadchaos.profile import abort_rule, validate
from loadchaos.profile.arrivals import planned_requests
from loadchaos.profile.attack import AttackPlan
from loadchaos.profile.base import ProfilePart
from loadchaos.profile.client_limits import ClientLimits
from loadchaos.profile.correctness import CorrectnessOptions
from loadchaos.profile.cron import Schedule
from loadchaos.profile.endpoint_path import endpoint_of
from loadchaos.profile.files import resolve_files
from loadchaos.profile.load import Phase, unrolled
from loadchaos.profile.overrides import apply
from loadchaos.profile.request_options import BehaviourOptions, PayloadOptions
from loadchaos.profile.slo import Slo
from loadchaos.profile.source import Document, Mistake, from_pydantic, plain, read, yaml_text
from loadchaos.profile.target import Launch, Target
from loadchaos.profile.traffic import BehaviourShare, Traffic

_DOUBTFUL = 1.5
"""A load shorter than so many times the steady state that is needed may not reach it, for its ramp-up and last answers."""
_MOST_PHASES = 10_000
Mechanism = Literal[
    "images", "speculative_decoding", "development_endpoints", "prefix_caching", "prefix_cache_hits", "preemption",
    "queueing", "replicas", "mm_cache", "lora_adapters",
]  # fmt: skip
"""Names of `requires`: checked before the load, or from the server's counters at the end."""


if TYPE_CHECKING:
    ExposureName = str
else:
    ExposureName = Literal[tuple(EXPOSURES)]


@dataclass(frozen=True)
class EndpointSpec:
    """Path and limits of an endpoint. It carries `payloads` (None: all) but those and their options in `lacks`, such as
    `sampling.n`. `generates`: its answers have a length that a request asks for. Without the payload `needs` it has no
    request.
    """

    payloads: frozenset[str] | None
    lacks: frozenset[str] = frozenset()
    streams: bool = True
    generates: bool = True
    needs: str = ""
    path: str = ""

    def carries(self, payload: str, option: str = "") -> bool:
        known = self.payloads is None or payload in self.payloads
        return known and not {payload, f"{payload}.{option}"} & self.lacks


@dataclass(frozen=True)
class Registry:
    """Names that a profile may use: options models of payloads and behaviours, names of admin operations and of the
    simulator's defects by dialect (None: they are not checked), dialects and limits of endpoints (empty: not checked).
    """

    payloads: Mapping[str, type[PayloadOptions]]
    behaviours: Mapping[str, type[BehaviourOptions]]
    attacks: Mapping[str, frozenset[str]] | None = None
    plugin_attacks: Collection[str] = ()
    defects: Mapping[str, frozenset[str]] | None = None
    dialects: frozenset[str] = field(default_factory=frozenset)
    endpoints: Mapping[str, EndpointSpec] = field(default_factory=dict)


_PAGE = "an address such as http://10.0.0.1:9400/metrics"
PageUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+")]


class CanaryOptions(ProfilePart):
    """Two small prompts, sent every `every` seconds during the load. The expected answers are learned before the load
    begins.
    """

    every: DurationS = Field(default=5.0, gt=0)


class MonitorOptions(ProfilePart):
    """Monitoring in addition to the server's own metrics. `dcgm` and `node` are the pages of dcgm-exporter and
    node-exporter on the server's machines.
    """

    canary: CanaryOptions | None = None
    dcgm: tuple[PageUrl, ...] = Field(default=(), description=_PAGE)
    node: tuple[PageUrl, ...] = Field(default=(), description=_PAGE)


class Exposure(ProfilePart):
    """Minimum number of exposures to the tested mechanism. A run with fewer ends as unknown, because its pass would
    prove nothing.
    """

    count: ExposureName
    at_least: int = Field(gt=0)


class AcceptedFailure(ProfilePart):
    """A known failure that does not fail the run. It has a reason, a last day, and optionally a maximum count. `text` are
    words of its title or evidence, `frame` is a part of a frame of its stack: a generic id needs one of them.
    """

    id: str
    because: str = Field(min_length=1)
    until: dt.date
    at_most: int | None = Field(default=None, gt=0)
    text: str | None = Field(default=None, min_length=1)
    frame: str | None = Field(default=None, min_length=1)


class Profile(ProfilePart):
    """A whole profile. Make one with `load` or `from_mapping` only: they add the options of payloads and behaviours."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="a name of letters, digits, _, . and - that begins with a letter or digit",
    )
    about: str = ""
    target: Target = Target()
    requires: tuple[Mechanism, ...] = ()
    traffic: tuple[Traffic, ...] = Field(min_length=1)
    load: tuple[Phase, ...] = Field(min_length=1)
    limits: ClientLimits = ClientLimits()
    on_429: Literal["end", "wait"] = "end"
    slo: Slo | None = None
    warm_up: DurationS | None = None
    abort_when: str | None = None
    attacks: tuple[AttackPlan, ...] = ()
    watch: MonitorOptions = MonitorOptions()
    correctness: CorrectnessOptions = CorrectnessOptions()
    exposure: Exposure | None = None
    expect: tuple[str, ...] = ()
    accept: tuple[AcceptedFailure, ...] = ()
    schedule: Schedule | None = None
    can_kill: bool = False
    traceparent: bool = False

    @field_validator("load")
    @classmethod
    def _unroll(cls, phases: tuple[Phase, ...], info: ValidationInfo) -> tuple[Phase, ...]:
        found = tuple(islice(unrolled(phases), _MOST_PHASES + 1))
        if len(found) > _MOST_PHASES:
            raise ValueError(f"more than {_MOST_PHASES:,} phases, repeats included: use fewer and longer phases")
        unsent = {t.name for t in info.data.get("traffic", ()) if not t.weight}
        found = tuple(phase for phase in found if not phase.traffic or not unsent.issuperset(phase.traffic))
        if not found:
            raise ValueError("the weight of all traffic that the phases name is 0, so no phase sends anything")
        if all(phase.warm_up for phase in found):
            raise ValueError(
                "every phase is a warm-up, so nothing would be measured: a phase without warm_up was expected"
            )
        return found

    @field_validator("abort_when")
    @classmethod
    def _parse_abort_when(cls, text: str | None) -> str | None:
        if text is not None:
            abort_rule.parse(text)
        return text

    def terms(self, seed: int) -> Terms:
        """The part of the profile that the analysis needs."""
        return Terms(
            profile=self.name,
            expect=self.expect or DEFAULT_EXPECT,
            accept=[Acceptance(a.id, a.because, a.until.isoformat(), a.at_most, a.text, a.frame) for a in self.accept],
            requires=self.requires,
            exposure=ExposureGoal(self.exposure.count, self.exposure.at_least) if self.exposure else None,
            planned_requests=planned_requests(self.load, seed),
            attacks=[a.operation for a in self.attacks],
            limits={
                "first_byte": self.limits.first_byte,
                "between_bytes": self.limits.between_bytes,
                "total": self.limits.total,
            },
            seed=seed,
            in_flight=[phase.describe_slots() for phase in self.load],
            slo=self.slo.limits_s() if self.slo is not None else {},
            warm_up=self._warm_up_rule(),
            planned_s=sum(phase.timed_s for phase in self.load) if all(p.timed_s for p in self.load) else None,
            endpoints={traffic.name: traffic.endpoint for traffic in self.traffic},
            new_prompts=[
                traffic.name
                for traffic in self.traffic
                if traffic.prompts_differ and not any(p.repeats_prompts for p in self.load)
            ],
            questions=[part for part, options in self.correctness if options is not None],
            steady=self._is_steady(),
        )

    def _is_steady(self) -> bool:
        measured = [phase for phase in self.load if not phase.warm_up]
        return len(measured) == 1 and measured[0].is_steady

    def _warm_up_rule(self) -> dict[str, list[int] | float]:
        phases = [number for number, phase in enumerate(self.load) if phase.warm_up]
        rule = {"phases": phases or None, "seconds": self.warm_up or None}
        return {name: value for name, value in rule.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """JSON data that `from_mapping` reads back, with values as in YAML."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_yaml(self) -> str:
        return yaml_text(self.to_json())

    def with_launch(self, launch: Mapping[str, object]) -> Profile:
        """The profile with another server to start. `launch` has the keys `command`, `env` and `url` of target.launch."""
        own = self.target.launch.model_dump(exclude_unset=True) if self.target.launch is not None else {}
        started = Launch.model_validate({**own, **launch})
        return self.model_copy(update={"target": self.target.model_copy(update={"launch": started})})

    def dangers(self) -> list[str]:
        """Names of the parts that can harm a server. They need an authorisation."""
        return list(dict.fromkeys([*(f"the attack {a.operation}" for a in self.attacks), *self.load_dangers()]))

    def load_dangers(self) -> list[str]:
        """Names of the parts other than attacks that can harm a server."""
        found = []
        for traffic in self.traffic:
            dangerous = [n for n, o in traffic.payload_options.items() if o.can_kill]
            found += [f"the payload {name} of traffic {traffic.name}" for name in dangerous]
        if self.can_kill:
            found.append("can_kill: true of the profile")
        return found

    def recovers_within_s(self) -> float:
        """Seconds that `expect` allows a server to recover in, or 0."""
        parsed = [expectation_names.parse(text, self.expect_prefixes()) for text in self.expect]
        return max((e.value for e in parsed if e.name == "recovers_within"), default=0.0)

    def image_sizes(self) -> tuple[list[tuple[int, int]], int]:
        """(image sizes in pixels, maximum number of images in one request)."""
        sizes = dict.fromkeys((s.width, s.height) for o in self._payloads() for s in o.sizes())
        return list(sizes), max(o.most_images for o in self._payloads())

    def _payloads(self) -> Iterator[PayloadOptions]:
        return (options for traffic in self.traffic for options in traffic.payload_options.values())

    def searches_context_limit(self) -> bool:
        return any(options.searches_limit for options in self._payloads())

    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for options in self._payloads() for note in options.notes()))

    def warnings(self) -> list[str]:
        """Warnings about payload options that have no effect, and limits that cannot be met, under this load."""
        found = self._too_short_for_limits()
        for traffic in (t for t in self.traffic if t.weight):
            sending = [phase for phase in self.load if traffic in self.traffic_of(phase)]
            parts = [traffic.weight / sum(t.weight for t in self.traffic_of(phase)) for phase in sending]
            closed = [(phase, part) for phase, part in zip(sending, parts, strict=True) if phase.kind == "closed"]
            known = [p.requests * p.rounds * part for p, part in closed if p.requests is not None]
            requests = max(known) if known and len(known) == len(sending) else None
            users = max((phase.slots * part for phase, part in closed), default=0.0)
            for options in traffic.payload_options.values():
                warning = options.warning(users, requests)
                found += [f"traffic {traffic.name}: {warning}"] if warning else []
        return found

    def _too_short_for_limits(self) -> list[str]:
        names = {text: parse_latency(expectation_names.parse(text, traffics=None).name) for text in self.expect}
        measured = [phase for phase in self.load if not phase.warm_up]
        requests = planned_requests(measured)
        seconds = sum(p.timed_s for p in measured) if self._is_steady() and all(p.timed_s for p in measured) else None
        found = []
        for text, name in names.items():
            if name is None or name.latency == SESSION_TIME:
                continue
            # An answer has many gaps; how many, its length decides.
            few = "" if requests is None else name.too_few(sys.maxsize if name.latency == "itl" else requests, requests)
            if few:
                found.append(f"{text}: {few}, and this load sends {requests}: a met limit will be unknown")
            elif name.statistic != "max" and seconds is not None and seconds < _DOUBTFUL * FEWEST_STEADY_S:
                found.append(
                    f"{text}: the load lasts {seconds:g} s, and a steady state of {FEWEST_STEADY_S:g} s is needed beside "
                    f"ramp-up and last answers: a met limit {'will' if seconds < FEWEST_STEADY_S else 'may'} be unknown"
                )
        return found

    def video_kinds(self) -> list[tuple[str, bytes]]:
        return list(dict(found for options in self._payloads() if (found := options.video()) is not None).items())

    def text_needs(self) -> tuple[bool, list[str]]:
        """(conversations are sent, scripts of the texts other than Latin)."""
        scripts = dict.fromkeys(script for options in self._payloads() for script in options.scripts())
        return any(options.writes_turns for options in self._payloads()), list(scripts)

    def traffic_of(self, phase: Phase) -> list[Traffic]:
        return [t for t in self.traffic if not phase.traffic or t.name in phase.traffic]

    def traffic_names(self) -> list[str]:
        return [t.name for t in self.traffic]

    def expect_prefixes(self) -> list[str]:
        """Names that may stand before a figure in `expect`."""
        return expectation_names.prefixes((t.name, t.endpoint) for t in self.traffic)


def load(path: Path, registry: Registry, overrides: Sequence[str] = ()) -> Profile:
    """Read a profile file, apply overrides and check it. Raises ProfileError with every mistake and its place."""
    node, origin = apply(read(path), overrides)
    return _checked(Document(node, str(path), origin), registry, path.parent)


def from_mapping(
    data: Mapping[str, object], registry: Registry, overrides: Sequence[str] = (), name: str = "profile"
) -> Profile:
    """Make a profile from the data of `to_json`. Raises ProfileError as `load` does, without places; `name` stands for
    the file.
    """
    node, origin = apply(dict(data), overrides)
    return _checked(Document(node, name, origin), registry)


def _checked(document: Document, registry: Registry, folder: Path | None = None) -> Profile:
    data = plain(document.node)
    if folder is not None:
        resolve_files(data, registry.payloads, folder, document.override_of)
    mistakes: list[Mistake] = []
    profile = None
    try:
        profile = Profile.model_validate(data)
    except ValidationError as e:
        mistakes += from_pydantic(e, Profile)
    mistakes += validate.mistakes(data, registry)
    if mistakes or profile is None:
        raise document.error(mistakes)
    for traffic in profile.traffic:
        _add_options(traffic, registry)
    return profile


def _add_options(traffic: Traffic, registry: Registry) -> None:
    for name, raw in traffic.payload.items():
        traffic._options[name] = registry.payloads[name].model_validate(raw)
    traffic._endpoint = str(endpoint_of(traffic.sent_to.path, registry.endpoints))
    if traffic.endpoint in registry.endpoints:
        spec = registry.endpoints[traffic.endpoint]
        traffic._endpoint_streams, traffic._generates = spec.streams, spec.generates
    for name, raw in traffic.behaviour.items():
        options = {k: v for k, v in raw.items() if k != "share"}
        part = BehaviourShare(name, share(raw.get("share", 1.0)), registry.behaviours[name].model_validate(options))
        traffic._behaviour_shares.append(part)
    if "plain" in registry.behaviours:
        traffic._plain = registry.behaviours["plain"].model_validate({})
