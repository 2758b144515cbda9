"""Checks of a profile across its parts: registered names and combinations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from loadchaos.core import expectation_names
from loadchaos.core.units import share
from loadchaos.profile.base import ProfilePart
from loadchaos.profile.source import Mistake, from_pydantic, near

if TYPE_CHECKING:
    from loadchaos.profile.profile import Registry

_O = TypeVar("_O", bound=ProfilePart)


def mistakes(data: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
    """Yield the mistakes in the plain data of a profile. Values of a wrong type are skipped: the models report them."""
    for check in _CHECKS:
        yield from check(data, registry)


def _entries(data: Mapping[str, Any], key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    entries = data.get(key)
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, Mapping):
            yield i, entry


def _payload_parts(data: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any], str, Any]]:
    """Yield (number of a traffic, its entry, name and options) of each payload."""
    for i, entry in _entries(data, "traffic"):
        payload = entry.get("payload")
        for name, raw in payload.items() if isinstance(payload, Mapping) else ():
            yield i, entry, name, raw


def _payloads(data: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
    for i, entry, name, raw in _payload_parts(data):
        options, found = _options("payload", registry.payloads, ("traffic", i, "payload", name), name, raw)
        yield from found
        ignores = registry.payloads[name].ignores if name in registry.payloads else frozenset()
        for other in [p for p in entry["payload"] if p != name and (ignores is None or p in ignores)]:
            text = f"has no effect together with {name}, which defines the whole request: remove one of the two"
            yield Mistake(("traffic", i, "payload", other), text, of_key=True)
        given = entry.get("behaviour")
        behaviours = [given] if isinstance(given, str) else list(given) if isinstance(given, Mapping) else []
        endpoint = str(entry.get("endpoint", "chat"))
        if options is not None:
            for key, why in options.refusals(tuple(entry["payload"]), behaviours, endpoint):
                yield Mistake(("traffic", i, *key), why, of_key=len(key) > 1)


def _behaviours(data: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
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
            behaviour, found = _options("behaviour", registry.behaviours, loc, name, options)
            yield from found
            if not _streams(entry, registry) and (behaviour is not None and behaviour.needs_stream):
                why = "stream is false" if entry.get("stream") is False else "the endpoint does not stream"
                yield Mistake(loc, f"aborts within a stream, but {why}: abort after a time (after: 200ms)")
        if shares > 1 + 1e-9:
            yield Mistake(("traffic", i, "behaviour"), f"the shares add up to more than 100% (got {shares * 100:g}%)")


def _endpoints(data: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
    for i, entry in _entries(data, "traffic"):
        name = entry.get("endpoint", "chat")
        if not registry.endpoints or not isinstance(name, str):
            continue
        spec = registry.endpoints.get(name)
        if spec is None:
            known = list(registry.endpoints)
            hint = near(name, known) or f"; {', '.join(known)} were expected"
            yield Mistake(("traffic", i, "endpoint"), f"unknown endpoint {name!r}{hint}")
            continue
        payload = entry.get("payload")
        for other, raw in payload.items() if isinstance(payload, Mapping) else ():
            loc = ("traffic", i, "payload", other)
            if other in registry.payloads and not spec.carries(other):
                carrying = [n for n, e in registry.endpoints.items() if e.carries(other)]
                takes = sorted(payload for payload in registry.payloads if spec.carries(payload))
                text = (
                    f"the endpoint {name} cannot carry {other}: it takes {', '.join(takes)}; "
                    f"{other} goes with endpoint: {' or '.join(carrying)}"
                )
                yield Mistake(loc, text, of_key=True)
            for option in raw if isinstance(raw, Mapping) else ():
                if f"{other}.{option}" in spec.lacks:
                    carrying = [n for n, e in registry.endpoints.items() if e.carries(other, option)]
                    text = f"the endpoint {name} has no such option; it goes with endpoint: {' or '.join(carrying)}"
                    yield Mistake((*loc, option), text, of_key=True)
        if spec.needs and isinstance(payload, Mapping) and spec.needs not in payload:
            text = f"the endpoint {name} needs the payload {spec.needs}, e.g. {{{spec.needs}: {{}}}}"
            yield Mistake(("traffic", i, "payload"), text)
        if entry.get("stream") is True and not spec.streams:
            yield Mistake(("traffic", i, "stream"), f"the endpoint {name} does not stream: leave this out")
        if "output" in entry and not spec.generates:
            text = f"the endpoint {name} generates no text, so that output has no effect: leave it out"
            yield Mistake(("traffic", i, "output"), text, of_key=True)


def _streams(entry: Mapping[str, Any], registry: Registry) -> bool:
    spec = registry.endpoints.get(str(entry.get("endpoint", "chat")))
    return entry.get("stream") is not False and (spec is None or spec.streams)


def _options(
    kind: str, models: Mapping[str, type[_O]], loc: tuple[int | str, ...], name: str, raw: Any
) -> tuple[_O | None, list[Mistake]]:
    """Read the options of a payload or behaviour. Returns them, or what is wrong with them."""
    model = models.get(name)
    if model is None:
        return None, [Mistake(loc, f"unknown {kind} {name!r}{near(str(name), list(models))}", of_key=True)]
    try:
        return model.model_validate({} if raw is None else raw), []
    except ValidationError as e:
        return None, from_pydantic([dict(x) for x in e.errors(include_url=False)], model, loc)


def _weights(data: Mapping[str, Any], _: Registry) -> Iterator[Mistake]:
    entries = list(_entries(data, "traffic"))
    weights = [entry.get("weight", 1) for _, entry in entries]
    if entries and all(isinstance(w, int | float) and w == 0 for w in weights):
        yield Mistake(("traffic",), "every weight is 0: set at least one above 0")
    first: dict[Any, int] = {}
    for i, entry in entries:
        if (name := str(entry.get("name"))) in first:
            yield Mistake(("traffic", i, "name"), f"traffic {first[name]} already has this name (got {name!r})")
        first.setdefault(name, i)


def _phase_traffic(data: Mapping[str, Any], _: Registry) -> Iterator[Mistake]:
    weights = {str(t.get("name")): t.get("weight", 1) for _, t in _entries(data, "traffic")}
    given = list(_phases(data, "load", ()))
    for loc, phase in given:
        names = phase.get("traffic")
        if names == []:
            yield Mistake((*loc, "traffic"), "names of traffic were expected, or leave the key out to send all traffic")
        for i, name in enumerate(names if isinstance(names, list) else ()):
            if isinstance(name, str) and name not in weights:  # the model refuses what is no text
                yield Mistake((*loc, "traffic", i), f"no traffic has the name {name!r}{near(name, list(weights))}")
    if given and all(isinstance(phase.get("traffic"), list) and phase["traffic"] for _, phase in given):
        sent = {str(name) for _, phase in given for name in phase["traffic"]}
        if not sent <= set(weights):
            return
        for i, entry in _entries(data, "traffic"):
            if entry.get("weight", 1) and str(entry.get("name")) not in sent:
                yield Mistake(("traffic", i), f"no phase sends the traffic {entry.get('name')}: name it in one of them")


def _phases(data: Mapping[str, Any], key: str, loc: tuple[str | int, ...]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    for i, phase in _entries(data, key):
        if "phases" in phase:
            yield from _phases(phase, "phases", (*loc, key, i))
        else:
            yield (*loc, key, i), phase


def _dialects(data: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
    target = data.get("target")
    if not isinstance(target, Mapping):
        return
    if registry.dialects and isinstance(d := target.get("dialect"), str) and d not in {*registry.dialects, "auto"}:
        known = [*registry.dialects, "auto"]
        yield Mistake(("target", "dialect"), f"unknown dialect {d!r}{near(d, known)}")
    embedded = target.get("embedded")
    if not isinstance(embedded, Mapping) or registry.defects is None:
        return
    dialect = embedded.get("dialect", "vllm")
    if dialect not in registry.defects:
        text = f"the embedded server cannot simulate {dialect!r}{near(str(dialect), list(registry.defects))}"
        yield Mistake(("target", "embedded", "dialect"), text)
        return
    defects = embedded.get("defects")
    for i, name in enumerate(defects if isinstance(defects, list) else ()):
        if name not in registry.defects[dialect]:
            hint = near(str(name), list(registry.defects[dialect]))
            yield Mistake(("target", "embedded", "defects", i), f"unknown defect {name!r} of {dialect}{hint}")


def _attacks(data: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
    if registry.attacks is None:
        return
    dialect = _dialect_of(data)
    if dialect is not None and dialect in registry.attacks:
        known, of = registry.attacks[dialect], f" {dialect} has no such attack"
    else:
        known, of = frozenset().union(*registry.attacks.values()), " no server has such an attack"
    for i, entry in _entries(data, "attacks"):
        name = entry.get("admin")
        if isinstance(name, str) and name not in known:
            yield Mistake(("attacks", i, "admin"), f"unknown attack {name!r}:{of}{near(name, list(known))}")


def _replays(data: Mapping[str, Any], _: Registry) -> Iterator[Mistake]:
    """Require the payload that a phase needs: `text` makes prompts of the lengths in a trace."""
    keys = {key for _, phase in _phases(data, "load", ()) for key in phase}
    for i, entry in _entries(data, "traffic"):
        payload = entry.get("payload")
        if not isinstance(payload, Mapping):
            continue
        loc = ("traffic", i, "payload")
        if "trace" in keys and "text" not in payload:
            yield Mistake(loc, "a phase replays a trace, so every traffic needs a text payload")
        if "replay" in keys and "recorded" not in payload:
            text = "a phase replays recorded requests, so every traffic needs the payload recorded, e.g. {recorded: "
            yield Mistake(loc, text + "{trace: trace.jsonl}}")
        if "replay" not in keys and "recorded" in payload:
            text = "the payload recorded needs a phase that replays its trace, e.g. load: [{replay: trace.jsonl}]"
            yield Mistake(loc, text)


def _dialect_of(data: Mapping[str, Any]) -> str | None:
    target = data.get("target")
    if not isinstance(target, Mapping):
        return None
    if (dialect := target.get("dialect", "auto")) != "auto":
        return str(dialect)
    embedded = target.get("embedded")
    return str(embedded.get("dialect", "vllm")) if isinstance(embedded, Mapping) else None


def _expectations(data: Mapping[str, Any], _: Registry) -> Iterator[Mistake]:
    entries = _entries(data, "traffic")
    names = expectation_names.prefixes((str(e.get("name")), str(e.get("endpoint") or "chat")) for _, e in entries)
    lines = data.get("expect")
    for i, text in enumerate(lines if isinstance(lines, list) else ()):
        try:
            if not isinstance(text, str):
                continue
            name = expectation_names.parse(text, names).name
            if name == "goodput" and not data.get("slo"):
                yield Mistake(("expect", i), "goodput needs limits: slo: {ttft: 2s, itl_p99: 50ms}")
            if name.startswith(("turns_lost", "session_e2e_")) and not _has_sessions(data):
                yield Mistake(("expect", i), f"{name} needs sessions: a payload conversation with answers: live")
        except ValueError as e:
            yield Mistake(("expect", i), str(e))


def _has_sessions(data: Mapping[str, Any]) -> bool:
    options = (raw for _, _, name, raw in _payload_parts(data) if name == "conversation")
    return any(isinstance(o, Mapping) and o.get("answers") == "live" for o in options)


_CHECKS: tuple[Callable[[Mapping[str, Any], Registry], Iterator[Mistake]], ...] = (
    _payloads, _endpoints, _behaviours, _weights, _phase_traffic, _dialects, _attacks, _expectations, _replays,
)  # fmt: skip
