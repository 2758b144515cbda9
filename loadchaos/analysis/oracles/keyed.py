"""Judge answers to questions with one right answer."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from math import comb
from typing import ClassVar, get_args

from loadchaos.analysis.detectors.base import Finding
from loadchaos.analysis.oracles.base import FEWEST_DOUBTFUL, MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.margin import answered
from loadchaos.analysis.verdict.model import CheckResult, NotJudged
from loadchaos.core.ledger.rows import LearnedRow, QuestionRow
from loadchaos.core.probe_names import ASKED_AGAIN, ASKED_ANEW, NEW_QUESTIONS, ProbeKind, is_exact, is_right
from loadchaos.core.stats import wilson

_MOST_WORDS = 20_000
_MOST_OPEN = 200
_DOUBTFUL_SHARE = 0.02
_FEWEST_FOREIGN = 2
_REFERENCE = 50
_CHANCE = 1e-4


@dataclass
class _Asked:
    """A question with a wrong answer, and the answers when it was asked again."""

    row: QuestionRow
    again: list[QuestionRow] = field(default_factory=list)
    anew: list[QuestionRow] = field(default_factory=list)


@dataclass
class _Kind:
    """Answers of one kind: idle, first ones under load, new ones after it."""

    learned: int = 0
    reference: int = 0
    reference_wrong: int = 0
    new: int = 0
    new_wrong: int = 0
    new_failed: int = 0

    def chance(self, wrong: int) -> float:
        """Probability of so many wrong new answers, if nothing changed."""
        idle = _tail(wrong, self.new, 0, self.learned)
        return min(idle, _tail(wrong, self.new, self.reference_wrong, self.learned + self.reference))

    @property
    def complete(self) -> bool:
        return self.new + self.new_failed == NEW_QUESTIONS

    @property
    def tells(self) -> bool:
        """True if a server that is always wrong would be found."""
        return self.complete and self.chance(self.new) < _CHANCE


def _tail(wrong: int, n: int, wrong_before: int, n_before: int) -> float:
    """Fisher's exact test: so many of all wrong answers are among the n."""
    total, all_wrong = n + n_before, wrong + wrong_before
    ways = sum(comb(n, k) * comb(n_before, all_wrong - k) for k in range(wrong, min(n, all_wrong) + 1))
    return ways / comb(total, all_wrong)


class KeyedOracle(Oracle):
    """Compares each answer with the one that is right.

    A wrong answer counts if the same question was answered right when it was asked again, and the right answer preferred
    its first differing token by more than numerics can bridge. One that stays wrong on the idle server counts if it is right
    each time it is computed without the prefix cache (`cache_salt`), or if new questions of its kind are wrong as well.
    """

    name: ClassVar[str] = "keyed"
    detects: ClassVar[str] = "a copied word, a key of a table, a needle or a sum that is wrong, or is another request's"
    false_alarms: ClassVar[str] = (
        "only kinds that the idle server answers right every time are asked, a wrong answer counts if it is right when "
        "asked again or without the prefix cache, or if so many questions of its kind are wrong as come by chance in 1 of "
        f"10,000 runs; {MARGIN_RULE}"
    )
    asked_by: ClassVar[str] = "probes"
    check: ClassVar[str] = "questions"
    expected: ClassVar[str] = "as right as when idle"
    compares: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, bool] = {}
        self._off: dict[str, str] = {}
        self._asked, self._right, self._failed = Counter[str](), Counter[str](), 0
        self._open: OrderedDict[int, _Asked] = OrderedDict()
        self._words: OrderedDict[str, int] = OrderedDict()
        self._kinds: dict[str, _Kind] = {}
        self._stayed: set[int] = set()

    def on_learned(self, row: LearnedRow) -> None:
        if row["kind"] not in get_args(ProbeKind):
            return
        if row.get("used"):
            self._exact[row["kind"]] = row["exact"]
            self._kinds[row["kind"]] = _Kind(learned=row["asked"])
        else:
            self._off[row["kind"]] = row["why"]

    def takes(self, row: QuestionRow) -> bool:
        return row.get("part") == self.asked_by

    def judge(self, row: QuestionRow) -> None:
        if row.get("when") == "idle":
            return
        if not answered(row):
            self._failed += 1
            if row["role"] == "new":
                self._judge_new(row, right=None)
            return
        asked = self._open.get(row["group"])
        right = (is_exact if self._exact.get(row["kind"]) else is_right)(row["expected"], row["text"])
        if row["role"] == "new":
            self._judge_new(row, right=right)
            return
        if row["role"] in ("again", "anew"):
            if asked is not None and row["role"] == "again":
                self._judge_again(asked, row, right=right)
            elif asked is not None and right:
                asked.anew.append(row)
            return
        self._asked[row["kind"]] += 1
        self._right[row["kind"]] += right
        if not right and (other := self._foreign(row)) is not None:
            self.report("answer_of_another_request", row, row["expected"], f"it has the words of question {other}")
        elif not right:
            self._open[row["group"]] = _Asked(row)
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        kind = self._kinds.setdefault(row["kind"], _Kind())
        if kind.reference < _REFERENCE:
            kind.reference += 1
            kind.reference_wrong += not right
        self._remember(row)

    def _judge_again(self, asked: _Asked, row: QuestionRow, *, right: bool) -> None:
        asked.again.append(row)
        if not right:
            if row["when"] == "after":
                self._stayed.add(row["group"])
                self._judge_kept(asked)
            return
        self._stayed.discard(row["group"])
        wrong = asked.row
        if row["when"] == "load" and sum(a["when"] == "load" for a in asked.again) < ASKED_AGAIN:
            return
        if any(a["text"] != row["text"] for a in asked.again if a["when"] == row["when"]):
            return
        del self._open[wrong["group"]]
        difference = self.margin.compare(row, wrong)
        if difference is None:
            return
        if difference.proved:
            about = f"right when asked again; {difference.describe()}"
            self.report("wrong_answer", wrong, wrong["expected"], about, again=row["text"])
        elif difference.gap is None:
            self.doubtful += 1
            if self.doubtful == max(FEWEST_DOUBTFUL, round(_DOUBTFUL_SHARE * self._asked.total())):
                about = f"{self.doubtful} questions were answered wrong once and right when asked again"
                self.report("wrong_answer", wrong, wrong["expected"], about, again=row["text"])

    def _judge_kept(self, asked: _Asked) -> None:
        wrong = [row for row in asked.again if row["when"] == "after"]
        if len(asked.anew) < ASKED_ANEW or len(wrong) <= ASKED_ANEW or len({row["text"] for row in wrong}) > 1:
            return
        difference = self.margin.compare(asked.anew[0], wrong[-1])
        if difference is None or not difference.proved:  # a near tie may flip with the shape of a prefix hit
            return
        del self._open[asked.row["group"]]
        self._stayed.discard(asked.row["group"])
        about = f"wrong {len(wrong)} times on the idle server, right {len(asked.anew)} times in between without the "
        about += f"prefix cache (cache_salt); {difference.describe()}"
        self.report("wrong_answer", asked.row, asked.row["expected"], about, again=wrong[-1]["text"])

    def _judge_new(self, row: QuestionRow, *, right: bool | None) -> None:
        """Judge new questions after the load; None: one without an answer."""
        kind = self._kinds.setdefault(row["kind"], _Kind())
        kind.new += right is not None
        kind.new_failed += right is None
        kind.new_wrong += right is False
        if not kind.complete:
            return
        n = self._asked[row["kind"]]
        wrong = n - self._right[row["kind"]]
        during = _tail(wrong, n, kind.new_wrong, kind.new + kind.learned)
        if min(kind.chance(kind.new_wrong), during) < _CHANCE:
            about = (
                f"the idle server answered 0 of {kind.learned} questions wrong before the load, and {kind.new_wrong} "
            )
            about += f"of {kind.new} after it; {wrong} of {n} were wrong under load"
            self.report("wrong_answer", row, row["expected"], about)

    def _remember(self, row: QuestionRow) -> None:
        for word in row["expected"].split():
            self._words[word] = row["n"]
        while len(self._words) > _MOST_WORDS:
            self._words.popitem(last=False)

    def _foreign(self, row: QuestionRow) -> int | None:
        """Number of the question whose words an answer holds; None: none. A model that makes up words may meet one by
        chance, so at least two are needed, or the whole answer.
        """
        own = set(row["prompt"].split()) | set(row["expected"].split())
        said = row["text"].split()
        others = [self._words[w] for w in said if w in self._words and w not in own]
        if not others or (len(others) < _FEWEST_FOREIGN and len(said) > 1):
            return None
        return Counter(others).most_common(1)[0][0]

    def conclude(self) -> list[Finding]:
        if not (self._exact or self._off):
            return []
        found: list[Finding] = []
        parts = [self._accuracy(kind) for kind in self._exact]
        actual = "; ".join(parts) or self._why_off()
        if self.doubtful:
            actual += f"; {self.doubtful} wrong answers without logprobs, numerics or corruption"
        if self._stayed:
            new, wrong = sum(k.new for k in self._kinds.values()), sum(k.new_wrong for k in self._kinds.values())
            found.append(
                f"Questions: {len(self._stayed)} answers stayed wrong on the idle server after the load; {new - wrong} of "
                f"{new} new questions of the same kinds were right. The model may have answered them wrong by itself."
            )
        if self._failed:
            actual += f"; {self._failed} without an answer"
        unsettled = self._unsettled()
        if unsettled:
            actual += f"; {unsettled}"
        if not self._asked:
            return [*found, NotJudged(self.check, self.expected, f"nothing was judged: {actual}")]
        blind = self.doubtful or unsettled
        return [*found, CheckResult(self.check, self.expected, actual, "unknown" if blind else "pass")]

    def _why_off(self) -> str:
        kinds = list(self._off)
        return f"the idle server answered no kind right every time ({', '.join(kinds)}): {self._off[kinds[0]]}"

    def _unsettled(self) -> str:
        left = Counter(
            asked.row["kind"]
            for asked in self._open.values()
            if not any(row["when"] == "after" for row in asked.again) or asked.row["group"] in self._stayed
        )
        told = []
        for name, n in left.items():
            kind = self._kinds[name]
            if not kind.tells:
                about = f"{kind.new} of {NEW_QUESTIONS} new questions were answered after the load"
                told.append(f"{name}: unknown if {n} wrong are the model's own mistakes, as {about}")
        return "; ".join(told)

    def _accuracy(self, kind: str) -> str:
        n, right = self._asked[kind], self._right[kind]
        if not n:
            return f"{kind} not asked"
        low, high = wilson(right, n)
        return f"{kind} {right} of {n} right ({low:.1%} to {high:.1%})"
