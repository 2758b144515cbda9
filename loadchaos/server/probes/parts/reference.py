"""Ask fixed prompts on the idle server, alone and all at once, and under the load. The answers before the load also
show how far numerics move the logprobs of this server; all parts use that figure.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadchaos.core.ledger.rows import QuestionPart
from loadchaos.core.probe_names import EQUAL_ANSWERS, LEARNED_UNDER_LOAD
from loadchaos.server.memory import ProbeMemory
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.kinds import copy, lookup
from loadchaos.server.probes.parts.base import ProbePart
from loadchaos.server.probes.question import Question, story

_EACH = 3
_FEWEST_DIFFERENT = 2
_BUSY_TIMES = 4
_IDLE_S, _BUSY_S = 30.0, 30.0
_TICK_S = 0.5
_MOST_AT_ONCE = 16


class ReferencePart(ProbePart):
    """Part `alone_vs_load`; with share 0 it only calibrates before the load."""

    part: QuestionPart = "reference"
    recalls = True

    def __init__(
        self,
        asker: RecordedAsker,
        rng: random.Random,
        *,
        share: float,
        requests: Callable[[], int],
        compared: Sequence[str] = (),
        memory: ProbeMemory | None = None,
    ) -> None:
        """Several short runs with one memory learn one prompt of each kind, once."""
        super().__init__(asker, rng, every_s=_TICK_S)
        self._share, self._requests, self._compared, self._memory = share, requests, compared, memory
        self._recalled: dict[str, str] = {}  # idle answers of an earlier run, by the hash of the prompt
        self._changed: dict[str, tuple[str, Question]] = {}
        # From each kind one first, for a slow server.
        self._prompts = [
            prompt
            for _ in range(_EACH if memory is None else 1)
            for prompt in (("story", story(rng)), ("copy", copy(rng)), ("lookup", lookup(rng)))
        ]
        self.idle_questions = len(self._prompts) * (1 + _BUSY_TIMES) + 2 * _EACH
        self._order = itertools.cycle(self._prompts)
        self._sent = 0

    async def learn(self) -> None:
        """Ask each prompt alone, then several times all of them at once. A slow server is asked fewer of them."""
        begin_s = time.monotonic()
        if self._memory is not None:
            self._memory.prompts = self._prompts
        known: list[tuple[str, Question]] = []
        logprobs = False
        for kind, question in self._prompts:
            if time.monotonic() - begin_s < _IDLE_S or len(known) < _EACH:
                known.append((kind, question))
                row = await self._send(question, kind, "idle")
                logprobs |= bool(row.get("tokens"))
        self._put_in_order(known, logprobs=logprobs)
        await self._learn_equality(known[:_EACH])
        # The few prompts of a memory all at once, so that the batch is no smaller.
        rounds, copies = (_BUSY_TIMES, 1) if self._memory is None else (1, _BUSY_TIMES)
        for n in range(rounds):
            if n and time.monotonic() - begin_s > _IDLE_S + _BUSY_S:
                return
            asked = [self._send(q, kind, "busy") for kind, q in [*known] * copies]
            await asyncio.gather(*asked)

    async def recall(self, memory: ProbeMemory) -> bool:
        """Take the prompts. A server that was restarted has to give one of the answers again."""
        kind, question = memory.prompts[0]
        if not memory.confirmed:
            row = await self._send(question, kind, "idle")
            if not memory.confirm(row):
                return False
        rows = [row for row in memory.rows(self.part) if row["row"] == "question"]
        self._put_in_order(memory.prompts, logprobs=any(row.get("tokens") for row in rows))
        self._recalled = {row["hash"]: row["text"] for row in reversed(rows)}  # the first answers count
        return True

    def _put_in_order(self, known: Sequence[tuple[str, Question]], *, logprobs: bool) -> None:
        """Without logprobs the first answers under load to a prompt are not compared: few prompts, several times in a
        row.
        """
        in_a_row = [prompt for prompt in known[:_EACH] for _ in range(LEARNED_UNDER_LOAD + 1)]
        self._order = itertools.cycle(known if logprobs else in_a_row)

    async def _learn_equality(self, known: Sequence[tuple[str, Question]]) -> None:
        """Both answers come after a first one: a prefix cache that changes the answer is left to its oracle."""
        differ = 0
        for kind, question in known:
            rows = [await self._send(question, kind, "idle") for _ in range(2)]
            differ += rows[0]["text"] != rows[1]["text"] and not any(row["error"] for row in rows)
        if differ < _FEWEST_DIFFERENT:
            return
        why = f"the idle server gave different answers to equal prompts ({differ} of {len(known)})"
        self.notes.append(f"{why}: nothing is found by {', '.join(self._compared) or 'comparisons'}")
        self._write_learned(EQUAL_ANSWERS, why, asked=len(known), right=len(known) - differ)

    async def act(self) -> None:
        """Ask as many as the share of the requests that were sent."""
        due = min(int(self._share * self._requests()) - self._sent, _MOST_AT_ONCE)
        self._sent += max(due, 0)
        await asyncio.gather(*(self._ask_under_load(*next(self._order)) for _ in range(due)))

    async def _ask_under_load(self, kind: str, question: Question) -> None:
        row = await self._send(question, kind, "load")
        if self._recalled and self._recalled.get(row["hash"]) not in (None, row["text"]):
            self._changed[row["hash"]] = kind, question

    async def check(self) -> None:
        """Ask again, without the prefix cache, each prompt whose answer differs from that of an earlier run."""
        for kind, question in self._changed.values():
            salted = replace(question, salt=f"loadchaos-{secrets.token_hex(6)}")
            await self._send(salted, kind, "after")
