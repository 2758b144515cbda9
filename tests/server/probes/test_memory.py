import asyncio
import hashlib
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.server.memory import ProbeMemory
from loadchaos.server.probes.parts.equal_prompts import StreamedPart
from loadchaos.server.probes.parts.keyed import KeyedPart
from loadchaos.server.probes.parts.reference import ReferencePart
from loadchaos.server.probes.prober import Prober
from tests.server.probes.conftest import FunctionAsker

_ONCE = 3 + 6 + 12


class HashingAsker(FunctionAsker):
    """Gives rows a hash, and keeps those that the prober wants."""

    kept: list[Any] | None = None

    def emit(self, row: Any) -> None:
        super().emit(row)
        if self.kept is not None:
            self.kept.append(row)

    async def ask(self, question: Any, purpose: Any, **how: Any) -> Any:
        row: Any = await super().ask(question, purpose, **how)
        row["hash"] = hashlib.sha256(question.prompt.encode()).hexdigest()
        if self.kept is not None:
            self.kept.append(row)
        return row


def right(question: Any, purpose: Any, _: str) -> str:
    return question.expected or f"a story about {question.prompt}"


def learned(memory: ProbeMemory, answer: Callable[..., str], kinds: tuple[str, ...] = ("copy",), seed: int = 1) -> Any:
    """A run with the memory; its asker, its prober and its reference part."""
    asker: Any = HashingAsker(answer)
    rng = random.Random(seed)
    reference = ReferencePart(asker, rng, share=1.0, requests=lambda: 3, memory=memory)
    parts: list[Any] = [
        reference, KeyedPart(asker, rng, every_s=1, kinds=kinds), StreamedPart(asker, rng, every_s=1)  # type: ignore[arg-type]
    ]  # fmt: skip
    prober = Prober(asker, parts, memory)
    asker.notes = asyncio.run(prober.learn())
    return asker, prober, reference


def test_second_run_asks_nothing_and_has_the_rows_of_the_first() -> None:
    memory = ProbeMemory()
    first, *_ = learned(memory, right)
    assert len(first.questions) == _ONCE + 6 + 4
    second, *_ = learned(memory, right, seed=2)
    assert second.questions == []
    assert [{**r, "at_ns": 0} for r in second.rows] == [{**r, "remembered": True, "at_ns": 0} for r in first.rows]


def test_kind_that_no_run_has_asked_is_learned() -> None:
    memory = ProbeMemory()
    learned(memory, right)
    second, *_ = learned(memory, right, ("copy", "lookup"))
    assert len(second.questions) == 6
    third, *_ = learned(memory, right, ("lookup", "copy"))
    assert third.questions == []
    assert [row["kind"] for row in third.rows if row["row"] == "learned"] == ["copy", "lookup"]


@pytest.mark.parametrize("same", [True, False])
def test_restarted_server_is_asked_one_question(same: bool) -> None:
    memory = ProbeMemory()
    learned(memory, right)
    memory.confirmed = False
    asker, *_ = learned(memory, right if same else lambda q, p, m: f"{right(q, p, m)} changed", seed=2)
    assert len(asker.questions) == (1 if same else 1 + _ONCE + 6 + 4)
    later, *_ = learned(memory, right, seed=3)
    assert later.questions == [], "what was confirmed or learned again holds for this process"


def test_answers_of_a_server_that_failed_are_not_kept() -> None:
    memory, asked = ProbeMemory(), itertools.count()

    def dies(q: Any, p: Any, m: str) -> str:
        return "died" if next(asked) > _ONCE + 6 else right(q, p, m)

    asker, *_ = learned(memory, dies)
    for row in asker.rows:
        if row.get("text") == "died":
            row["status"] = 0
    for part in ("reference", "probes", "streamed"):
        rows = [row for row in asker.rows if row.get("part", "probes") == part]
        memory.forget()
        memory.keep(part, rows, [])
        assert bool(memory.rows(part)) == (part != "streamed")


@pytest.mark.parametrize(
    ("status", "error", "kept"),
    [
        (200, "", True), (400, "no such option", True), (404, "no such model", True), (0, "broken", False),
        (200, "the stream has an error", False), (429, "too many requests", False), (401, "no key", False),
        (503, "down", False),
    ],
)  # fmt: skip
def test_answer_that_another_try_may_not_get_is_not_kept(status: int, error: str, kept: bool) -> None:
    memory = ProbeMemory()
    asker, *_ = learned(memory, right)
    rows = [row for row in asker.rows if row.get("part") == "streamed"]
    memory.forget()
    last: Any = {**rows[-1], "status": status, "error": error}
    memory.keep("streamed", [*rows[:-1], last], [])
    assert bool(memory.rows("streamed")) == kept


def test_answer_that_differs_from_a_remembered_one_is_asked_again_without_the_cache() -> None:
    memory = ProbeMemory()
    learned(memory, right)

    def wrong_under_load(q: Any, p: Any, m: str) -> str:
        return "wrong" if p.when == "load" and p.kind == "story" else right(q, p, m)

    asker, prober, reference = learned(memory, wrong_under_load, seed=2)
    asyncio.run(reference.act())
    asyncio.run(prober.check())
    after = [(row["kind"], row["text"]) for row in asker.rows if row.get("when") == "after"]
    assert [kind for kind, _ in after] == ["story"]
    assert asker.questions[-1].salt
    assert after[0][1].startswith("a story")
