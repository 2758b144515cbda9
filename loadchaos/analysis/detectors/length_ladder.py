"""Judge requests near the context limit: answered, refused, failed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.ledger.rows import BeginRow, EndRow
from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_WANTED = "answers below the limit, refusals above"


@dataclass
class _Rungs:
    """Results by length of phases that sent in one way. Margin is prompt tokens minus the limit. `beyond` are answers
    asked for beyond the limit by prompts that do fit: such a refusal proves nothing about the prompt's length.
    """

    margins: dict[int, Counter[str]] = field(default_factory=dict)
    beyond: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Rungs) -> None:
        for margin, counts in other.margins.items():
            self.margins.setdefault(margin, Counter()).update(counts)
        self.beyond.update(other.beyond)

    def describe(self) -> list[str]:
        ordered = sorted(self.margins)
        bad = [m for m in ordered if self.margins[m]["bad"]]
        good = [m for m in ordered if not self.margins[m]["bad"]]
        answered = [m for m in good if self.margins[m]["ok"]]
        refused = [m for m in good if self.margins[m]["refused"]]
        texts = [f"longest answered: {answered[-1]:+d}"] if answered else []
        texts += [f"shortest refused: {refused[0]:+d}"] if refused else []
        if self.beyond["refused"] or self.beyond["ok"]:
            results = [what for what in ("refused", "answered") if self.beyond["ok" if what == "answered" else what]]
            texts.append(f"output beyond the limit: {' or '.join(results)}")
        return [*texts, *_failures(bad[0], ordered[0])] if bad else texts


def _failures(first: int, lowest: int) -> list[str]:
    if first >= 0:
        return [f"failures from {first:+d} on instead of a refusal"]
    if first == lowest:
        return [f"failures from {first:+d} on, the shortest length tried"]
    return [f"failures from {first:+d} on: stay more than {-first} tokens below the limit"]


class LengthLadder:
    """Folds begin and end rows of requests near the context limit."""

    def __init__(self) -> None:
        self._limit: int | None = None  # the shortest prompt that is too long, by the plan
        self._phases: dict[int, _Rungs] = {}
        self._ended_ns: dict[int, int] = {}  # of each phase, when its last request so far ended
        self._together: set[int] = set()  # phases in which requests were out at one time
        self._asked: dict[str, int] = {}

    def on_begin(self, row: BeginRow) -> None:
        if row.get("edge") is not None and (asked := row.get("max_tokens")):
            self._asked[str(row.get("id"))] = int(asked)

    def on_end(self, row: EndRow, *, bad: bool) -> None:
        """Fold an end row of any traffic; `bad`: its outcome is to be explained."""
        phase, ended_ns = int(row.get("phase") or 0), int(row["at_ns"])
        before_ns = self._ended_ns.get(phase, 0)
        if (row.get("sent_ns") or ended_ns) < before_ns:
            self._together.add(phase)
        if ended_ns >= before_ns:
            self._ended_ns[phase] = ended_ns
        if (margin := row.get("edge")) is not None:
            self._rung(self._phases.setdefault(phase, _Rungs()), row, int(margin), bad)

    def _rung(self, rungs: _Rungs, row: EndRow, margin: int, bad: bool) -> None:
        asked, planned, outcome = self._asked.pop(str(row.get("id")), 0), row.get("planned_tokens"), row.get("outcome")
        self._limit = int(planned) - margin if planned else None
        became = "bad" if bad else {"ok": "ok", "rejected": "refused"}.get(str(outcome))
        counts, beyond = rungs.margins.setdefault(margin, Counter()), margin < 0 < margin + asked
        if became is not None and beyond:
            rungs.beyond[became] += 1
        if became is not None and not (beyond and became == "refused"):
            counts[became] += 1

    def check(self, against: bool, facts: Facts | None) -> CheckResult | None:
        """The check `near_limit`; None without such requests. `against`: some failure counts against the run; with all
        accepted, failures near the limit do not fail the check.
        """
        ways = {False: _Rungs(), True: _Rungs()}
        for phase, rungs in self._phases.items():
            ways[phase in self._together].add(rungs)
        both = _Rungs()
        for rungs in ways.values():
            both.add(rungs)
        if not both.margins:
            return None
        if not (texts := both.describe()):
            return CheckResult("near_limit", _WANTED, "no request near the limit was answered", "unknown")
        moves = moved_by(facts, self._limit)
        parts = [] if self._limit is None else [f"limit {self._limit:,} tokens" + (f" ({moves})" if moves else "")]
        bad = any(counts["bad"] for counts in both.margins.values())
        by_way = {("concurrent" if way else "one at a time"): rungs.describe() for way, rungs in ways.items()}
        parts += _apart(by_way) or texts
        return CheckResult(
            "near_limit",
            _WANTED,
            "; ".join(parts) + " (in tokens relative to the limit)",
            "fail" if bad and against else "pass",
        )


def _apart(ways: Mapping[str, list[str]]) -> list[str]:
    alone, together = ways.values()
    if not alone or not together or alone == together:
        return []
    return [f"{way}: {', '.join(texts)}" for way, texts in ways.items()]


def moved_by(facts: Facts | None, limit: int | None) -> str:
    """Server flag that sets `limit`, the shortest refused prompt."""
    if facts is None:
        return ""
    dialect, context = DIALECTS.get(facts.dialect, UNKNOWN), facts.max_model_len or math.inf
    if facts.input_limit is not None and facts.input_limit < context and facts.kv_blocks and dialect.capacity_flag:
        capacity = f"{facts.kv_blocks} blocks of {facts.kv_block_size}"
        return f"{capacity} hold a prompt of {facts.input_limit:,}, set by {dialect.capacity_flag}"
    known = {facts.max_model_len, None if facts.input_limit is None else facts.input_limit + 1}
    cache_decides = facts.capacity_tokens is not None and facts.capacity_tokens < context and not dialect.context_fits
    flag = dialect.capacity_flag if cache_decides else dialect.length_flag
    return f"set by {flag}" if flag and limit is not None and limit in known else ""
