import asyncio
from dataclasses import replace

import httpx
import pytest

from loadchaos.core.model import Facts
from loadchaos.run.discovery_client import discovery_client
from loadchaos.server.discovery.calibrate import calibrate, identify_server
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient
from loadchaos.server.discovery.preflight import require_first_answer
from loadchaos.server.memory import DiscoveryMemory
from tests.discovering import discovering

REQUEST = CalibrationRequest(((448, 448),), images_per_request=2)


def learned(url: str, memory: DiscoveryMemory) -> tuple[Facts, DiscoveryClient]:
    """Facts of a run with the memory, and the client that asked for them."""

    async def ask() -> tuple[Facts, DiscoveryClient]:
        async with discovering(url, memory=memory) as client:
            facts = await identify_server(client, REQUEST)
            memory.identified(facts)
            return await calibrate(client, facts, REQUEST), client

    return asyncio.run(ask())


@pytest.mark.parametrize("embedded", [[]], indirect=True)
def test_second_run_sends_nothing_and_a_restarted_server_is_identified(embedded: str) -> None:
    memory = DiscoveryMemory()
    facts, first = learned(embedded, memory)
    assert first.generations == 2
    again, second = learned(embedded, memory)
    assert (second.reads, second.generations) == (0, 0)
    assert again == facts
    memory.restarted()
    again, third = learned(embedded, memory)
    assert (third.reads, third.generations) == (len(third.pages), 0), "pages only"
    assert again == facts


@pytest.mark.parametrize("embedded", [[]], indirect=True)
def test_another_server_is_measured_anew(embedded: str) -> None:
    memory = DiscoveryMemory()
    facts, first = learned(embedded, memory)
    memory.restarted()
    assert not memory.identified(replace(facts, version="0.19.0"))
    _, second = learned(embedded, memory)
    assert (second.reads, second.generations) == (first.reads, first.generations)


@pytest.mark.parametrize("embedded", [[]], indirect=True)
async def test_first_answer_is_asked_of_each_process_once(embedded: str) -> None:
    memory, sent = DiscoveryMemory(), []

    async with discovery_client(embedded) as client:
        client.memory = memory
        model = (await identify_server(client, REQUEST)).model
        for restarted in (False, False, True, False):
            if restarted:
                memory.restarted()
            await require_first_answer(client, model)
            sent.append(client.generations)
    assert sent == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("status", "kept"), [(200, True), (400, True), (401, False), (429, False), (503, False), (0, False)]
)
async def test_only_answers_that_another_try_would_get_are_kept(status: int, kept: bool) -> None:
    memory, sent = DiscoveryMemory(), []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        if not status:
            raise httpx.ConnectError("refused")
        choice = {"message": {"content": "a"}, "finish_reason": "length"}
        return httpx.Response(status, json={"choices": [choice]} if request.method == "POST" else {})

    async with discovering(serve=answer, memory=memory) as client:
        for _ in range(2):
            await client.generate("m", "Hello")
            await client.ask("GET", "/version")
    assert len(sent) == (2 if kept else 4)


@pytest.mark.parametrize("embedded", [[]], indirect=True)
async def test_restarted_server_is_asked_its_first_question_although_an_earlier_process_answered_it(
    embedded: str,
) -> None:
    memory = DiscoveryMemory()
    async with discovering(embedded, memory=memory) as client:
        await client.generate("sim", "Hello")  # for the facts, as of a model that no list has
        memory.restarted()
        await client.generate("sim", "Hello")
        await require_first_answer(client, "sim")
    assert client.generations == 2, "the second one of the facts is remembered, the first question is not"
