"""Rules for the answer to one request: the server's, and its own."""

from __future__ import annotations

from collections.abc import Callable

from loadchaos.core.outcome_rules import OutcomeRules
from loadchaos.core.slotted import slotted_dataclass
from loadchaos.load.wire.contract import AnswerContract


@slotted_dataclass(frozen=True)
class AnswerRules(OutcomeRules):
    """Rules of the server and of one request.

    Attributes:
        allow_empty: An answer without a token is correct.
        foreign_nonce: Finds a word of another request in the answer's text; None where there is none.
        contract: Rules that the answer's content must obey.
        answers: Choices that were requested; None: unknown.
        most_tokens: Tokens that each choice may have at most; None: unknown. Only read with a contract.
    """

    allow_empty: bool = False
    foreign_nonce: Callable[[str], str | None] | None = None
    contract: AnswerContract | None = None
    answers: int | None = None
    most_tokens: int | None = None

    @classmethod
    def of(cls, rules: OutcomeRules) -> AnswerRules:
        """Make the rules of a server's answers, whatever was asked for."""
        return cls(rules.validation, rules.shed, rules.engine_dead, rules.plain_validation, rules.sends_done)

    def for_request(
        self,
        foreign_nonce: Callable[[str], str | None],
        contract: AnswerContract | None,
        answers: int | None,
        most_tokens: int | None = None,
    ) -> AnswerRules:
        """Copy the rules with the checks of one request."""
        return AnswerRules(
            self.validation,
            self.shed,
            self.engine_dead,
            self.plain_validation,
            self.sends_done,
            self.allow_empty,
            foreign_nonce,
            contract,
            answers,
            most_tokens,
        )
