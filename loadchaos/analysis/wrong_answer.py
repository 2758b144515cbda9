"""Wrong answer: an answer or probe with wrong content, and its proof.

Checks on every answer (load/wire/decision.py), detectors and oracles make them. `wrong_failure` turns one into the
failure that the verdict counts in `wrong_answers`. docs/correctness.md describes it for writers of oracles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadchaos.analysis.failure import Failure, evidence, of_signature
from loadchaos.analysis.verdict.model import TextDifference, WrongAnswerExample

OUTCOME = "wrong_output"
"""Outcome of a failure that counts as a wrong answer."""
MOST_EXAMPLES = 10
"""Wrong answers that a failure keeps whole; all are counted."""
EXCERPT_CHARS = 400
_BEFORE_CHARS = 40
_DIFFERENCE_CHARS = 32


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """One wrong answer.

    Texts come from the ledger, whose writers have redacted them. Long ones are cut when the object becomes JSON.

    Attributes:
        id: id of the failure, such as `schema_violated`; it has an entry in signatures/figures.toml.
        subject: id of the request, or of the probe.
        at_ns: when the answer was complete.
        found_by: name of the check or oracle.
        summary: a sentence that says what is wrong, with its figures.
        expected: the right answer; "": there is none to compare with.
        got: the answer, or the part of it that is wrong.
        prompt: the prompt, as far as the ledger has it.
        traffic: name of the traffic; "" for a probe.
        facts: further evidence by name: the other request, the margin, counters that moved, what ran beside it.
    """

    id: str
    subject: str
    at_ns: int
    found_by: str
    summary: str
    expected: str = ""
    got: str = ""
    prompt: str = ""
    traffic: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_difference(self) -> int | None:
        if not (self.expected and self.got) or self.expected == self.got:
            return None
        pairs = enumerate(zip(self.expected, self.got, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(self.expected), len(self.got)))

    def _difference(self, at: int | None) -> TextDifference | None:
        if at is None:
            return None
        until = at + _DIFFERENCE_CHARS
        return TextDifference(expected=self.expected[at:until], got=self.got[at:until])

    def example(self) -> WrongAnswerExample:
        at = self.first_difference
        return WrongAnswerExample(
            subject=self.subject,
            found_by=self.found_by,
            traffic=self.traffic,
            summary=self.summary[:EXCERPT_CHARS],
            prompt=excerpt(self.prompt),
            expected=excerpt(self.expected, at),
            got=excerpt(self.got, at),
            first_difference=at,
            difference=self._difference(at),
            facts=dict(self.facts),
        )


def excerpt(text: str, around: int | None = None) -> str:
    """Cut a text to `EXCERPT_CHARS`, so that the character `around` is in it."""
    begin = max(0, (around or 0) - _BEFORE_CHARS) if len(text) > EXCERPT_CHARS else 0
    cut = text[begin : begin + EXCERPT_CHARS]
    return ("…" if begin else "") + cut + ("…" if begin + EXCERPT_CHARS < len(text) else "")


def wrong_failure(wrong: WrongAnswer) -> Failure:
    """Make the failure of one wrong answer, for `poll` of a detector. Title and remedy are those of its id."""
    text = f"{wrong.subject}: {wrong.summary}" if wrong.subject else wrong.summary
    return of_signature(wrong.id, evidence(wrong.found_by, text), wrong.at_ns, outcome=OUTCOME, wrong=(wrong,))
