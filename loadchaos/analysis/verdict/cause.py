"""Cause of a failure: who caused it, and the reason that shows it.

A server is named only with a reason: a line of its log, its own words, a contradiction in its answer. What only our side
of the connection shows has no known cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from loadchaos.analysis.incidents.record import IncidentRecord
    from loadchaos.analysis.verdict.model import Evidence, FailureResult

Who = Literal["server", "start", "load", "request", "policy", "gateway", "outside", "attack", "unknown"]
"""`start`: the server's command, files or environment; `request`: our request; `policy`: a filter, a quota or a budget that
somebody set; `outside`: the machine, its limits, or a signal of somebody else; `attack`: ours."""

_ATTACKS = {"self-inflicted": "a side effect", "injected": "it injected this", "expected": "an expected effect"}
_LAYERS: dict[str, Who] = {"OS": "outside", "host": "outside", "network": "outside", "gateway": "gateway"}
_POLICY = re.compile(
    r"content.{0,30}(?:filter|policy|policies)|guardrail|moderation|blocked by|insufficient_quota|quota|credits?\b|billing|"
    r"balance|budget|payment|not allowed to (?:use|access)|safety",
    re.IGNORECASE,
)
_REFUSED = frozenset({"unexpected_rejection"})
_CLIENT_ERROR = re.compile(r"^Unexplained HTTP error: 4\d\d\b")
_STOPPED = re.compile(r"\(pid \d+\) is stopped")
_UNNAMED = re.compile(r"unexplained|^alive_but_hung$|^server_unreachable$")
"""Ids of failures that only our side of the connection shows."""


@dataclass(frozen=True)
class FailureCause:
    """Cause of a failure, and what shows it."""

    who: Who
    why: str


def cause_of(failure: FailureResult | IncidentRecord) -> FailureCause:
    shown, attribution = failure.evidence, failure.attribution
    words = f"{failure.title}\n{shown.text or ''}"
    if attribution in _ATTACKS:
        return FailureCause("attack", _ATTACKS[attribution])
    if attribution == "load":
        return FailureCause("load", "it works, and answers in order")
    if any(_STOPPED.search(sign) for sign in failure.signs):
        return FailureCause("outside", next(sign for sign in failure.signs if _STOPPED.search(sign)))
    if failure.severity == "startup":
        return FailureCause("start", "it ended before it was ready")
    if failure.id == "answers_filtered":
        return FailureCause("policy", "the finish_reason of the answers")
    if failure.id == "unusual_finish_reason":
        return FailureCause("unknown", "the finish_reason does not tell who ended the answers")
    if failure.id == "tool_call_invalid":
        return FailureCause("unknown", "the model writes calls, and the tool parser reads them")
    if failure.id in _REFUSED or _CLIENT_ERROR.match(failure.title):
        if _POLICY.search(words):
            return FailureCause("policy", "the words of the refusal")
        return FailureCause("request", "it was refused with a status of the 400s, in the words above")
    if _UNNAMED.search(failure.id):
        return FailureCause("unknown", "no log and no answer names it")
    if failure.layer in _LAYERS:
        return FailureCause(_LAYERS[failure.layer], _shown_by(shown))
    if shown.source is None:
        return FailureCause("unknown", "nothing shows it")
    return FailureCause("server", _shown_by(shown))


def _shown_by(shown: Evidence) -> str:
    if shown.source == "client":
        return "shown by its answer"
    return f"shown by {shown.source}" if shown.line is None else f"shown by line {shown.line} of {shown.source}"
