import asyncio
import random
from collections import Counter
from collections.abc import Callable

from loadchaos.core.probe_names import NEW_QUESTIONS
from loadchaos.server.probes.ask import Purpose
from loadchaos.server.probes.parts.keyed import KeyedPart
from loadchaos.server.probes.question import Question
from tests.server.probes.conftest import FunctionAsker


def asked_after(asker: FunctionAsker) -> Counter[str]:
    """Roles of the questions after the load; one question under load was wrong."""
    part = KeyedPart(asker, random.Random(1), every_s=1, kinds=["copy"])

    async def run() -> None:
        await part.learn()
        await part.act()
        await part.check()

    asyncio.run(run())
    return Counter(row["role"] for row in asker.rows if row.get("when") == "after")


def server(kept: Callable[[Question], bool]) -> Callable[[Question, Purpose, str], str]:
    """A server that answers a question of the load wrong, and then those that it keeps wrong."""
    wrong: set[str] = set()

    def answer(question: Question, purpose: Purpose, _: str) -> str:
        if purpose.when == "load":
            wrong.add(question.prompt)
            return "x"
        return "x" if question.prompt in wrong and kept(question) else question.expected

    return answer


def test_keyed_asks_once_where_the_idle_server_is_right(asker: type[FunctionAsker]) -> None:
    assert asked_after(asker(server(lambda _: False))) == {"again": 1}


def test_keyed_asks_an_answer_that_stays_wrong_with_a_cache_of_its_own(asker: type[FunctionAsker]) -> None:
    made = asker(server(lambda question: not question.salt))
    assert asked_after(made) == {"again": 3, "anew": 2, "new": NEW_QUESTIONS}
    salts = [question.salt for question in made.questions if question.salt]
    assert len(set(salts)) == 2


def test_keyed_stops_where_the_answer_is_wrong_without_the_cache(asker: type[FunctionAsker]) -> None:
    assert asked_after(asker(server(lambda _: True))) == {"again": 1, "anew": 1, "new": NEW_QUESTIONS}
