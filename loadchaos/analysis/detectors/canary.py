"""Judge canary answers by what was learned from idle ones.

Answers of the idle server and the first ones under load fix what is tolerated: numerics depend on the batch, so that
even greedy answers of a correct server may diverge at some point. Up to the first point where any two of them differ an
answer has to be identical, and behind it anything is allowed. Where they differ at once nothing is compared exactly.

One of the first answers under load that differs from all others may be such numerics, or the very corruption that is looked
for: it is not learned from, and neither it nor a later one that differs as it did lets the canary pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.incidents.bad_answers import MIXED_UP
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.analysis.wrong_answer import OUTCOME, WrongAnswer
from loadchaos.core.ledger.rows import CanaryRow

FIRST_UNDER_LOAD = 3
_FEWEST_IDLE = 2
_FEWEST_CHARS = 8
_MOST_WORDS = 1_000
_SHOWN_CHARS = 120


@dataclass(frozen=True)
class Tolerated:
    """The text an answer must begin with. `whole`: it must be equal, because all learned answers were."""

    text: str
    whole: bool

    def admits(self, answer: str) -> bool:
        return answer == self.text if self.whole else answer.startswith(self.text)


def learn(answers: Sequence[str]) -> Tolerated | None:
    """The common prefix of all learned answers. None where that is too short to compare with."""
    if len(answers) < _FEWEST_IDLE:
        return None
    first, last = min(answers), max(answers)  # what these two share, all that lie between them share
    common = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    whole = all(answer == common for answer in answers)
    return Tolerated(common, whole) if len(common) >= _FEWEST_CHARS else None


def outlier(idle: Sequence[str], loaded: Sequence[str]) -> str | None:
    """The only deviating answer of the first under load; None without one."""
    odd = [answer for answer in loaded if answer != idle[0]] if idle else []
    agree = len(idle) >= _FEWEST_IDLE and len(loaded) == FIRST_UNDER_LOAD and len(set(idle)) == 1
    return odd[0] if agree and len(odd) == 1 else None


def foreign_word(answer: str, own: str, words: Sequence[str]) -> str | None:
    """Another canary's secret word in an answer, None if there is none."""
    return next((word for word in words if word != own and word in answer), None)


class CanaryDetector(Detector):
    """Folds `canary` rows. Reports each wrong answer, and what the answers were compared with as a check."""

    def __init__(self) -> None:
        super().__init__()
        self._idle: list[str] = []
        self._first_loaded: list[str] = []
        self._idle_echoes: list[bool] = []  # True for an idle echo that held its own word
        self._doubtful = 0
        self._words: list[str] = []
        self._answers = self._wrong = self._failed = 0

    def on_canary(self, row: CanaryRow) -> None:
        word = str(row.get("word") or "")
        if row.get("what") == "ask":
            self._words += [word] if word else []
            del self._words[:-_MOST_WORDS]
        elif row.get("status") != 200 or row.get("error"):
            self._failed += 1
        else:
            self._judge(row, str(row.get("text") or ""), word)

    def _judge(self, row: CanaryRow, text: str, word: str) -> None:
        idle = row.get("when") == "idle"
        self._answers += not idle
        other = foreign_word(text, word, self._words)
        if other is not None:
            shown = f"the canary answer contains {other}, the word of another request: {_shown(text)}"
            self._report(row, "answer_of_another_request", MIXED_UP, shown)
        elif word:
            self._judge_echo(row, text, word, idle=idle)
        elif idle:
            self._idle.append(text)
        elif len(self._first_loaded) < FIRST_UNDER_LOAD:
            self._first_loaded.append(text)
            self._doubtful += outlier(self._idle, self._first_loaded) is not None
        else:
            self._compare(row, text)

    def _compare(self, row: CanaryRow, text: str) -> None:
        tolerated = learn([*self._idle, *self._first_loaded])
        if outlier(self._idle, self._first_loaded) is not None and (tolerated is None or tolerated.admits(text)):
            self._doubtful += text != self._idle[0]
        elif tolerated is not None and not tolerated.admits(text):
            n = len(self._idle) + len(self._first_loaded)
            self._changed(row, f"{n} earlier answers began with {_shown(tolerated.text)}, this one is {_shown(text)}")

    def _judge_echo(self, row: CanaryRow, text: str, word: str, *, idle: bool) -> None:
        if idle:
            self._idle_echoes.append(word in text)
        elif self._echo_is_reliable() and word not in text:
            self._changed(row, f"asked to repeat {word}, the server answered {_shown(text)}")

    def _changed(self, row: CanaryRow, text: str) -> None:
        self._report(row, "canary_changed", "The answer to a canary prompt changed under load", text)

    def _report(self, row: CanaryRow, name: str, title: str, text: str) -> None:
        self._wrong += 1
        remedy = (
            "All answers are in events.jsonl (rows canary). Check preemptions, prefix cache and aborts at that time."
        )
        shown, at_ns = evidence("canary", text), int(row["at_ns"])
        wrong = WrongAnswer(name, f"canary {row.get('n')}", at_ns, "canary", text, got=str(row.get("text") or ""))
        self._pending.append(
            Failure(name, "request", title, shown, at_ns, remedy=remedy, outcome=OUTCOME, wrong=(wrong,))
        )

    def finish(self) -> list[Finding]:
        if not (self._idle or self._first_loaded or self._idle_echoes or self._answers or self._failed):
            return []
        odd = outlier(self._idle, self._first_loaded)
        tolerated = learn(self._idle if odd is not None else [*self._idle, *self._first_loaded])
        compared = [] if tolerated is None else ["whole answer" if tolerated.whole else "first part of the answer"]
        compared += ["own word"] if self._echo_is_reliable() else []
        answers = "1 answer" if self._answers == 1 else f"{self._answers} answers"
        actual = f"{answers} under load, {self._wrong} wrong (compared: {', '.join(compared) or 'nothing'})"
        if odd is not None:
            actual += f"; {self._doubtful} differ from all others, numerics or corruption"
            actual += f" ({_shown(odd)} was among the first {FIRST_UNDER_LOAD})"
        blind = not self._answers or odd is not None or not compared
        # A wrong answer is a failure by itself, which a profile may accept.
        return [CheckResult("canary", "answers as when idle", actual, "unknown" if blind else "pass")]

    def _echo_is_reliable(self) -> bool:
        return len(self._idle_echoes) >= _FEWEST_IDLE and all(self._idle_echoes)


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARS])
