import asyncio
import itertools
import random
from typing import Any

import pytest

from loadchaos.analysis.oracles.alone_vs_load import AloneVsLoadOracle
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.server.probes.parts.reference import ReferencePart
from tests.server.probes.conftest import FunctionAsker


def learned(asker: type[FunctionAsker], answer: Any) -> tuple[ReferencePart, list[Any]]:
    server = asker(answer)
    part = ReferencePart(server, random.Random(3), share=0.1, requests=lambda: 0, compared=["replicas", "cold_warm"])
    asyncio.run(part.learn())
    return part, [row for row in server.rows if row["row"] == "learned"]


@pytest.mark.parametrize("case", ["random", "equal", "cached", "errors", "one prompt"])
def test_reference_says_before_the_load_that_idle_answers_disagree(asker: type[FunctionAsker], case: str) -> None:
    turns, seen = itertools.count(), set()

    def answer(q: Any, p: Any, m: str) -> str:
        new = q.prompt not in seen
        seen.add(q.prompt)
        differs = {"random": True, "cached": new, "one prompt": q.prompt.startswith("Continue")}.get(case, False)
        text = f"{q.prompt} {next(turns)}" if differs else q.prompt
        return f"error:{next(turns)}" if case == "errors" else text

    part, rows = learned(asker, answer)
    if case != "random":
        assert (part.notes, rows) == ([], [])
        return
    why = "the idle server gave different answers to equal prompts (3 of 3)"
    assert part.notes == [f"{why}: nothing is found by replicas, cold_warm"]
    assert [(row["kind"], row["used"], row["why"]) for row in rows] == [("equal answers", False, why)]


@pytest.mark.parametrize(("asked", "compared"), [(10, 4), (6, 2), (3, 1)])
def test_reference_asks_few_prompts_of_a_server_without_logprobs(
    asker: type[FunctionAsker], asked: int, compared: int
) -> None:
    """A short load has ten answers or six: of nine prompts none is compared, and in turns of three prompts none of six."""
    server = asker(lambda question, *_: question.prompt)
    part = ReferencePart(server, random.Random(3), share=0.1, requests=lambda: asked * 10)
    asyncio.run(part.learn())
    oracle = AloneVsLoadOracle()
    asyncio.run(part.act())
    for row in server.rows:
        oracle.fold({**row, "hash": row["text"]})
    [check] = oracle.conclude()
    assert isinstance(check, CheckResult)
    assert check.verdict == "pass"
    assert check.actual.startswith(f"{asked} answers, {compared} compared by text, 0 differ")
