"""What the canary's answers say: which are tolerated is learned from its own, and what no answer may hold is known.

Answers of the idle server and the first ones under load fix what is tolerated: numerics depend on the batch, so that
even greedy answers of a right server may part at some point. Up to the first point where any two of them differ an
answer has to be the same to the letter, and behind it anything goes; where they part at once nothing is held exactly.

A single one of the first under load that parts from all others may be such numerics, or the very corruption that is looked
for: it is not learned from, and neither it nor what parts later as it did lets the canary pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.incidents.bad_answers import MIXED_UP
from loadchaos.analysis.mechanisms import Check
from loadchaos.core.model import Row

FIRST_UNDER_LOAD = 3
_FEWEST_IDLE = 2
_FEWEST_CHARS = 8
_MOST_WORDS = 1_000
_SHOWN_CHARS = 120


@dataclass(frozen=True)
class Tolerated:
    """What an answer must begin with; `whole`: it must be that and nothing more, for all that were learned were equal."""

    text: str
    whole: bool

    def admits(self, answer: str) -> bool:
        """Whether an answer is one of the tolerated ones."""
        return answer == self.text if self.whole else answer.startswith(self.text)


def learned(answers: Sequence[str]) -> Tolerated | None:
    """The tolerated set as what all learned answers have in common; None where that is too little to hold anybody to."""
    if len(answers) < _FEWEST_IDLE:
        return None
    first, last = min(answers), max(answers)  # what these two share, all that lie between them share
    common = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    whole = all(answer == common for answer in answers)
    return Tolerated(common, whole) if len(common) >= _FEWEST_CHARS else None


def alone(idle: Sequence[str], loaded: Sequence[str]) -> str | None:
    """The one answer of the first under load that parts from all others, which agree; None if there is none."""
    odd = [answer for answer in loaded if answer != idle[0]] if idle else []
    agree = len(idle) >= _FEWEST_IDLE and len(loaded) == FIRST_UNDER_LOAD and len(set(idle)) == 1
    return odd[0] if agree and len(odd) == 1 else None


def foreign(answer: str, own: str, words: Sequence[str]) -> str | None:
    """Another canary's word in an answer, None if there is none."""
    return next((word for word in words if word != own and word in answer), None)


class CanaryDetector:
    """Folds `canary` rows; `found` gives each wrong answer once."""

    def __init__(self) -> None:
        self._idle: list[str] = []
        self._loaded: list[str] = []  # the first under load
        self._echoes: list[bool] = []  # whether idle echoes held their own word
        self._doubtful = 0
        self._words: list[str] = []
        self._asked = self._wrong = self._failed = 0
        self._pending: list[Failure] = []

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        if row.get("row") != "canary":
            return
        word = str(row.get("word") or "")
        if row.get("what") == "ask":
            self._words += [word] if word else []
            del self._words[:-_MOST_WORDS]
            return
        if row.get("status") != 200 or row.get("error"):
            self._failed += 1
            return
        self._answered(row, str(row.get("text") or ""), word)

    def _answered(self, row: Row, text: str, word: str) -> None:
        idle = row.get("when") == "idle"
        self._asked += not idle
        other = foreign(text, word, self._words)
        if other is not None:
            words = f"the canary's answer holds {other}, the word of another request: {_shown(text)}"
            self._tell(row, "answer_of_another_request", MIXED_UP, words)
        elif word:
            self._echo(row, text, word, idle=idle)
        elif idle:
            self._idle.append(text)
        elif len(self._loaded) < FIRST_UNDER_LOAD:
            self._loaded.append(text)
            self._doubtful += alone(self._idle, self._loaded) is not None
        else:
            self._held_to(row, text)

    def _held_to(self, row: Row, text: str) -> None:
        tolerated = learned([*self._idle, *self._loaded])
        if alone(self._idle, self._loaded) is not None and (tolerated is None or tolerated.admits(text)):
            self._doubtful += text != self._idle[0]
        elif tolerated is not None and not tolerated.admits(text):
            n = len(self._idle) + len(self._loaded)
            self._changed(row, f"{n} answers began with {_shown(tolerated.text)}, this one is {_shown(text)}")

    def _echo(self, row: Row, text: str, word: str, *, idle: bool) -> None:
        if idle:
            self._echoes.append(word in text)
        elif len(self._echoes) >= _FEWEST_IDLE and all(self._echoes) and word not in text:
            self._changed(row, f"asked to repeat {word}, it said {_shown(text)}")

    def _changed(self, row: Row, words: str) -> None:
        self._tell(row, "canary_changed", "A small prompt is answered otherwise under load than before", words)

    def _tell(self, row: Row, name: str, title: str, words: str) -> None:
        self._wrong += 1
        remedy = (
            "all answers are in events.jsonl (rows canary); look at preemptions, prefix cache and aborts of that time"
        )
        self._pending.append(
            Failure(
                name,
                "request",
                title,
                evidence("canary", words),
                int(row["at_ns"]),
                remedy=remedy,
                outcome="wrong_output",
            )
        )

    def found(self) -> list[Failure]:
        """Wrong answers since the last call."""
        pending, self._pending = self._pending, []
        return pending

    def check(self) -> Check | None:
        """For verdict.json: how many answers were held against what; None where no canary was asked."""
        if not (self._idle or self._loaded or self._echoes or self._asked or self._failed):
            return None
        odd = alone(self._idle, self._loaded)
        tolerated = learned(self._idle if odd is not None else [*self._idle, *self._loaded])
        exact = "nothing" if tolerated is None else "the whole answer" if tolerated.whole else "the first part"
        held = f"{exact} exactly, {'and' if self._held_to_echo() else 'not'} its own word"
        actual = f"{self._asked} under load, {self._wrong} wrong; held to {held}"
        if odd is not None:
            actual += f"; {self._doubtful} part from all others ({_shown(odd)} came among the first {FIRST_UNDER_LOAD})"
            actual += ": numerics or corruption"
        blind = not self._asked or odd is not None or (tolerated is None and not self._held_to_echo())
        # A wrong answer is a failure by itself, which a profile may accept.
        return Check("canary", "answers as learned", actual, "unknown" if blind else "pass")

    def _held_to_echo(self) -> bool:
        return len(self._echoes) >= _FEWEST_IDLE and all(self._echoes)


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARS])
