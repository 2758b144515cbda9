"""A few requests that fill the KV cache, in the place of many: one of them is preempted, and scheduled again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from loadchaos.campaigns.minimise import rewrite
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.reductions import MANY, Fails, body_of, first_that_fails, rewritten, with_sends
from loadchaos.profile.request_trace import Cause, TraceSend

_ROUNDS = 5
"""Rounds of a candidate: milliseconds decide which request is preempted, so that one round seldom does it."""
_FEWEST_FILLERS, _OTHERS = 3, 5
_OVER = 1.3
"""The answers of the fillers alone are so much longer than the KV cache: they take each block of the preempted request."""
_VICTIM = 1.4
"""Its answer, in parts of an equal share of the KV cache. It must still run when the cache is full."""
_LONGEST = 0.9
"""Longest answer of a filler, as a share of the context: its prompt has tokens of its own."""
_LONGER = 16
"""A filler's answer is at most so many times as long as the longest of the candidate. Where short answers are enough to
fail, no full cache is needed; and a cache for 100,000 tokens takes minutes to fill.
"""
_GAP_S = 0.5


async def full_cache(candidate: Reduction, fails: Fails) -> Reduction:
    """Replace many requests by a few that fill the KV cache.

    When requests are left out of many, the cache is no longer full and nothing is preempted, so a failure of a preempted
    request keeps them all. Here one request brings its prompt into the prefix cache. Fillers follow: text with long
    answers. Then the same prompt comes again; as the newest it is preempted. Other requests push its images out of the
    caches of the encoder.
    """
    fewer = (found for found in _candidates(candidate) if found.requests < candidate.requests)
    return await first_that_fails(fewer, fails) or candidate


def _candidates(candidate: Reduction) -> Iterator[Reduction]:
    trace, server = candidate.trace, candidate.trace.header.server
    capacity, longest = server.get("capacity_tokens"), server.get("max_model_len")
    if candidate.requests <= MANY or not isinstance(capacity, int) or not isinstance(longest, int):
        return
    fillers = max(_FEWEST_FILLERS, math.ceil(_OVER * capacity / (_LONGEST * longest)))
    newest = {send.traffic: send for send in trace.sends}
    victims = sorted(newest.values(), key=lambda s: -rewrite.output(body_of(trace, s)))
    answers = math.ceil(_OVER * capacity / fillers)
    if answers > _LONGER * rewrite.output(body_of(trace, victims[0])):
        return
    distinct = {s.body: s for s in trace.sends}.values()
    largest_first = sorted(distinct, key=lambda s: -trace.body_file(s).stat().st_size)  # these have the most images

    def sent(name: str, send: TraceSend, change: rewrite.Rewrite, delay_s: float | None) -> TraceSend:
        after = () if delay_s is None else (Cause(request="first", delay_s=delay_s),)
        return rewritten(trace, send, change).model_copy(update={"id": name, "at_s": 0.0, "after": after})

    shared = min(math.ceil(_VICTIM * capacity / (fillers + 1)), longest // 2)  # the victim's prompt may be long
    for victim in victims:
        begin = [
            sent("first", victim, rewrite.one_token, None),
            *(sent(f"filler-{n}", victims[0], rewrite.filler(n, answers), 0.0) for n in range(fillers)),
            sent("again", victim, rewrite.exact_output(shared), _GAP_S),
        ]
        others = [s for s in largest_first if s.body != victim.body][:_OTHERS]
        end = [sent(f"other-{n}", s, rewrite.one_token, 2 * _GAP_S) for n, s in enumerate(others)]
        for sends in (begin + end, begin):
            found = with_sends(replace(candidate, rounds=max(candidate.rounds, _ROUNDS)), sends)
            found = replace(found, trace=replace(found.trace, aborts=()))
            yield replace(found, change=f"{victim.traffic} preempted in a full KV cache")
