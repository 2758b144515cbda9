"""Keep what questions to an idle server have shown, for later runs on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadchaos.core.ledger.rows import LearnedRow, QuestionRow
from loadchaos.server.discovery.memory import REFUSED_NOW
from loadchaos.server.probes.question import Question

_MOST_MOVED = 0.1
"""Logprob margin that two idle answers of one server may differ by: the least that the oracles allow, too."""
_FAILED = 500
Learned = QuestionRow | LearnedRow


@dataclass
class ProbeMemory:
    """Rows of what the idle server answered, by part; they are written again into each later run. `confirmed` is false
    after a restart, until one of these answers came again; `numbers` and `groups` go on from run to run.
    """

    confirmed: bool = True
    prompts: Sequence[tuple[str, Question]] = ()
    logprobs: bool = True
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    groups: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _rows: dict[str, tuple[list[Learned], list[str]]] = field(default_factory=dict)

    def forget(self) -> None:
        self.prompts, self.confirmed = (), True
        self._rows.clear()

    def keep(self, part: str, rows: Sequence[Learned], notes: Sequence[str]) -> None:
        """Keep what a part has written before the load, but not where the server failed or may answer another try."""
        if any(row["row"] == "question" and _passes(row) for row in rows):
            return
        self.confirmed = self.confirmed or not self._rows
        self._rows[part] = [{**row, "remembered": True} for row in rows], list(notes)  # type: ignore[misc]

    def rows(self, part: str) -> Sequence[Learned]:
        return self._rows.get(part, ((), ()))[0]

    def notes(self, part: str) -> Sequence[str]:
        return self._rows.get(part, ((), ()))[1]

    def confirm(self, row: QuestionRow) -> bool:
        """Compare an answer of a restarted server with the one before; forget everything where more than numerics
        differ.
        """
        first = next(r for r in self.rows(row["part"]) if r["row"] == "question" and r["hash"] == row["hash"])
        assert first["row"] == "question"
        gaps = zip(first.get("gaps", ()), row.get("gaps", ()), strict=False)
        self.confirmed = first["text"] == row["text"] and all(abs(a - b) <= _MOST_MOVED for a, b in gaps)
        if not self.confirmed:
            self.forget()
        return bool(self._rows)


def _passes(row: QuestionRow) -> bool:
    """True for an error that another try may not get. One with status 200 ended an answer."""
    status = row["status"]
    return not status or status >= _FAILED or status in REFUSED_NOW or (status < 400 and bool(row["error"]))
