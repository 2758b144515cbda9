"""Detect answers that degenerate under load: their signs and text ratio.

A model may repeat itself or write broken characters by itself, above all with random weights. So nothing is judged by one
answer. The share of answers with a sign is compared with that of idle answers (rows `baseline`), and with that of the first
hundred answers of the same traffic.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.verdict.model import NotJudged
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import BaselineRow, EndRow
from loadchaos.core.stats import wilson

REFERENCE = 100
"""Answers at the start of the load that belong to the reference of a traffic."""
WINDOW = 50
_FEWEST = 5
_FEWEST_IDLE = 6
_MOST_REPORTED = 1_000
_Z_OF_REFERENCE, _Z = 3.1, 3.7
"""Standard errors: 1 in 1,000 and 1 in 10,000."""
_LOWER, _HIGHER = 0.6, 1.35
"""A text ratio below or above these multiples of all reference answers is unusual."""
_RATIO = "text_ratio"
_WORD = "one_word"
_TOLD_SHARE = 0.05
"""A sign of fewer answers is not told."""
_UNPROVED_SHARES = {_WORD: 0.2, "exclamation_run": _TOLD_SHARE, "token_pairs": _TOLD_SHARE}
"""With so many answers that have the sign, idle as under load, a degenerate text is not told from a right one."""
_UNPROVED_ALONE = {**_UNPROVED_SHARES, _WORD: _TOLD_SHARE, "repeated_token": 0.2, "replacement_character": 0.2}
"""The same where no answer of the idle server says how this model writes."""
_IGNORES_EOS = "ignores_eos"
"""Not a sign of the text: its request had `ignore_eos`. After the end of its text any model may repeat itself."""
_STRUCTURE = "chunk_id_changes"
"""A sign of the protocol and not of the text: where the reference has none, one is enough."""
IDS = {
    "replacement_character": "replacement_characters",
    "repeated_token": "degenerate_text",
    "exclamation_run": "degenerate_text",
    "no_text": "degenerate_text",
    _WORD: "degenerate_text",
    "token_pairs": "tokens_doubled",
    _RATIO: "degenerate_text",
    "logprob_count": "logprobs_missing",
    _STRUCTURE: "chunk_of_another_answer",
}
"""Failure of each sign."""
_WORDS = {
    "replacement_character": "hold U+FFFD, a character that could not be decoded",
    "repeated_token": "repeat one token 24 times or more",
    "exclamation_run": "hold a run of exclamation marks",
    "no_text": "have no text, though their tokens are counted",
    _WORD: "are one word or character again and again",
    "token_pairs": "have each piece of their text twice",
    _RATIO: "compress far better or worse than before",
    "logprob_count": "have more or fewer log probabilities than tokens",
    _STRUCTURE: "hold chunks with another id",
}


@dataclass
class _Share:
    idle: int = 0
    reference: int = 0
    later: int = 0
    past_end: int = 0
    window: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    suspects: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    abnormal: str = ""
    reported: int = 0


@dataclass
class _Traffic:
    """Answers of one traffic; `ratios` are those of its reference."""

    idle: int = 0
    answers: int = 0
    low: float = 1.0
    high: float = 0.0
    shares: defaultdict[str, _Share] = field(default_factory=lambda: defaultdict(_Share))

    @property
    def learned(self) -> int:
        return self.idle + min(self.answers, REFERENCE)


class AnswerSigns(Detector):
    """Folds `baseline` and ok `end` rows by traffic."""

    def __init__(self) -> None:
        super().__init__()
        self._traffics: defaultdict[str, _Traffic] = defaultdict(_Traffic)

    def on_baseline(self, row: BaselineRow) -> None:
        if row.get("outcome") != "ok":
            return
        traffic = self._traffics[str(row["traffic"])]
        traffic.idle += 1
        self._learn_ratio(traffic, row.get("text_ratio"))
        for sign in {*(row.get("signs") or ())} - {_IGNORES_EOS}:
            traffic.shares[sign].idle += 1

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") != "ok" or row.get("folded"):
            return
        name = str(row.get("traffic", ""))
        traffic = self._traffics[name]
        traffic.answers += 1
        signs, ratio = set(row.get("signs") or ()), row.get("text_ratio")
        if traffic.answers <= REFERENCE:
            self._learn_ratio(traffic, ratio)
        elif ratio is not None and traffic.high and not traffic.low * _LOWER <= ratio <= traffic.high * _HIGHER:
            signs.add(_RATIO)
        past_end = _IGNORES_EOS in signs
        signs.discard(_IGNORES_EOS)
        for sign in signs | traffic.shares.keys() if signs or traffic.shares else ():
            traffic.shares[sign].past_end += past_end and sign in signs
            self._count(name, traffic, sign, row, there=sign in signs)

    @staticmethod
    def _learn_ratio(traffic: _Traffic, ratio: float | None) -> None:
        if ratio is not None:
            traffic.low, traffic.high = min(traffic.low, ratio), max(traffic.high, ratio)

    def _count(self, name: str, traffic: _Traffic, sign: str, row: EndRow, *, there: bool) -> None:
        share = traffic.shares[sign]
        share.window.append(there)
        if there:
            share.suspects.append((str(row.get("id")), int(row["at_ns"])))
        if traffic.answers <= REFERENCE:
            share.reference += there
        else:
            share.later += there
        if there and not share.abnormal:
            share.abnormal = self._judge(traffic, sign, share)
        if share.abnormal and there:
            self._report(name, sign, share)

    @staticmethod
    def _judge(traffic: _Traffic, sign: str, share: _Share) -> str:
        known, learned = share.idle + share.reference, traffic.learned
        if sign == _STRUCTURE and traffic.answers > REFERENCE and not known:
            return f"none of {learned} answers before"
        if sum(share.window) < _FEWEST:
            return ""
        if traffic.answers > REFERENCE + _FEWEST:
            n = min(len(share.window), traffic.answers - REFERENCE)
            found = sum(list(share.window)[-n:])
            if _above(found, n, known, learned):
                return f"{found} of the last {n} answers, {known} of {learned} before"
        if traffic.idle >= _FEWEST_IDLE and sign != _RATIO:
            recent = sum(share.window), len(share.window)
            for found, n in ((share.reference + share.later, traffic.answers), recent):
                if _above(found, n, share.idle, traffic.idle):
                    return f"{found} of {n} answers under load, {share.idle} of {traffic.idle} on the idle server"
        return ""

    def _report(self, name: str, sign: str, share: _Share) -> None:
        suspects = list(share.suspects)
        share.suspects.clear()
        for subject, at_ns in suspects[: max(0, _MOST_REPORTED - share.reported)]:
            share.reported += 1
            summary = f"answers {_WORDS.get(sign, sign)}: {share.abnormal}"
            facts = {"sign": sign, "share": share.abnormal}
            wrong = WrongAnswer(IDS[sign], subject, at_ns, "answer signs", summary, traffic=name, facts=facts)
            self._pending.append(wrong_failure(wrong))

    def finish(self) -> list[Finding]:
        notes, unproved = [], []
        for name, traffic in sorted(self._traffics.items()):
            for sign, share in sorted(traffic.shares.items()):
                own = share.reference + share.later - share.past_end
                strict = not traffic.idle and own >= _UNPROVED_ALONE.get(sign, 2) * traffic.answers
                n, whole = share.idle + share.reference + share.later, traffic.idle + traffic.answers
                when = "idle as under load" if traffic.idle else "and no answer of the idle server was compared"
                if share.abnormal or n < _FEWEST:
                    continue
                if strict or n >= _UNPROVED_SHARES.get(sign, 2) * whole:
                    unproved.append(f"traffic {name}: {n:,} of {whole:,} answers {_WORDS[sign]}, {when}")
                elif sign in IDS and n >= _TOLD_SHARE * whole:
                    notes.append(f"traffic {name}: {n:,} of {whole:,} answers {_WORDS.get(sign, sign)}, {when}")
        told = [NotJudged("degeneration", "as the model answers when idle", "; ".join(unproved))] if unproved else []
        return [*told, *notes]


def _above(found: int, n: int, known: int, learned: int) -> bool:
    if found < _FEWEST or not learned:
        return False
    return wilson(found, n, _Z)[0] > wilson(known, learned, _Z_OF_REFERENCE)[1]
