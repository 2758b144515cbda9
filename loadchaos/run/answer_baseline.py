"""Record the idle server's answers to some requests of the profile: the reference for the signs and text ratios of
those under load (analysis/detectors/answer_signs.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from loadchaos.core.ledger.rows import BaselineRow, Emit
from loadchaos.core.model import Facts
from loadchaos.load import request_builder
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.wire.request import Request
from loadchaos.profile.profile import Profile
from loadchaos.profile.steps import of_phase
from loadchaos.server.answer import ANSWER_LIMIT_S, Asker

_LEAST_LOAD_S = 60.0
_LIMIT_S = 20.0
_EACH = 6
_MOST_STEPS = 400
_MOST = 24
_PAYLOADS = frozenset({"text", "conversation", "images", "sampling", "structured", "tools"})
_OTHER_SEED = 0x5EED
_SILENCE_S = 15.0


def is_wanted(profile: Profile) -> bool:
    """A short load has too few answers to judge by; a deadly one may kill the idle server."""
    lengths = [phase.timed_s for phase in profile.load if phase.replay is None]
    return sum(lengths) >= _LEAST_LOAD_S and not profile.can_kill


def most_questions(profile: Profile) -> int:
    return min(_MOST, _EACH * len(profile.traffic)) if is_wanted(profile) else 0


def requests(profile: Profile, facts: Facts, seed: int) -> Iterator[Request]:
    sent: dict[str, int] = {}
    number = next(n for n, phase in enumerate(profile.load) if phase.replay is None)
    for step in islice(of_phase(profile, seed ^ _OTHER_SEED, number), _MOST_STEPS):
        plain = "ok" in step.expect and step.behaviour == "plain" and set(step.payload) <= _PAYLOADS
        plain = plain and ENDPOINTS[step.endpoint].generates
        if plain and sent.get(step.traffic, 0) < _EACH and sum(sent.values()) < _MOST:
            sent[step.traffic] = sent.get(step.traffic, 0) + 1
            yield request_builder.build(step, facts)


async def learn(asker: Asker, url: str, profile: Profile, facts: Facts, emit: Emit, *, seed: int) -> bool:
    """Ask the idle server, one request after the other. True where a request failed: the server may have died of it."""
    until_s, failed = time.monotonic() + _LIMIT_S, False
    for request in requests(profile, facts, seed):
        if time.monotonic() > until_s:
            break
        answer = await asker.ask(
            url + request.path, request.body, limit_s=ANSWER_LIMIT_S, silence_s=_SILENCE_S, stream=request.stream,
            answers=request.answers,
        )  # fmt: skip
        right = answer.outcome == "ok"
        row: BaselineRow = {
            "row": "baseline",
            "at_ns": time.monotonic_ns(),
            "traffic": request.step.traffic,
            "outcome": answer.outcome,
            "completion_tokens": answer.completion_tokens if right else None,
            "signs": answer.signs if right else [],
            "text_ratio": answer.text_ratio if right else None,
        }
        emit(row)
        failed = failed or not right
    return failed
