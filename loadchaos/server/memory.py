"""Answers of the idle server, which several short runs on it need not ask again. What it says about itself lasts as long
as its process; token counts, limits and answers as long as its launch command, if after a restart its facts and one
question show that they still hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadchaos.core.ledger.rows import LearnedRow, PreflightRow, QuestionRow
from loadchaos.core.model import Facts
from loadchaos.core.outcome_rules import SHED_STATUSES
from loadchaos.server.probes.question import Question

if TYPE_CHECKING:
    from loadchaos.server.discovery.client import DiscoveryResponse

Key = tuple[str, str, bytes]
"""Method, URL and body of a request."""
REFUSED_NOW = SHED_STATUSES | {401, 403, 408}
"""Refusals that another try may not get."""
_MOST_MOVED = 0.1
"""Logprob margin that two idle answers of one server may differ by: the least that the oracles allow, too."""
_FAILED = 500
Learned = QuestionRow | LearnedRow | PreflightRow


@dataclass
class DiscoveryMemory:
    """Answers by request. `generated`: the process has answered a request that runs the model."""

    generated: bool = False
    _process: dict[Key, DiscoveryResponse] = field(default_factory=dict)
    _command: dict[Key, DiscoveryResponse] = field(default_factory=dict)
    _identity: tuple[object, ...] = ()

    def restarted(self) -> None:
        self._process.clear()
        self.generated = False

    def identified(self, facts: Facts) -> bool:
        """Note what a server is. Another one than before: forget everything and return False."""
        identity = (facts.dialect, facts.version, facts.model, facts.max_model_len, facts.lora_adapters)
        same = self._identity in ((), identity)
        if not same:
            self._command.clear()
        self._identity = identity
        return same

    def answer(self, key: Key, *, process: bool = False) -> DiscoveryResponse | None:
        """Answer to the same request before, of this process or (without `process`) of its command."""
        return self._process.get(key) or (None if process else self._command.get(key))

    def keep(self, key: Key, answer: DiscoveryResponse, *, process: bool) -> None:
        """Keep an answer, but no 5xx, broken connection or refusal that may end."""
        if 200 <= answer.status < 500 and answer.status not in REFUSED_NOW:
            (self._process if process else self._command)[key] = answer


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


@dataclass
class ServerMemory:
    """Answers to discovery and to questions of the idle server."""

    discovery: DiscoveryMemory = field(default_factory=DiscoveryMemory)
    probes: ProbeMemory = field(default_factory=ProbeMemory)

    def restarted(self) -> None:
        """Note that another process of the same command answers from now on."""
        self.discovery.restarted()
        self.probes.confirmed = False

    def identified(self, facts: Facts) -> None:
        if not self.discovery.identified(facts):
            self.probes.forget()
