"""Decide the outcome of an exchange: its end, head, body. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loadchaos.core.ledger.rows import WrongPart
from loadchaos.core.outcome_rules import End, OutcomeEvent, OutcomeRules, end_event, error_response_event
from loadchaos.load.wire import answer_checks
from loadchaos.load.wire.completion import Completion, final_event

KEPT_ERROR_BYTES = 64 * 1024
"""Bytes of an error response that are read."""


class ExchangeEnd(NamedTuple):
    """End of an exchange, and what an incomplete one says of itself. `at_ns`: time of the last byte, monotonic ns."""

    end: End
    why: str
    at_ns: int


class ResponseHead(NamedTuple):
    """Status line and headers of an answer. `headers`: values by lower-case name; `retry-after` has a meaning here."""

    status: int
    reason: str
    headers: Mapping[str, str]


def decide(
    ended: ExchangeEnd, head: ResponseHead | None, answer: Completion | None, error_body: bytes, rules: OutcomeRules
) -> tuple[list[OutcomeEvent], Sequence[WrongPart]]:
    """Decide an outcome: the first event has it.

    Returns the decisive events in byte order, and the wrong parts of a complete answer. Closes the reader.

    Args:
        ended: How the exchange ended.
        head: None without one.
        answer: Reader of the body of a 2xx answer; None for any other.
        error_body: Body of an answer that is not 2xx.
        rules: The server's error texts.
    """
    ending = [] if ended.end == "complete" else [end_event(ended.end, ended.why)]
    if head is None:
        return ending or [OutcomeEvent("protocol_error", "the exchange ended without a response head")], ()
    if answer is None:
        return [error_response_event(*head, error_body, rules), *ending], ()
    answer.close(ended.at_ns, complete=ended.end == "complete")
    if not ending and not answer.done_seen:
        ending = [final_event(answer)]
    events = [*answer.outcome_events, *ending]
    wrong = answer_checks.wrong_parts(answer) if events[0].outcome == "ok" else ()
    if wrong:
        return [OutcomeEvent("wrong_output", wrong[0]["text"])], wrong
    return events, answer_checks.part_of_event(events[0])
