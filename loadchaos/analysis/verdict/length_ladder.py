"""The ladder of lengths near the context limit: how long a prompt was taken, what was refused, where trouble began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadchaos.analysis.mechanisms import Check
from loadchaos.core.ledger.rows import BeginRow, EndRow

_WANTED = "answers below the limit, refusals above"


@dataclass
class _Rungs:
    """What became of the rungs of phases that sent in one way: `{margin: {"ok", "refused", "bad"}}`, and `over` likewise.

    Margin is prompt tokens minus the limit. `over` are answers asked for beyond the edge by prompts that do fit: a refusal
    of such a sum says nothing of the prompt's length.
    """

    margins: dict[int, Counter[str]] = field(default_factory=dict)
    over: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Rungs) -> None:
        for margin, counts in other.margins.items():
            self.margins.setdefault(margin, Counter()).update(counts)
        self.over.update(other.over)

    def words(self) -> list[str]:
        """Where each began; nothing of what was not met."""
        ordered = sorted(self.margins)
        bad = [m for m in ordered if self.margins[m]["bad"]]
        good = [m for m in ordered if not self.margins[m]["bad"]]
        answered = [m for m in good if self.margins[m]["ok"]]
        refused = [m for m in good if self.margins[m]["refused"]]
        told = [f"longest answered: {answered[-1]:+d}"] if answered else []
        told += [f"shortest refused: {refused[0]:+d}"] if refused else []
        if self.over["refused"] or self.over["ok"]:
            took = [what for what in ("refused", "answered") if self.over["ok" if what == "answered" else what]]
            told.append(f"output beyond the limit: {' or '.join(took)}")
        return [*told, *_trouble(bad[0], ordered[0])] if bad else told


def _trouble(first: int, lowest: int) -> list[str]:
    if first >= 0:
        return [f"failures from {first:+d} on instead of a refusal"]
    if first == lowest:
        return [f"failures from {first:+d} on, the shortest length tried"]
    return [f"failures from {first:+d} on: stay more than {-first} tokens below the limit"]


class LengthLadder:
    """Folds begin and end rows. `limit` is the shortest prompt that is too long, as the plan has it."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self._phases: dict[int, _Rungs] = {}
        self._ended_ns: dict[int, int] = {}  # of each phase, when its last request so far ended
        self._together: set[int] = set()  # phases in which requests were out at one time
        self._asked: dict[str, int] = {}

    def begin(self, row: BeginRow) -> None:
        """Fold a begin row."""
        if row.get("edge") is not None and (asked := row.get("max_tokens")):
            self._asked[str(row.get("id"))] = int(asked)

    def end(self, row: EndRow, *, bad: bool) -> None:
        """Fold an end row of any traffic; `bad`: its outcome is to be explained."""
        phase, ended_ns = int(row.get("phase") or 0), int(row["at_ns"])
        if (row.get("sent_ns") or ended_ns) < self._ended_ns.get(phase, 0):
            self._together.add(phase)
        self._ended_ns[phase] = max(ended_ns, self._ended_ns.get(phase, 0))
        if (margin := row.get("edge")) is not None:
            self._rung(self._phases.setdefault(phase, _Rungs()), row, int(margin), bad)

    def _rung(self, rungs: _Rungs, row: EndRow, margin: int, bad: bool) -> None:
        asked, planned, outcome = self._asked.pop(str(row.get("id")), 0), row.get("planned_tokens"), row.get("outcome")
        self.limit = int(planned) - margin if planned else None
        became = "bad" if bad else {"ok": "ok", "rejected": "refused"}.get(str(outcome))
        counts, over = rungs.margins.setdefault(margin, Counter()), margin < 0 < margin + asked
        if became is not None and over:
            rungs.over[became] += 1
        if became is not None and not (over and became == "refused"):
            counts[became] += 1

    def check(self, against: bool, moves: str = "") -> Check | None:
        """What the limit came to; None when there was no ladder.

        `against`: some failure counts against the run (where all are accepted, trouble on the ladder is told, not held).
        `moves` says which flag of the server moves the limit.
        """
        ways = {False: _Rungs(), True: _Rungs()}
        for phase, rungs in self._phases.items():
            ways[phase in self._together].add(rungs)
        both = _Rungs()
        for rungs in ways.values():
            both.add(rungs)
        if not both.margins:
            return None
        if not (words := both.words()):
            return Check("near_limit", _WANTED, "no request near the limit was answered", "unknown")
        told = [] if self.limit is None else [f"limit {self.limit:,} tokens" + (f" ({moves})" if moves else "")]
        bad = any(counts["bad"] for counts in both.margins.values())
        told += (
            _apart({("concurrent" if way else "one at a time"): rungs.words() for way, rungs in ways.items()}) or words
        )
        return Check(
            "near_limit",
            _WANTED,
            "; ".join(told) + " (in tokens relative to the limit)",
            "fail" if bad and against else "pass",
        )


def _apart(ways: Mapping[str, list[str]]) -> list[str]:
    """Each way by itself where they differ; nothing where one was not gone, or both say the same."""
    alone, together = ways.values()
    if not alone or not together or alone == together:
        return []
    return [f"{way}: {', '.join(words)}" for way, words in ways.items()]
