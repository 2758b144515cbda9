"""Smaller candidates, level by level, the most expensive factor first."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from loadchaos.campaigns.minimise import rewrite
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.leave_out import leave_out
from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import BODIES, Cause, RequestTrace, TraceSend

Fails = Callable[[Reduction], Awaitable[bool]]
_MOST_SINGLY = 8
"""Maximum number of requests that are simplified one by one."""
MANY = 10
"""More requests than these are replaced by fewer longer ones."""
_FEW, _LONG_OUTPUT = 2, 32
"""So many requests are not replaced, and so long answers are made longer: the level before kept them long."""
_CLOSER_WINDOWS = 4
_TOGETHER_S = 1.0
_NOT_GUILTY = ("ok", "rejected", "shed", "missed", "aborted")


async def attacks(candidate: Reduction, fails: Fails) -> Reduction:
    def using(kept: Sequence[Any]) -> Reduction:
        return replace(candidate, trace=replace(candidate.trace, attacks=tuple(kept)))

    async def some(kept: Sequence[Any], _: Sequence[Any]) -> bool:
        return await fails(using(kept))

    found = candidate.trace.attacks
    return using(await leave_out(found, some, len(found))) if found else candidate


async def traffic_kinds(candidate: Reduction, fails: Fails) -> Reduction:
    names = candidate.trace.traffic_names()

    def using(kept: Sequence[str]) -> Reduction:
        return only(candidate, (s.id for s in candidate.trace.sends if s.traffic in kept))

    async def some(kept: Sequence[str], _: Sequence[str]) -> bool:
        return bool(kept) and await fails(using(kept))

    return candidate if len(names) < 2 else using(await leave_out(names, some))


async def windows(candidate: Reduction, fails: Fails) -> Reduction:
    """Keep the newest requests, half as many each time. Where half are too few, numbers between are tried."""
    ids = [s.id for s in candidate.trace.sends]
    too_few, closer = 0, 0
    while (most := candidate.requests) > 1 and closer < _CLOSER_WINDOWS and most - too_few > 1:
        number = (too_few + most) // 2
        window = only(candidate, ids[-number:])
        if await fails(window):
            candidate = window
        else:
            too_few = number
        closer += too_few > 0
    return candidate


async def single_requests(candidate: Reduction, fails: Fails, most_in_vain: int | None = None) -> Reduction:
    """Leave out blocks of requests, then single ones. With `most_in_vain`, until so many tries in a row were in vain."""
    ids = [s.id for s in candidate.trace.sends]
    survived: set[tuple[str, ...]] = set()

    async def some(kept: Sequence[str], _: Sequence[str]) -> bool:
        smaller = only(candidate, kept)
        contents = _contents(smaller)
        if not kept or contents in survived:
            return False
        if await fails(smaller):
            return True
        survived.update((contents,) if contents else ())
        return False

    return only(candidate, await leave_out(ids, some, len(ids) // 2, most_in_vain))


def _contents(candidate: Reduction) -> tuple[str, ...]:
    """Contents of all requests where these are sent at once: equal ones are as good as each other."""
    sends = candidate.trace.sends
    if candidate.trace.aborts or any(s.after or s.at_s or s.body is None for s in sends):
        return ()
    return tuple(sorted(s.model_dump_json(exclude={"id", "traffic", "plan", "outcome"}) for s in sends))


async def fewer_longer(candidate: Reduction, fails: Fails) -> Reduction:
    """Send half as many requests with three times the text, as a template has tokens of its own, or with twice the text and
    answer: a failure that needs a full KV cache or batch needs as many tokens as before.
    """
    smaller: Reduction | None = candidate
    while smaller is not None:
        candidate = smaller
        smaller = await first_that_fails((c for c in _longer(candidate) if c.key() != candidate.key()), fails)
    return candidate


def _longer(candidate: Reduction) -> Iterator[Reduction]:
    """Each half, with each change: one half may lack a request that has to be there."""
    ids = [s.id for s in candidate.trace.sends]
    outputs = [rewrite.output(body_of(candidate.trace, s)) for s in candidate.trace.sends]
    changes: list[tuple[str, rewrite.Rewrite]] = []
    if candidate.requests > MANY:
        changes.append(("three times the text", rewrite.multiplied_text(3)))
    if candidate.requests > _FEW and max(outputs) >= _LONG_OUTPUT:
        changes.append(("twice the text and answer", together(rewrite.multiplied_text(2), rewrite.double_output)))
    for name, change in changes:
        for first in (0, 1):
            half = only(candidate, ids[first::2])
            sends = [rewritten(half.trace, s, change) for s in half.trace.sends]
            yield replace(with_sends(half, sends), change=f"half as many with {name}")


async def smaller_server(candidate: Reduction, fails: Fails) -> Reduction:
    """Halve the context, caches and batch of the server while it fails, all at once and then each alone; then send fewer
    requests. A failure that needs a full cache needs fewer of them there, or shorter answers.
    """
    whole = candidate
    for names in ((), *((name,) for name in candidate.sizes)) if candidate.requests > _FEW else ():
        for times in (_LEAP, 1) if names else (1,):
            while (found := await first_that_fails(_smaller(candidate, names, times), fails)) is not None:
                candidate = found
    return candidate if candidate is whole else await windows(candidate, fails)


def _smaller(candidate: Reduction, names: Sequence[str], times: int) -> Iterator[Reduction]:
    """Yield a smaller server, after one halving also with half the answers; nothing where no flag can be smaller."""
    smaller = candidate
    for _ in range(times):
        smaller = smaller.on_smaller_server(*names)
    if smaller.flags == candidate.flags:
        return
    change = f"{'half' if times == 1 else 'an eighth'} of {', '.join(names) or 'context and caches'}"
    yield replace(smaller, change=change)
    if times == 1:
        sends = [rewritten(smaller.trace, s, rewrite.half_output) for s in smaller.trace.sends]
        yield replace(with_sends(smaller, sends), change=f"{change}, half the answers")


async def first_that_fails(candidates: Iterable[Reduction], fails: Fails) -> Reduction | None:
    for found in candidates:
        if await fails(found):
            return replace(found, change="")
    return None


def only(candidate: Reduction, ids: Iterable[str]) -> Reduction:
    return replace(candidate, trace=candidate.trace.only(ids))


async def behaviours(candidate: Reduction, fails: Fails) -> Reduction:
    trace = candidate.trace
    plain = tuple(s.model_copy(update={"behaviour": {}}) for s in trace.sends)
    return await _if_fails(candidate, "", replace(trace, sends=plain, aborts=()), fails)


async def first_guesses(candidate: Reduction, fails: Fails) -> Reduction:
    """Keep the likeliest requests alone, sent at once, without attacks. These are the newest ones, those of the newest
    burst, and those without a complete answer: they were in flight when the server died.
    """
    sends = candidate.trace.sends
    unanswered = [s for s in sends if s.outcome not in _NOT_GUILTY]
    newest = [s for s in sends if s.at_s >= sends[-1].at_s - _TOGETHER_S]
    guesses = [sends[-1:], unanswered[:1], sends[-4:], unanswered[-16:], sends[-16:], unanswered, newest]
    for guess in guesses:
        if not 0 < 2 * len(guess) <= candidate.requests:
            continue
        alone = only(candidate, (s.id for s in guess))
        found = at_once(replace(alone, trace=replace(alone.trace, attacks=())))
        if await fails(found):
            return found
    return candidate


def at_once(candidate: Reduction) -> Reduction:
    return with_sends(candidate, [s.model_copy(update={"at_s": 0.0, "after": ()}) for s in candidate.trace.sends])


def together(*changes: rewrite.Rewrite) -> rewrite.Rewrite:
    def changed(body: rewrite.Body) -> rewrite.Body:
        for change in changes:
            body = change(body)
        return body

    return changed


PLAIN = (rewrite.last_message, rewrite.not_streamed, rewrite.generated_images, rewrite.plain_words(1.0))
FEATURES = (
    ("the last message", rewrite.last_message),
    ("not streamed", rewrite.not_streamed),
    ("generated images", rewrite.generated_images),
    ("equal words", rewrite.plain_words(1.0)),
    ("without images", rewrite.without_images),
    ("one image", rewrite.one_image),
    ("equal words, a quarter more", rewrite.plain_words(1.25)),
    ("equal words, half as many more", rewrite.plain_words(1.5)),
    ("equal words, half as many", rewrite.plain_words(0.5)),
)
SHORTEST = (rewrite.smallest_images, rewrite.one_word, rewrite.one_token)
LENGTHS = (
    ("output", rewrite.one_token, rewrite.half_output),  # first, as a try takes as long as its output
    ("image size", rewrite.smallest_images, rewrite.half_images),
    ("text", rewrite.one_word, rewrite.half_text),
)
"""Each length with its shortest form, and a step towards it that is repeated while it works."""
_LEAP = 3
"""Steps that are tried at once before single ones."""


async def features(candidate: Reduction, fails: Fails) -> Reduction:
    keys = rewrite.removable_keys([body_of(candidate.trace, s) for s in candidate.trace.sends])
    without_options = rewrite.without(*keys)
    before = candidate
    candidate = await _rewritten(candidate, "all at once", together(without_options, *PLAIN), fails)
    if candidate is before:
        candidate = await _rewritten(candidate, "no options", without_options, fails)
        for key in keys if candidate is before and len(keys) > 1 else ():
            candidate = await _rewritten(candidate, f"without {key}", rewrite.without(key), fails)
    for name, change in FEATURES:
        candidate = await _rewritten(candidate, name, change, fails)
    return await _simplest_singly(
        candidate, together(without_options, *PLAIN, rewrite.without_images, *SHORTEST), fails
    )


async def _simplest_singly(candidate: Reduction, simplest: rewrite.Rewrite, fails: Fails) -> Reduction:
    if not 1 < candidate.requests <= _MOST_SINGLY:
        return candidate
    for i in range(candidate.requests):
        sends = list(candidate.trace.sends)
        sends[i] = rewritten(candidate.trace, sends[i], simplest)
        trace = replace(candidate.trace, sends=tuple(sends))
        candidate = await _if_fails(candidate, f"request {i} as simple as possible", trace, fails)
    return candidate


async def outputs(candidate: Reduction, fails: Fails) -> Reduction:
    """Ask for shorter answers: a try takes as long as its output."""
    for name, change in (
        ("the least output", rewrite.one_token),
        ("an eighth of the output", together(*[rewrite.half_output] * _LEAP)),
        ("half the output", rewrite.half_output),
    ):
        shorter = await _rewritten(candidate, name, change, fails)
        if shorter is not candidate:
            return shorter
    return candidate


async def lengths(candidate: Reduction, fails: Fails) -> Reduction:
    candidate = await _rewritten(candidate, "the shortest of all", together(*SHORTEST), fails)
    for name, shortest, step in LENGTHS:
        candidate = await _rewritten(candidate, f"the least {name}", shortest, fails)
        for share, change in (("an eighth of", together(*[step] * _LEAP)), ("half", step)):
            while (smaller := await _rewritten(candidate, f"{share} the {name}", change, fails)) is not candidate:
                candidate = smaller
    return candidate


async def timing(candidate: Reduction, fails: Fails) -> Reduction:
    """Send all requests at once, or else one after the other."""
    trace = candidate.trace
    whole = at_once(candidate)
    if len(trace.sends) == 1:
        return whole
    if whole.key() == candidate.key():
        return candidate
    if await fails(replace(whole, change="all at once")):
        return whole
    if candidate.requests > MANY:
        return candidate  # it would take as long as all of them together
    chain = [
        s.model_copy(update={"at_s": 0.0, "after": (Cause(request=trace.sends[i - 1].id),) if i else ()})
        for i, s in enumerate(trace.sends)
    ]
    return await _if_fails(candidate, "one after the other", replace(trace, sends=tuple(chain)), fails)


async def flags(candidate: Reduction, fails: Fails) -> Reduction:
    async def without(kept: Sequence[tuple[str, ...]], block: Sequence[tuple[str, ...]]) -> bool:
        words = shlex.join(word for flag in block for word in flag)
        return await fails(replace(candidate.with_loose(kept), change=f"without {words}"))

    return candidate.with_loose(await leave_out(loose, without)) if (loose := candidate.loose) else candidate


def body_of(trace: RequestTrace, send: TraceSend) -> rewrite.Body:
    return dict(orjson.loads(trace.body_file(send).read_bytes()))


def with_sends(candidate: Reduction, sends: Sequence[TraceSend]) -> Reduction:
    return replace(candidate, trace=replace(candidate.trace, sends=tuple(sends)))


async def _if_fails(candidate: Reduction, change: str, trace: RequestTrace, fails: Fails) -> Reduction:
    smaller = replace(candidate, trace=trace, change=change)
    return replace(smaller, change="") if smaller.key() != candidate.key() and await fails(smaller) else candidate


async def _rewritten(candidate: Reduction, name: str, change: rewrite.Rewrite, fails: Fails) -> Reduction:
    sends = tuple(rewritten(candidate.trace, s, change) for s in candidate.trace.sends)
    return await _if_fails(candidate, name, replace(candidate.trace, sends=sends), fails)


def rewritten(trace: RequestTrace, send: TraceSend, change: rewrite.Rewrite) -> TraceSend:
    before = body_of(trace, send)
    body = change(copy.deepcopy(before))
    if body == before:
        return send
    images = sum(rewrite.image_url(part) is not None for _, _, part in rewrite.parts(body))
    name = store_body(trace.folder / BODIES, orjson.dumps(body))
    stream = bool(body.get("stream"))
    return send.model_copy(update={"body": name, "stream": stream, "images": images})
