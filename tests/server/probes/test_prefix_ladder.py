import asyncio
import random
from typing import Any

import pytest

from loadchaos.core.ledger.rows import QuestionRow
from loadchaos.core.model import TextFacts
from loadchaos.server.probes.ask import Purpose
from loadchaos.server.probes.parts.prefix_ladder import PrefixLadderPart
from loadchaos.server.probes.question import Question
from tests.server.probes.conftest import FunctionAsker

TEXT = TextFacts(9, ((" one", 1), (" two", 2)), " a", "tokenize")
TEMPLATE = 9


def tokens(prompt: str) -> int:
    """Tokens of a prompt: every letter of the question is one."""
    opening, _, question = prompt.partition("\n")
    return TEMPLATE + opening.count(" a") + opening.count(" one") + 2 * opening.count(" two") + len(question) + 1


class CountingAsker(FunctionAsker):
    """Counts the tokens of prompts, unless it is told not to, and leaves answers."""

    counts = True

    def __init__(self) -> None:
        super().__init__(lambda q, p, m: q.expected)
        self.left: list[tuple[Question, int]] = []

    async def ask(
        self, question: Question, purpose: Purpose, *, stream: bool = False, model: str | None = None
    ) -> QuestionRow:
        row = await super().ask(question, purpose, stream=stream, model=model)
        if self.counts:
            row["prompt_tokens"] = tokens(question.prompt)
        return row

    async def leave(self, question: Question, *, after_tokens: int) -> None:
        self.left.append((question, after_tokens))


@pytest.fixture
def counting() -> CountingAsker:
    return CountingAsker()


def ladder(server: Any, text: TextFacts | None = TEXT, lengths: tuple[int, ...] = (15, 16, 66)) -> PrefixLadderPart:
    part = PrefixLadderPart(server, random.Random(3), every_s=1, lengths=lengths, text=text)
    asyncio.run(part.learn())
    return part


def test_ladder_asks_exact_lengths_cold_and_twice_from_the_cache(counting: CountingAsker) -> None:
    part = ladder(counting)
    assert part.notes == []
    for _ in range(3):
        asyncio.run(part.act())
    load = [(row, q) for row, q in zip(counting.rows, counting.questions, strict=True) if row["when"] == "load"]
    assert [row["role"] for row, _ in load] == ["cold", "warm", "after_aborts"] * 3
    assert [row["prompt_tokens"] % 64 for row, _ in load[::3]] == [15, 16, 2]
    assert all(row["kind"] == f"{row['prompt_tokens']} tokens" for row, _ in load)
    assert len({q.prompt for _, q in load}) == 3
    assert [n for _, n in counting.left] == [1, 2, 8] * 3
    for (_, q), (left, _) in zip(load[::3], counting.left[::3], strict=True):
        assert left.prompt != q.prompt
        assert left.prompt.partition("\n")[0] == q.prompt.partition("\n")[0]


def test_ladder_is_off_where_lengths_are_not_known(counting: CountingAsker, asker: type[FunctionAsker]) -> None:
    counting.counts = False
    cases = {
        "token counts of this server are not known": ladder(counting, None),
        "usage has no prompt tokens": ladder(counting),
        "the idle server gave an error: full": ladder(asker(lambda q, p, m: "error:full")),
    }
    for why, part in cases.items():
        assert part.notes == [f"prompts of exact lengths are not asked: {why}"]
        assert part.off
    assert [row for row in counting.rows if row.get("when") == "load"] == []
