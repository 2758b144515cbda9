"""Ask questions with one right answer, of the kinds that the idle server can answer. A wrong answer under load is asked
again at once and after the load; one that stays wrong also without the prefix cache, which shows whether the server
keeps a wrong state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.core.ledger.rows import QuestionPart, QuestionRow
from loadchaos.core.probe_names import ASKED_AGAIN, ASKED_ANEW, NEW_QUESTIONS, ProbeKind, is_exact, is_right
from loadchaos.server.memory import ProbeMemory
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.kinds import KINDS
from loadchaos.server.probes.parts.base import ProbePart, idle_error
from loadchaos.server.probes.pictures import draw
from loadchaos.server.probes.question import Question

IDLE_TIMES = 6
_MOST_CHECKED = 20
_SHOWN = 24


class KeyedPart(ProbePart):
    """Part `probes`."""

    part: QuestionPart = "probes"
    recalls = True

    def __init__(self, asker: RecordedAsker, rng: random.Random, *, every_s: float, kinds: Sequence[ProbeKind]) -> None:
        super().__init__(asker, rng, every_s=every_s)
        self._asked = kinds
        self.idle_questions = IDLE_TIMES * len(set(kinds))
        self._exact: dict[ProbeKind, bool] = {}
        self._known: set[str] = set()
        self._wrong: list[tuple[ProbeKind, Question, int]] = []

    async def learn(self) -> None:
        off: dict[str, list[str]] = {}
        for kind in (kind for kind in dict.fromkeys(self._asked) if kind not in self._known):
            rows = []
            for _ in range(IDLE_TIMES):
                question = KINDS[kind](self._rng)
                rows.append(await self._send(question, kind, "idle", self._asker.new_group()))
                if not is_right(question.expected, rows[-1]["text"]):
                    break
            right = [is_right(row["expected"], row["text"]) for row in rows]
            exact = all(is_exact(row["expected"], row["text"]) for row in rows)
            why = "" if all(right) else _reason(rows[-1]["error"], rows[-1]["expected"], rows[-1]["text"])
            if not why:
                self._exact[kind] = exact
            else:
                off.setdefault(why, []).append(kind)
            self._write_learned(kind, why, exact=exact, asked=len(rows), right=sum(right))
        for why, kinds in off.items():
            s = "s" if len(kinds) > 1 else ""
            self.notes.append(f"questions of the kind{s} {', '.join(kinds)} are not asked: {why}")

    async def recall(self, memory: ProbeMemory) -> bool:
        known = {row["kind"]: row for row in memory.rows(self.part) if row["row"] == "learned"}
        self._exact = {kind: known[kind]["exact"] for kind in self._asked if kind in known and known[kind]["used"]}
        self._known = set(known)
        self.incomplete = not self._known.issuperset(self._asked)
        return True

    async def act(self) -> None:
        await asyncio.gather(*(self._ask(kind) for kind in self._exact))

    async def check(self) -> None:
        """Ask the questions with a wrong answer again on the idle server."""
        stayed: dict[ProbeKind, None] = {}
        for kind, question, group in self._wrong[:_MOST_CHECKED]:
            if await self._right(kind, self._redrawn(question), group, "again"):
                continue
            stayed[kind] = None
            for _ in range(ASKED_ANEW):
                salted = replace(self._redrawn(question), salt=f"loadchaos-{self._rng.getrandbits(48):x}")
                if not await self._right(kind, salted, group, "anew"):
                    break
                await self._right(kind, self._redrawn(question), group, "again")
        for kind in stayed:
            for _ in range(NEW_QUESTIONS):
                await self._right(kind, KINDS[kind](self._rng), self._asker.new_group(), "new")

    async def _right(self, kind: ProbeKind, question: Question, group: int, role: str) -> bool:
        return self._matches(kind, question, await self._send(question, kind, "after", group, role))

    async def _ask(self, kind: ProbeKind) -> None:
        question, group = KINDS[kind](self._rng), self._asker.new_group()
        row = await self._send(question, kind, "load", group)
        if row["error"] or row["status"] != 200 or self._matches(kind, question, row):
            return
        self._wrong.append((kind, question, group))
        for _ in range(ASKED_AGAIN):
            await self._send(self._redrawn(question), kind, "load", group, "again")

    def _matches(self, kind: ProbeKind, question: Question, row: QuestionRow) -> bool:
        return (is_exact if self._exact[kind] else is_right)(question.expected, row["text"])

    def _redrawn(self, question: Question) -> Question:
        """The question with a new image. The server may keep a wrong embedding of the old one."""
        if not question.images:
            return question
        return replace(question, images=(draw(question.expected, mark=self._rng.getrandbits(24)),))


def _reason(error: str, expected: str, text: str) -> str:
    if error:
        return idle_error(error)
    return f"the idle server answered {text[:_SHOWN]!r} where {expected[:_SHOWN]!r} is right"
