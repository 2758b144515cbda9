"""Conclude an answer: what decides its outcome, by the rules of its server.

The load and the questions outside it (run/asker.py) use the same rules. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.core.ledger.rows import WrongPart
from loadchaos.load.wire import answer_checks
from loadchaos.load.wire.completion import Completion, final_event
from loadchaos.load.wire.outcome import OutcomeEvent, OutcomeRules
from loadchaos.server.dialects import Dialect


def outcome_rules(dialect: Dialect) -> OutcomeRules:
    """Convert a dialect's error texts to outcome rules."""
    return OutcomeRules(
        validation=dialect.validation,
        shed=dialect.shed,
        engine_dead=dialect.engine_failure,
        plain_validation=dialect.refusal_statuses,
        sends_done=dialect.sends_done,
    )


def conclude(
    answer: Completion, at_ns: int, ending: Sequence[OutcomeEvent]
) -> tuple[list[OutcomeEvent], Sequence[WrongPart]]:
    """Close the body of a 2xx answer.

    Args:
        answer: The answer; it is closed here.
        at_ns: When its last byte came.
        ending: Event of an exchange that ended without a complete body; empty: it is complete.

    Returns:
        Outcome events in byte order, of which the first decides, and the wrong parts that made a good answer wrong.
    """
    answer.close(at_ns, complete=not ending)
    events = [*answer.outcome_events, *ending]
    if not ending and not answer.done_seen:
        events.append(final_event(answer))
    wrong = answer_checks.wrong_parts(answer) if events[0].outcome == "ok" else ()
    if wrong:
        return [OutcomeEvent("wrong_output", wrong[0]["text"])], wrong
    return events, answer_checks.part_of_event(events[0])
