"""Checks of a profile across its parts: registered names and combinations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from loadchaos.core import expectation_names
from loadchaos.core.model import GENERIC_IDS
from loadchaos.core.units import share
from loadchaos.profile.base import ProfilePart, spelled_out
from loadchaos.profile.endpoint_path import endpoint_of, unknown_path
from loadchaos.profile.source import Loc, Mistake, from_pydantic, near

if TYPE_CHECKING:
    from loadchaos.profile.profile import Registry

_Part = TypeVar("_Part", bound=ProfilePart)


@dataclass(frozen=True)
class _WrittenTraffic:
    """An entry of `traffic` as it is written. `payload` and `behaviour` have options by name."""

    loc: Loc
    entry: Mapping[object, object]
    name: str
    endpoint: object
    weight: object
    payload: Mapping[object, object]
    behaviour: Mapping[object, object]


@dataclass(frozen=True)
class _Written:
    """The parts of a profile as it is written, as far as they have the right type; phases with their place."""

    data: Mapping[object, object]
    target: Mapping[object, object]
    traffic: Sequence[_WrittenTraffic]
    phases: Sequence[tuple[Loc, Mapping[object, object]]]


def mistakes(data: object, registry: Registry) -> Iterator[Mistake]:
    """Yield the mistakes in the plain data of a profile. Values of a wrong type are skipped: the models report them."""
    whole = _mapping(data)
    traffic = [
        _WrittenTraffic(
            loc,
            entry,
            name=str(entry.get("name")),
            endpoint=endpoint_of(entry.get("endpoint", "chat"), registry.endpoints),
            weight=entry.get("weight", 1),
            payload=_mapping(entry.get("payload")),
            behaviour=_mapping(spelled_out(entry.get("behaviour"))),
        )
        for loc, entry in _entries(whole, "traffic")
    ]
    written = _Written(whole, _mapping(whole.get("target")), traffic, list(_phases(whole, "load")))
    for check in _CHECKS:
        yield from check(written, registry)


def _mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _entries(data: Mapping[object, object], key: str, loc: Loc = ()) -> Iterator[tuple[Loc, Mapping[object, object]]]:
    """Yield (place, entry) of each mapping in a list."""
    found = enumerate(_list(data.get(key)))
    return (((*loc, key, n), entry) for n, entry in found if isinstance(entry, Mapping))


def _phases(data: Mapping[object, object], key: str, loc: Loc = ()) -> Iterator[tuple[Loc, Mapping[object, object]]]:
    for place, phase in _entries(data, key, loc):
        if "phases" in phase:
            yield from _phases(phase, "phases", place)
        else:
            yield place, phase


def _payloads(written: _Written, registry: Registry) -> Iterator[Mistake]:
    for traffic in written.traffic:
        given, behaviours = list(map(str, traffic.payload)), list(map(str, traffic.behaviour))
        for name, raw in traffic.payload.items():
            options, found = _options("payload", registry.payloads, (*traffic.loc, "payload", str(name)), raw)
            yield from found
            ignores = registry.payloads[str(name)].ignores if name in registry.payloads else frozenset()
            for other in [p for p in given if p != name and (ignores is None or p in ignores)]:
                text = f"has no effect together with {name}, which defines the whole request: remove one of the two"
                yield Mistake((*traffic.loc, "payload", other), text, of_key=True)
            output = _mapping(traffic.entry.get("output"))
            if options is not None and output and (why := options.refuses_output(exact="exact" in output)):
                yield Mistake((*traffic.loc, "output"), why, of_key=True)
            for key, why in options.refusals(given, behaviours, str(traffic.endpoint)) if options is not None else ():
                yield Mistake((*traffic.loc, *key), why, of_key=len(key) > 1)


def _behaviours(written: _Written, registry: Registry) -> Iterator[Mistake]:
    for traffic in written.traffic:
        shares = 0.0
        for name, raw in traffic.behaviour.items():
            loc = (*traffic.loc, "behaviour", str(name))
            options = raw
            if isinstance(raw, Mapping):
                options = {key: value for key, value in raw.items() if key != "share"}
                try:
                    shares += share(raw.get("share", 1.0))
                except ValueError as e:
                    yield Mistake((*loc, "share"), str(e))
            behaviour, found = _options("behaviour", registry.behaviours, loc, options)
            yield from found
            spec = registry.endpoints.get(str(traffic.endpoint))
            off = "stream is false" if traffic.entry.get("stream") is False else ""
            why = off or ("the endpoint does not stream" if spec is not None and not spec.streams else "")
            if why and behaviour is not None and behaviour.needs_stream:
                yield Mistake(loc, f"aborts within a stream, but {why}: abort after a time (after: 200ms)")
        if shares > 1 + 1e-9:
            text = f"the shares add up to more than 100% (got {shares * 100:g}%)"
            yield Mistake((*traffic.loc, "behaviour"), text)


def _endpoints(written: _Written, registry: Registry) -> Iterator[Mistake]:
    for traffic in written.traffic:
        name = traffic.endpoint
        if not registry.endpoints or not isinstance(name, str):
            continue
        spec = registry.endpoints.get(name)
        if spec is None:
            if name.startswith("/"):
                place = ("endpoint", "path") if isinstance(traffic.entry["endpoint"], Mapping) else ("endpoint",)
                yield Mistake((*traffic.loc, *place), unknown_path(name, registry.endpoints))
                continue
            known = list(registry.endpoints)
            hint = near(name, known) or f"; {', '.join(known)} were expected"
            yield Mistake((*traffic.loc, "endpoint"), f"unknown endpoint {name!r}{hint}")
            continue
        for other, raw in ((str(key), value) for key, value in traffic.payload.items()):
            loc = (*traffic.loc, "payload", other)
            if other in registry.payloads and not spec.carries(other):
                carrying = [n for n, e in registry.endpoints.items() if e.carries(other)]
                takes = sorted(payload for payload in registry.payloads if spec.carries(payload))
                text = (
                    f"the endpoint {name} cannot carry {other}: it takes {', '.join(takes)}; "
                    f"{other} goes with endpoint: {' or '.join(carrying)}"
                )
                yield Mistake(loc, text, of_key=True)
            for option in [str(key) for key in _mapping(raw) if f"{other}.{key}" in spec.lacks]:
                carrying = [n for n, e in registry.endpoints.items() if e.carries(other, option)]
                text = f"the endpoint {name} has no such option; it goes with endpoint: {' or '.join(carrying)}"
                yield Mistake((*loc, option), text, of_key=True)
        if spec.needs and isinstance(traffic.entry.get("payload"), Mapping) and spec.needs not in traffic.payload:
            text = f"the endpoint {name} needs the payload {spec.needs}, e.g. {{{spec.needs}: {{}}}}"
            yield Mistake((*traffic.loc, "payload"), text)
        if traffic.entry.get("stream") is True and not spec.streams:
            yield Mistake((*traffic.loc, "stream"), f"the endpoint {name} does not stream: leave this out")
        if "output" in traffic.entry and not spec.generates:
            text = f"the endpoint {name} generates no text, so that output has no effect: leave it out"
            yield Mistake((*traffic.loc, "output"), text, of_key=True)


def _options(kind: str, models: Mapping[str, type[_Part]], loc: Loc, raw: object) -> tuple[_Part | None, list[Mistake]]:
    """Read the options of a payload or behaviour, named by the end of `loc`. Returns them, or what is wrong with them."""
    name = str(loc[-1])
    if name not in models:
        return None, [Mistake(loc, f"unknown {kind} {name!r}{near(name, list(models))}", of_key=True)]
    try:
        return models[name].model_validate({} if raw is None else raw), []
    except ValidationError as e:
        return None, from_pydantic(e, models[name], loc)


def _weights(written: _Written, _: Registry) -> Iterator[Mistake]:
    weights = [traffic.weight for traffic in written.traffic]
    if weights and all(isinstance(w, int | float) and w == 0 for w in weights):
        yield Mistake(("traffic",), "every weight is 0: set at least one above 0")
    first: dict[str, Loc] = {}
    for traffic in written.traffic:
        if (before := first.setdefault(traffic.name, traffic.loc)) != traffic.loc:
            yield Mistake((*traffic.loc, "name"), f"traffic {before[-1]} already has this name (got {traffic.name!r})")


def _phase_traffic(written: _Written, _: Registry) -> Iterator[Mistake]:
    known = [traffic.name for traffic in written.traffic]
    named: list[Sequence[object]] = []
    for loc, phase in written.phases:
        named.append(_list(phase.get("traffic")))
        if phase.get("traffic") == []:
            yield Mistake((*loc, "traffic"), "names of traffic were expected, or leave the key out to send all traffic")
        for i, name in enumerate(named[-1]):
            if isinstance(name, str) and name not in known:  # the model refuses what is no text
                yield Mistake((*loc, "traffic", i), f"no traffic has the name {name!r}{near(name, known)}")
    sent = {str(name) for names in named for name in names}
    if named and all(named) and sent <= set(known):
        for traffic in written.traffic:
            if traffic.weight and traffic.name not in sent:
                text = f"no phase sends the traffic {traffic.entry.get('name')}: name it in one of them"
                yield Mistake(traffic.loc, text)


def _dialects(written: _Written, registry: Registry) -> Iterator[Mistake]:
    known = [*registry.dialects, "auto"]
    if registry.dialects and isinstance(name := written.target.get("dialect"), str) and name not in known:
        yield Mistake(("target", "dialect"), f"unknown dialect {name!r}{near(name, known)}")
    embedded = written.target.get("embedded")
    if not isinstance(embedded, Mapping) or registry.defects is None:
        return
    dialect = embedded.get("dialect", "vllm")
    if not isinstance(dialect, str) or dialect not in registry.defects:
        text = f"the embedded server cannot simulate {dialect!r}{near(str(dialect), list(registry.defects))}"
        yield Mistake(("target", "embedded", "dialect"), text)
        return
    for i, name in enumerate(_list(embedded.get("defects"))):
        if not isinstance(name, str) or name not in registry.defects[dialect]:
            hint = near(str(name), list(registry.defects[dialect]))
            yield Mistake(("target", "embedded", "defects", i), f"unknown defect {name!r} of {dialect}{hint}")


def _attacks(written: _Written, registry: Registry) -> Iterator[Mistake]:
    if registry.attacks is None:
        return
    dialect, embedded = written.target.get("dialect", "auto"), written.target.get("embedded")
    if dialect == "auto" and isinstance(embedded, Mapping):
        dialect = embedded.get("dialect", "vllm")
    if str(dialect) in registry.attacks:
        known, of = registry.attacks[str(dialect)], f" {dialect} has no such attack"
    else:
        known, of = frozenset().union(*registry.attacks.values()), " no server has such an attack"
    for loc, entry in _entries(written.data, "attacks"):
        name = entry.get("admin")
        if isinstance(name, str) and name not in known:
            yield Mistake((*loc, "admin"), f"unknown attack {name!r}:{of}{near(name, list(known))}")
        name, plugins = entry.get("plugin"), list(registry.plugin_attacks)
        if isinstance(name, str) and name not in plugins:
            yield Mistake((*loc, "plugin"), f"unknown attack {name!r}: no installed plugin has it{near(name, plugins)}")


def _replays(written: _Written, _: Registry) -> Iterator[Mistake]:
    """Require the payload that a phase needs: `text` makes prompts of the lengths in a trace."""
    keys = {key for _, phase in written.phases for key in phase}
    for traffic in (t for t in written.traffic if isinstance(t.entry.get("payload"), Mapping)):
        loc = (*traffic.loc, "payload")
        if "trace" in keys and "text" not in traffic.payload:
            yield Mistake(loc, "a phase replays a trace, so every traffic needs a text payload")
        if "replay" in keys and "recorded" not in traffic.payload:
            text = "a phase replays recorded requests, so every traffic needs the payload recorded, e.g. {recorded: "
            yield Mistake(loc, text + "{trace: trace.jsonl}}")
        if "replay" not in keys and "recorded" in traffic.payload:
            text = "the payload recorded needs a phase that replays its trace, e.g. load: [{replay: trace.jsonl}]"
            yield Mistake(loc, text)


def _expectations(written: _Written, _: Registry) -> Iterator[Mistake]:
    names = expectation_names.prefixes((t.name, str(t.endpoint or "chat")) for t in written.traffic)
    for i, text in enumerate(_list(written.data.get("expect"))):
        try:
            name = expectation_names.parse(text, names).name if isinstance(text, str) else ""
        except ValueError as e:
            yield Mistake(("expect", i), str(e))
            continue
        if name == "goodput" and not written.data.get("slo"):
            yield Mistake(("expect", i), "goodput needs limits: slo: {ttft: 2s, itl_p99: 50ms}")
        if name.startswith(("turns_lost", "session_e2e_")) and not _has_sessions(written):
            yield Mistake(("expect", i), f"{name} needs sessions: a payload conversation with answers: live")


def _acceptances(written: _Written, _: Registry) -> Iterator[Mistake]:
    for loc, entry in _entries(written.data, "accept"):
        name = entry.get("id")
        if isinstance(name, str) and name.startswith(GENERIC_IDS) and not (entry.get("text") or entry.get("frame")):
            text = (
                f"{name} stands for any failure of its kind: text or frame was expected beside it, e.g. "
                f"{{id: {name}, text: 'words of its title', because: ..., until: ...}}"
            )
            yield Mistake((*loc, "id"), text)


def _has_sessions(written: _Written) -> bool:
    return any(_mapping(t.payload.get("conversation")).get("answers") == "live" for t in written.traffic)


_CHECKS: tuple[Callable[[_Written, Registry], Iterator[Mistake]], ...] = (
    _payloads, _endpoints, _behaviours, _weights, _phase_traffic, _dialects, _attacks, _expectations, _replays,
    _acceptances,
)  # fmt: skip
