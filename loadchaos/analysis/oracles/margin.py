"""Tell a wrong token from a near tie.

The result of a matrix product depends on the batch, so that even a correct server may choose another token where two are
nearly as likely. Prompts that were asked alone and in a small benign load show by how much logprobs move on this server.
Two answers to one prompt differ by more than numerics if the reference preferred its first differing token by more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from loadchaos.core.ledger.rows import QuestionRow
from loadchaos.core.probe_names import is_right

FEWEST_MOVES = 100
_FACTOR = 4.0  # a real load has larger batches, other kernels and recomputed prompts
_FLOOR = 0.1
NEAR_TIE = 1.0  # a token that is preferred by more is no near tie, whatever else a benign load showed
_QUANTILE = 0.999
_MOST_MOVES = 20_000
BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class AnswerDifference:
    """First difference of two answers to one prompt.

    Attributes:
        at: index of the first token that differs; -1 where tokens are unknown.
        gap: logprob of the reference's token minus that of the next likely one; None: unknown.
        limit: gap that numerics can bridge on this server; None: not measured.
    """

    at: int
    gap: float | None
    limit: float | None

    @property
    def proved(self) -> bool:
        """True when numerics cannot explain it."""
        return self.gap is not None and self.limit is not None and self.gap > self.limit

    def describe(self) -> str:
        if self.gap is None:
            return f"token {self.at}, the server gives no logprobs of it"
        noise = "and numerics were not measured"
        if self.limit is not None:
            noise = f"numerical noise of this server at most {self.limit:.2f}"
        return f"token {self.at}, margin {self.gap:.2f}, {noise}"


def answered(row: QuestionRow) -> bool:
    """True for a whole answer; errors and aborted answers prove nothing."""
    return row.get("status") == 200 and not row.get("error") and row.get("finish") not in ("abort", "error")


def wrong_and_right(first: QuestionRow, later: QuestionRow) -> tuple[QuestionRow, QuestionRow]:
    """Order two answers to one prompt: the wrong and the right one. The later one is taken for wrong, unless the known
    answer shows that only the first one is.
    """
    return (first, later) if known_wrong(first) and not known_wrong(later) else (later, first)


def known_wrong(row: QuestionRow) -> bool:
    return bool(row["expected"]) and not is_right(row["expected"], row["text"])


def _same_but_for_a_cut_character(one: QuestionRow, other: QuestionRow) -> bool:
    """True if two texts differ only in a character that `max_tokens` cut. Its first bytes are replacement characters in
    a whole answer. Some servers never stream the token they are in, which can begin with a blank.
    """
    texts = one["text"], other["text"]
    if {one.get("finish"), other.get("finish")} != {"length"} or not any(text.endswith(BROKEN) for text in texts):
        return False
    first, second = (text.rstrip(f"{BROKEN} \n\t") for text in texts)
    return first == second


class Margin:
    """Learns how far numerics move the logprobs of this server. Feed it every `question` row; rows of the part
    `reference` before the load count.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], QuestionRow] = {}
        self._moves: list[float] = []
        self._flips: list[float] = []
        self._limit: float | None = None
        self._texts: dict[tuple[str, str], list[str]] = {}

    def on_question(self, row: QuestionRow) -> None:
        if row.get("part") != "reference" or row.get("when") not in ("idle", "busy") or not answered(row):
            return
        key = row["model"], row["hash"]
        self._texts.setdefault(key, []).append(row["text"])
        first = self._first.setdefault(key, row)
        if first is row or len(self._moves) >= _MOST_MOVES:
            return
        for i, (one, other) in enumerate(zip(first.get("tokens", ()), row.get("tokens", ()), strict=False)):
            if one != other:
                self._flips.append(max(first["gaps"][i], row["gaps"][i]))
                break
            self._moves.append(abs(first["gaps"][i] - row["gaps"][i]))
        self._limit = None

    def reference(self, row: QuestionRow) -> QuestionRow | None:
        """The answer of the idle server to the same prompt; None: not asked."""
        return self._first.get((row["model"], row["hash"]))

    def texts(self, row: QuestionRow) -> Sequence[str]:
        return self._texts.get((row["model"], row["hash"]), ())

    @property
    def limit(self) -> float | None:
        """Gap that numerics can bridge; None with too few measured tokens."""
        if len(self._moves) < FEWEST_MOVES:
            return None
        if self._limit is None:
            moves = sorted(self._moves)
            usual = moves[ceil(_QUANTILE * len(moves)) - 1]
            flips = [gap for gap in self._flips if gap <= NEAR_TIE]
            self._limit = max(_FLOOR, _FACTOR * usual, 2 * max(flips, default=0.0))
        return self._limit

    def compare(self, reference: QuestionRow, row: QuestionRow) -> AnswerDifference | None:
        """First difference of an answer from a reference; None: none."""
        if reference["text"] == row["text"]:
            return None
        ours, theirs = reference.get("tokens", ()), row.get("tokens", ())
        if not ours or not theirs:
            if _same_but_for_a_cut_character(reference, row):
                return None
            return AnswerDifference(-1, None, self.limit)
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        if at in (len(ours), len(theirs)) and "length" in (reference.get("finish"), row.get("finish")):
            return None  # one of them was cut off
        # At the end of an answer there may be no token. A near tie is one in both answers, so the larger gap counts.
        gaps = [r["gaps"][at] for r in (reference, row) if at < len(r.get("gaps", ()))]
        return AnswerDifference(at, max(gaps, default=None), self.limit)
