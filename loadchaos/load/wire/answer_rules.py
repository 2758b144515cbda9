"""Rules of a server's answers, and of the answer to one request."""

from __future__ import annotations

from collections.abc import Callable

from loadchaos.core.outcome_rules import OutcomeRules
from loadchaos.core.slotted import slotted_dataclass
from loadchaos.load.wire.contract import AnswerContract


@slotted_dataclass(frozen=True)
class AnswerRules(OutcomeRules):
    """Rules of a server's answers, and of the answer to one request. `allow_empty`: an answer without a token is correct.
    `foreign_nonce` finds a word of another request in the answer's text. `answers` is the number of choices that were
    requested, `most_tokens` that of tokens that each may have (None: unknown; only read with a contract).
    """

    allow_empty: bool = False
    foreign_nonce: Callable[[str], str | None] | None = None
    contract: AnswerContract | None = None
    answers: int | None = None
    most_tokens: int | None = None

    @classmethod
    def of(
        cls,
        rules: OutcomeRules,
        foreign_nonce: Callable[[str], str | None] | None = None,
        contract: AnswerContract | None = None,
        answers: int | None = None,
        most_tokens: int | None = None,
    ) -> AnswerRules:
        """Add the checks of one request to a server's rules. By position: each request makes one (bench/cost, small)."""
        return cls(
            rules.validation,
            rules.shed,
            rules.engine_dead,
            rules.plain_validation,
            rules.sends_done,
            False,
            foreign_nonce,
            contract,
            answers,
            most_tokens,
        )
