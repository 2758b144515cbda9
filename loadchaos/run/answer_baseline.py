"""Send some requests of the profile to the idle server and record answers.

Signs and text ratios of these answers are the reference for those under load (analysis/detectors/answer_signs.py). A short
load has too few answers to judge by, and gets none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import httpx

from loadchaos.core.ledger.rows import BaselineRow, Emit
from loadchaos.core.model import Facts, Request, Step
from loadchaos.load import payloads
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.wire import answer_checks
from loadchaos.load.wire.answer_rules import AnswerRules
from loadchaos.load.wire.completion import Completion, final_event
from loadchaos.profile.profile import Profile
from loadchaos.profile.steps import of_phase
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_LEAST_LOAD_S = 60.0
_LIMIT_S = 20.0
_EACH = 6
_MOST_STEPS = 400
_MOST = 24
_PAYLOADS = frozenset({"text", "conversation", "images", "sampling", "structured", "tools"})
_OTHER_SEED = 0x5EED
_REQUEST_S = 15.0


def is_wanted(profile: Profile) -> bool:
    """Tell whether the load is long enough, and may not kill the idle server."""
    lengths = [phase.timed_s for phase in profile.load if phase.replay is None]
    return sum(lengths) >= _LEAST_LOAD_S and not profile.can_kill


def requests(profile: Profile, facts: Facts, seed: int) -> Iterator[Request]:
    """Build up to six requests of each traffic that a plain client sends."""
    sent: dict[str, int] = {}
    number = next(n for n, phase in enumerate(profile.load) if phase.replay is None)
    for step in islice(of_phase(profile, seed ^ _OTHER_SEED, number), _MOST_STEPS):
        plain = "ok" in step.expect and step.behaviour == "plain" and set(step.payload) <= _PAYLOADS
        plain = plain and ENDPOINTS[step.endpoint].generates
        if plain and sent.get(step.traffic, 0) < _EACH and sum(sent.values()) < _MOST:
            sent[step.traffic] = sent.get(step.traffic, 0) + 1
            yield payloads.build(step, facts)


async def learn(http: httpx.AsyncClient, url: str, profile: Profile, facts: Facts, emit: Emit, *, seed: int) -> bool:
    """Ask the idle server, one request after the other, for 20 s at most.

    Returns True where a request failed: the server may have died of it.
    """
    dialect = DIALECTS.get(facts.dialect, UNKNOWN).at(facts.version)
    until_s, failed = time.monotonic() + _LIMIT_S, False
    for request in requests(profile, facts, seed):
        if time.monotonic() > until_s:
            break
        rules = AnswerRules(sends_done=dialect.sends_done, answers=request.answers)
        row = await _ask(http, url, request, request.step, rules)
        emit(row)
        if row["outcome"] != "ok":
            failed = True
    return failed


async def _ask(http: httpx.AsyncClient, url: str, request: Request, step: Step, rules: AnswerRules) -> BaselineRow:
    endpoint = ENDPOINTS[request.endpoint]
    answer: Completion | None = None
    outcome = "http_error"
    headers = {**endpoint.headers, "content-type": endpoint.content_type}
    try:
        async with http.stream(
            "POST", url + request.path, content=request.body, headers=headers, timeout=_REQUEST_S
        ) as response:
            if response.status_code == 200:
                declared = response.headers.get("content-type", "").startswith("text/event-stream")
                answer = endpoint.answer(rules, asked_stream=request.stream, declared_stream=declared)
                async for piece in response.aiter_bytes():
                    answer.feed(time.monotonic_ns(), piece)
                answer.close(time.monotonic_ns(), complete=True)
                events = answer.outcome_events or [final_event(answer)]
                outcome = events[0].outcome
    except httpx.HTTPError as e:
        outcome = type(e).__name__
    right = answer if outcome == "ok" else None
    return {
        "row": "baseline",
        "at_ns": time.monotonic_ns(),
        "traffic": step.traffic,
        "outcome": outcome,
        "completion_tokens": right.completion_tokens if right is not None else None,
        "signs": answer_checks.signs(right, right.text) if right is not None else [],
        "text_ratio": answer_checks.text_ratio(right.text) if right is not None else None,
    }
