import asyncio
import json
from typing import Any

import httpx
import pytest

from loadchaos.core.model import Facts, TextFacts
from loadchaos.server.discovery.max_length import LengthLimit, longest_prompt, prompt_limit_unknown, search
from tests.discovering import discovering


def searched(limit: int, known: int | None, most: int = 40) -> tuple[LengthLimit | None, list[int]]:
    asked: list[int] = []

    async def takes(length: int) -> str | None:
        asked.append(length)
        return None if length <= limit else f"too long: {length}"

    return asyncio.run(search(takes, 20, known, most)), asked


@pytest.mark.parametrize(
    ("limit", "known"),
    [(4095, 4096), (4096, 4096), (4097, 4096), (1216, 1344), (8000, 4096), (1216, None), (131072, None), (20, 4096)],
)
def test_search_finds_the_boundary_exactly(limit: int, known: int | None) -> None:
    found, asked = searched(limit, known)
    assert found is not None
    assert (found.longest, found.refused, found.reason) == (limit, limit + 1, f"too long: {limit + 1}")
    assert len(asked) <= 40


def test_search_needs_two_tries_for_a_known_limit() -> None:
    assert len(searched(4095, 4096)[1]) == 2


def test_search_finds_no_limit_where_nothing_is_accepted() -> None:
    assert searched(10, 4096)[0] is None


def test_search_ends_where_everything_is_accepted() -> None:
    found, asked = searched(10**9, None)
    assert found is not None
    assert found.refused is None
    assert len(asked) <= 40


@pytest.mark.parametrize(
    ("dialect", "known", "open_"),
    [
        ("vllm", {"max_model_len": 4096}, False),
        ("vllm", {}, True),
        ("openai", {"input_limit": 900}, True),  # as probe found it, or as it was guessed: the context is not known
        ("lmdeploy", {"max_model_len": 16384, "input_limit": 10880, "capacity_tokens": 11008}, False),
        ("lmdeploy", {"max_model_len": 16384, "capacity_tokens": 11008, "kv_block_size": 64}, True),
        ("lmdeploy", {"max_model_len": 16384, "capacity_tokens": 16448, "kv_block_size": 64}, True),
        ("lmdeploy", {"max_model_len": 16384, "capacity_tokens": 40000, "kv_block_size": 64}, False),
        ("lmdeploy", {"max_model_len": 16384}, True),
    ],
)
def test_prompt_limit_is_unknown_where_the_kv_cache_may_be_smaller(
    dialect: str, known: dict[str, Any], open_: bool
) -> None:
    facts = Facts("u", "u", dialect, **known)
    assert prompt_limit_unknown(facts) is open_


async def test_longest_prompt_is_exact_after_many_generations() -> None:
    limit = 51_217

    def served(request: httpx.Request) -> httpx.Response:
        tokens = len(json.loads(request.content)["messages"][0]["content"])
        usage = {"prompt_tokens": tokens, "completion_tokens": 1}
        return httpx.Response(200 if tokens <= limit else 400, json={"usage": usage})

    async with discovering(serve=served, generations=30) as asker:
        text = TextFacts(0, (("a", 1),), "a", "usage")
        facts = await longest_prompt(asker, Facts("u", "u", "openai", model="m", text=text))
    assert facts.input_limit == limit
    assert f"{limit} tokens were answered, {limit + 1} not" in facts.sources["input_limit"]


async def test_longest_prompt_of_a_server_without_limit_is_not_known() -> None:
    def served(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"usage": {"prompt_tokens": 9, "completion_tokens": 1}})

    async with discovering(serve=served) as asker:
        text = TextFacts(0, (("a", 1),), "a", "usage")
        facts = await longest_prompt(asker, Facts("u", "u", "openai", model="m", text=text))
    assert facts.input_limit is None
    assert "no limit found" in facts.sources["input_limit"]
