"""Ask prompts of exact lengths around the edges of KV blocks: as a miss of the prefix cache, as a hit beside clients
that share the prefix and leave, and once more.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.core.ledger.rows import QuestionPart, QuestionRow, QuestionTime
from loadchaos.core.model import TextFacts
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.kinds import copy
from loadchaos.server.probes.parts.base import ProbePart, idle_error

_WORDS = 6
_NONCE_WORDS = 6
_NOT_ASKED = "prompts of exact lengths are not asked: "
_RAISE = 64
"""Lengths that the question alone exceeds are raised by multiples of this: they stay at the same edge of a block."""
_LEAVE_AFTER = (1, 2, 8)
"""Tokens after which the clients that share the prefix leave."""


class PrefixLadderPart(ProbePart):
    """Part `prefix_ladder`."""

    part: QuestionPart = "prefix_ladder"
    idle_questions = 2

    def __init__(
        self,
        asker: RecordedAsker,
        rng: random.Random,
        *,
        every_s: float,
        lengths: Sequence[int],
        text: TextFacts | None,
    ) -> None:
        super().__init__(asker, rng, every_s=every_s)
        self._text = text
        self._question, self._other = copy(rng, _WORDS), copy(rng, _WORDS)
        self._fixed = 0  # tokens of the template and the question
        self._wanted = lengths
        self._order = itertools.cycle([0])

    async def learn(self) -> None:
        if self._text is None:
            self._turn_off(_NOT_ASKED + "token counts of this server are not known")
            return
        first = await self._ask(_RAISE, "cold", "idle")
        counted = first.get("prompt_tokens")
        if first["error"] or not counted:
            why = idle_error(first["error"]) if first["error"] else "usage has no prompt tokens"
            self._turn_off(_NOT_ASKED + why)
            return
        self._fixed = counted - _RAISE
        lengths = [self._raised(length) for length in self._wanted]
        second = await self._ask(lengths[0], "cold", "idle")
        if second.get("prompt_tokens") != lengths[0]:
            why = f"a prompt of {lengths[0]} tokens had {second.get('prompt_tokens')} in its usage"
            self._turn_off(_NOT_ASKED + why)
            return
        self._order = itertools.cycle(lengths)

    def _raised(self, length: int) -> int:
        """The shortest length at the same edge that fits the question."""
        least = self._fixed + self._opening_tokens()
        return length + max(0, -(-(least - length) // _RAISE)) * _RAISE

    def _opening_tokens(self) -> int:
        return _NONCE_WORDS * max(cost for _, cost in self._text.words) if self._text is not None else 0

    async def act(self) -> None:
        length, group, seed = next(self._order), self._asker.new_group(), self._rng.random()
        if (await self._ask(length, "cold", "load", group, seed))["error"]:
            return
        leaving = replace(self._other, prompt=self._prompt(length, seed, self._other.prompt))
        aborted = (self._asker.leave(leaving, after_tokens=n) for n in _LEAVE_AFTER)
        await asyncio.gather(*aborted, self._ask(length, "warm", "load", group, seed))
        await self._ask(length, "after_aborts", "load", group, seed)

    async def _ask(self, length: int, role: str, when: QuestionTime, group: int = 0, seed: float = 0.0) -> QuestionRow:
        asked = replace(self._question, prompt=self._prompt(length, seed, self._question.prompt))
        return await self._send(asked, f"{length} tokens", when, group, role)

    def _prompt(self, length: int, seed: float, question: str) -> str:
        assert self._text is not None
        rng, left, words = random.Random(seed), length - self._fixed, []
        for _ in range(_NONCE_WORDS):
            word, cost = rng.choice(self._text.words)
            words.append(word)
            left -= cost
        return "".join(words) + self._text.unit * max(left, 0) + "\n" + question
