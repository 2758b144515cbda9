"""Smaller candidates, level by level, the most expensive factor first."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from loadchaos.profile.request_trace import BODIES, Cause, RequestTrace, TraceSend
from loadchaos.runner.minimise import rewrite
from loadchaos.runner.minimise.candidate import Reduction, may_go
from loadchaos.runner.minimise.ddmin import ddmin
from loadchaos.runner.replay import bodies

Fails = Callable[[Reduction], Awaitable[bool]]
_MOST_SINGLY = 8
"""Maximum number of requests for which a rewrite is tried one by one, if it does not work for all at once."""


async def attacks(candidate: Reduction, fails: Fails) -> Reduction:
    """Leave out attacks."""

    def using(kept: Sequence[Any]) -> Reduction:
        return replace(candidate, trace=replace(candidate.trace, attacks=tuple(kept)))

    found = candidate.trace.attacks
    if not found:
        return candidate
    if await fails(using(())):
        return using(())
    return using(await ddmin(found, lambda kept: fails(using(kept))))


async def traffic_kinds(candidate: Reduction, fails: Fails) -> Reduction:
    """Leave out kinds of traffic."""
    names = candidate.trace.traffic_names()

    def using(kept: Sequence[str]) -> Reduction:
        return only(candidate, (s.id for s in candidate.trace.sends if s.traffic in kept))

    return candidate if len(names) < 2 else using(await ddmin(names, lambda kept: fails(using(kept))))


async def windows(candidate: Reduction, fails: Fails) -> Reduction:
    """Keep the newest requests, half as many each time."""
    while candidate.requests > 1:
        ids = [s.id for s in candidate.trace.sends]
        half = only(candidate, ids[-(len(ids) // 2) :])
        if not await fails(half):
            break
        candidate = half
    return candidate


async def single_requests(candidate: Reduction, fails: Fails) -> Reduction:
    """Leave out single requests."""
    ids = [s.id for s in candidate.trace.sends]
    return only(candidate, await ddmin(ids, lambda kept: fails(only(candidate, kept))))


def only(candidate: Reduction, ids: Iterable[str]) -> Reduction:
    """Reduction with these requests alone."""
    return replace(candidate, trace=candidate.trace.only(ids))


async def behaviours(candidate: Reduction, fails: Fails) -> Reduction:
    """Make aborting and slow clients normal ones."""
    trace = candidate.trace
    plain = tuple(s.model_copy(update={"behaviour": {}}) for s in trace.sends)
    return await _if_fails(candidate, replace(trace, sends=plain, aborts=()), fails)


@dataclass(frozen=True)
class BodyRewrite:
    """One simplification of bodies; `again` repeats it while it works."""

    name: str
    change: rewrite.Rewrite
    again: bool = False


FEATURES = (
    BodyRewrite("without images", rewrite.without_images),
    BodyRewrite("one image", rewrite.one_image),
    BodyRewrite("the last message", rewrite.last_message),
    BodyRewrite("not streamed", rewrite.not_streamed),
    BodyRewrite("generated images", rewrite.generated_images),
    BodyRewrite("equal words", rewrite.plain_words(1.0)),
    BodyRewrite("equal words, a quarter more", rewrite.plain_words(1.25)),
    BodyRewrite("equal words, half as many more", rewrite.plain_words(1.5)),
    BodyRewrite("equal words, half as many", rewrite.plain_words(0.5)),
)
LENGTHS = (
    BodyRewrite("half the image size", rewrite.half_images, again=True),
    BodyRewrite("half the text", rewrite.half_text, again=True),
    BodyRewrite("half the output", rewrite.half_output, again=True),
)


async def features(candidate: Reduction, fails: Fails) -> Reduction:
    """Remove images, sampling options, schemas, penalties, streams."""
    keys = rewrite.removable_keys([_body(candidate.trace, s) for s in candidate.trace.sends])
    everything = BodyRewrite("no options", _without_all(keys))
    before = candidate
    candidate = await _rewritten(candidate, everything, fails)
    if candidate is before:
        for key in keys if len(keys) > 1 else ():
            candidate = await _rewritten(candidate, BodyRewrite(f"without {key}", rewrite.without(key)), fails)
    for change in FEATURES:
        candidate = await _rewritten(candidate, change, fails)
    return candidate


async def lengths(candidate: Reduction, fails: Fails) -> Reduction:
    """Shorten prompts and answers, shrink images."""
    for change in LENGTHS:
        while True:
            smaller = await _rewritten(candidate, change, fails)
            if smaller is candidate or not change.again:
                break
            candidate = smaller
    return candidate


async def timing(candidate: Reduction, fails: Fails) -> Reduction:
    """Send all requests at once, or else one after the other."""
    trace = candidate.trace
    if len(trace.sends) == 1:
        return _with_sends(candidate, [s.model_copy(update={"at_s": 0.0, "after": ()}) for s in trace.sends])
    at_once = [s.model_copy(update={"at_s": 0.0, "after": ()}) for s in trace.sends]
    found = await _if_fails(candidate, replace(trace, sends=tuple(at_once)), fails)
    if found is not candidate:
        return found
    chain = [
        s.model_copy(update={"at_s": 0.0, "after": (Cause(request=trace.sends[i - 1].id),) if i else ()})
        for i, s in enumerate(trace.sends)
    ]
    return await _if_fails(candidate, replace(trace, sends=tuple(chain)), fails)


async def flags(candidate: Reduction, fails: Fails) -> Reduction:
    """Leave out launch flags."""
    loose = [flag for flag in candidate.flags if may_go(flag)]

    def using(kept: Sequence[tuple[str, ...]]) -> Reduction:
        return replace(candidate, flags=tuple(f for f in candidate.flags if not may_go(f) or f in kept))

    if not loose:
        return candidate
    if await fails(using(())):
        return using(())
    return using(await ddmin(loose, lambda kept: fails(using(kept))))


def _without_all(keys: Sequence[str]) -> rewrite.Rewrite:
    return lambda body: {k: v for k, v in body.items() if k not in keys}


def _body(trace: RequestTrace, send: TraceSend) -> rewrite.Body:
    return dict(orjson.loads(trace.body_file(send).read_bytes()))


def _with_sends(candidate: Reduction, sends: Sequence[TraceSend]) -> Reduction:
    return replace(candidate, trace=replace(candidate.trace, sends=tuple(sends)))


async def _if_fails(candidate: Reduction, trace: RequestTrace, fails: Fails) -> Reduction:
    """Take the trace if it differs and still fails."""
    smaller = replace(candidate, trace=trace)
    return smaller if smaller.key() != candidate.key() and await fails(smaller) else candidate


async def _rewritten(candidate: Reduction, change: BodyRewrite, fails: Fails) -> Reduction:
    """Apply a rewrite to all requests, or else to each one for which it works."""
    whole = _with_sends(candidate, [rewritten(candidate.trace, s, change.change) for s in candidate.trace.sends])
    if whole.key() == candidate.key():
        return candidate
    if await fails(whole):
        return whole
    if not 1 < candidate.requests <= _MOST_SINGLY:
        return candidate
    for i in range(candidate.requests):
        sends = list(candidate.trace.sends)
        sends[i] = rewritten(candidate.trace, sends[i], change.change)
        one = _with_sends(candidate, sends)
        if one.key() not in (candidate.key(), whole.key()) and await fails(one):
            candidate = one
    return candidate


def rewritten(trace: RequestTrace, send: TraceSend, change: rewrite.Rewrite) -> TraceSend:
    """Store a simpler body of a request; an unchanged one keeps its address."""
    before = _body(trace, send)
    body = change(copy.deepcopy(before))
    if body == before:
        return send
    images = sum(rewrite.image_url(part) is not None for _, _, part in rewrite.parts(body))
    name = bodies.store(trace.folder / BODIES, orjson.dumps(body))
    stream = bool(body.get("stream"))
    return send.model_copy(update={"body": name, "stream": stream, "images": images})


LEVELS: tuple[tuple[str, Callable[[Reduction, Fails], Awaitable[Reduction]]], ...] = (
    ("attacks", attacks),
    ("request windows", windows),  # each try of the next levels costs half as much after each window
    ("traffic kinds", traffic_kinds),
    ("single requests", single_requests),
    ("client behaviours", behaviours),
    ("features", features),
    ("lengths", lengths),
    ("timing", timing),
    ("launch flags", flags),
)
