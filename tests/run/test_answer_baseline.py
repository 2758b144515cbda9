import asyncio
import json
from typing import Any

import httpx
import pytest

from loadchaos.core.ledger.rows import AnyRow
from loadchaos.core.model import Facts
from loadchaos.load import registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.run import answer_baseline
from loadchaos.run.asker import HttpAsker
from tests.run.raw_server import answer, chunk

FACTS = Facts(base_url="http://x", admin_url="http://x", dialect="openai", model="raw")
TEXT = {"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 60}}
LEAVING = {**TEXT, "name": "leaving", "behaviour": {"abort": {"share": "100%", "at_token": "2..10"}}}
REFUSED = {**TEXT, "name": "refused", "expect": ["rejected"]}


def profile(*traffic: dict[str, Any], for_: str = "2m", **more: Any) -> Profile:
    data = {"name": "x", "traffic": list(traffic), "load": [{"users": 2, "for": for_}], **more}
    return from_mapping(data, registry.traffic_registry())


def learned(reply: list[dict[str, Any]] | int) -> list[AnyRow]:
    rows: list[AnyRow] = []

    def serve(_: httpx.Request) -> httpx.Response:
        if isinstance(reply, int):
            return httpx.Response(reply, json={"error": {"message": "no"}})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in reply) + "data: [DONE]\n\n"
        return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as http:
            await answer_baseline.learn(
                HttpAsker(http), "http://x", profile(TEXT, LEAVING, REFUSED), FACTS, rows.append, seed=1
            )

    asyncio.run(ask())
    return rows


@pytest.mark.parametrize(("parts", "wanted"), [({}, True), ({"for_": "30s"}, False), ({"can_kill": True}, False)])
def test_baseline_is_for_long_loads_that_cannot_kill(parts: dict[str, Any], wanted: bool) -> None:
    assert answer_baseline.is_wanted(profile(TEXT, **parts)) == wanted


def test_baseline_asks_six_times_for_each_traffic_of_plain_clients() -> None:
    rows: list[Any] = learned(answer(4))
    assert [(r["traffic"], r["outcome"], r["completion_tokens"], r["signs"]) for r in rows] == [
        ("text", "ok", 4, [])
    ] * 6


def test_baseline_records_the_signs_of_idle_answers() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 60, "total_tokens": 68}}
    rows: list[Any] = learned([*[chunk(" word!")] * 60, chunk(finish="length"), usage])
    assert {tuple(r["signs"]) for r in rows} == {("repeated_token", "one_word")}
    assert {r["text_ratio"] < 0.2 for r in rows} == {True}


def test_baseline_of_a_server_that_refuses_has_no_answers() -> None:
    rows: list[Any] = learned(503)
    assert {(r["outcome"], r["completion_tokens"]) for r in rows} == {("http_error", None)}
