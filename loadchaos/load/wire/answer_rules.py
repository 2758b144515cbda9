"""Rules of the answer to one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from loadchaos.core.outcome_rules import OutcomeRules
from loadchaos.core.slotted import slotted_dataclass
from loadchaos.load.wire.contract import AnswerContract


@slotted_dataclass(frozen=True)
class AnswerRules:
    """Rules of a `server`'s answers, and of the answer to one request. `foreign_nonce` finds a word of another request in
    the answer's text. `answers` is the number of choices that were requested, `most_tokens` that of tokens that each may
    have (None: unknown).
    """

    server: OutcomeRules = field(default_factory=OutcomeRules)
    foreign_nonce: Callable[[str], str | None] | None = None
    contract: AnswerContract | None = None
    answers: int | None = None
    most_tokens: int | None = None
