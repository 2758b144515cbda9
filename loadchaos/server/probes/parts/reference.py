"""Ask fixed prompts on the idle server and under the load.

Before the load they are asked alone and all at once, which is a small benign load.

The answers before the load also show how far numerics move the logprobs of this server; all parts use that figure.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence

from loadchaos.core.ledger.rows import LearnedRow
from loadchaos.core.probe_names import EQUAL_ANSWERS, LEARNED_UNDER_LOAD
from loadchaos.server.probes.ask import Asker, Purpose
from loadchaos.server.probes.kinds import KINDS
from loadchaos.server.probes.question import Question, story

_EACH = 3
_FEWEST_DIFFERENT = 2
_BUSY_TIMES = 4
_IDLE_S, _BUSY_S = 30.0, 30.0
_TICK_S = 0.5
_MOST_AT_ONCE = 16


class ReferencePart:
    """Part `alone_vs_load`; with share 0 it only calibrates before the load."""

    every_s = _TICK_S

    def __init__(
        self,
        asker: Asker,
        rng: random.Random,
        *,
        share: float,
        requests: Callable[[], int],
        compared: Sequence[str] = (),
    ) -> None:
        self.notes: list[str] = []
        self._compared = compared
        self._asker, self._share, self._requests = asker, share, requests
        # From each kind one first, for a slow server.
        self._prompts = [
            prompt
            for _ in range(_EACH)
            for prompt in (("story", story(rng)), ("copy", KINDS["copy"](rng)), ("lookup", KINDS["lookup"](rng)))
        ]
        self._order = itertools.cycle(self._prompts)
        self._sent = 0

    async def learn(self) -> None:
        """Ask each prompt alone, then several times all of them at once.

        A slow server is asked fewer of them.
        """
        begin_s = time.monotonic()
        known: list[tuple[str, Question]] = []
        logprobs = False
        for kind, question in self._prompts:
            if time.monotonic() - begin_s < _IDLE_S or len(known) < _EACH:
                known.append((kind, question))
                row = await self._asker.ask(question, Purpose("reference", kind, "idle"))
                logprobs |= bool(row.get("tokens"))
        # Without logprobs the first answers under load to a prompt are not compared: few prompts, each several times in
        # a row, so that others are even where few are asked.
        in_a_row = [prompt for prompt in known[:_EACH] for _ in range(LEARNED_UNDER_LOAD + 1)]
        self._order = itertools.cycle(known if logprobs else in_a_row)
        await self._learn_equality(known[:_EACH])
        for n in range(_BUSY_TIMES):
            if n and time.monotonic() - begin_s > _IDLE_S + _BUSY_S:
                return
            asked = [self._asker.ask(q, Purpose("reference", kind, "busy")) for kind, q in known]
            await asyncio.gather(*asked)

    async def _learn_equality(self, known: Sequence[tuple[str, Question]]) -> None:
        """Find out if equal prompts get equal answers on the idle server.

        Both answers come after a first one: a prefix cache that changes the answer is left to its oracle.
        """
        differ = 0
        for kind, question in known:
            rows = [await self._asker.ask(question, Purpose("reference", kind, "idle")) for _ in range(2)]
            differ += rows[0]["text"] != rows[1]["text"] and not any(row["error"] for row in rows)
        if differ < _FEWEST_DIFFERENT:
            return
        why = f"the idle server gave different answers to equal prompts ({differ} of {len(known)})"
        self.notes.append(f"{why}: nothing is found by {', '.join(self._compared) or 'comparisons'}")
        learned: LearnedRow = {
            "row": "learned", "at_ns": time.monotonic_ns(), "kind": EQUAL_ANSWERS, "used": False, "exact": False,
            "asked": len(known), "right": len(known) - differ, "why": why,
        }  # fmt: skip
        self._asker.emit(learned)

    async def act(self) -> None:
        """Ask as many as the share of the requests that were sent."""
        due = min(int(self._share * self._requests()) - self._sent, _MOST_AT_ONCE)
        self._sent += max(due, 0)
        chosen = [next(self._order) for _ in range(due)]
        await asyncio.gather(*(self._asker.ask(q, Purpose("reference", kind, "load")) for kind, q in chosen))

    async def check(self) -> None:
        """Nothing."""
