import asyncio
import random
from typing import Any

import pytest

from loadchaos.core.model import TextFacts
from loadchaos.server.probes.parts.prefix_ladder import PrefixLadderPart

TEXT = TextFacts(9, ((" one", 1), (" two", 2)), " a", "tokenize")
TEMPLATE = 9


def tokens(prompt: str) -> int:
    """Tokens of a prompt: every letter of the question is one."""
    opening, _, question = prompt.partition("\n")
    return TEMPLATE + opening.count(" a") + opening.count(" one") + 2 * opening.count(" two") + len(question) + 1


@pytest.fixture
def counting(asker: Any) -> Any:
    server = asker(lambda q, p, m: q.expected)
    asked, server.left = server.ask, []

    async def ask(question: Any, purpose: Any, **more: Any) -> Any:
        row = await asked(question, purpose, **more)
        row |= {"prompt_tokens": tokens(question.prompt)} if server.counts else {}
        return row

    async def leave(question: Any, *, after_tokens: int) -> None:
        server.left.append((question, after_tokens))

    server.ask, server.leave, server.counts = ask, leave, True
    return server


def ladder(server: Any, text: TextFacts | None = TEXT, lengths: tuple[int, ...] = (15, 16, 66)) -> PrefixLadderPart:
    part = PrefixLadderPart(server, random.Random(3), every_s=1, lengths=lengths, text=text)
    asyncio.run(part.learn())
    return part


def test_ladder_asks_exact_lengths_cold_and_twice_from_the_cache(counting: Any) -> None:
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


def test_ladder_is_off_where_lengths_are_not_known(counting: Any, asker: Any) -> None:
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
