"""Measure the tokens of words by a tokenizer or by usage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts, TextFacts
from loadchaos.core.urls import CHAT_PATH
from loadchaos.server.dialects import DIALECTS, UNKNOWN
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient, DiscoveryResponse
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer
from loadchaos.server.discovery.token_counters import LocalCounter, RenderCounter, TokenCounter, server_counters

# Short common words: with a leading blank each is one token in most tokenizers. The real count is measured.
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they", "at",
    "be", "this", "from", "have", "or", "by", "one", "time", "day", "man", "new", "old", "good", "year", "work",
    "life", "hand", "part", "place", "case", "group", "number", "world", "house", "water", "night", "city", "light",
    "music", "paper", "river", "stone", "table", "image", "picture", "server", "request", "answer", "question",
    "color", "hello",
)  # fmt: skip
_UNITS = ("a", "x", ".", "!", "1")
_QUICK_WORDS = 3
_REPEAT = 8
_USAGE_WORDS = 24
_SINGLE_WORDS = 12


async def measure_text(client: DiscoveryClient, facts: Facts, request: CalibrationRequest) -> Facts:
    """Measure the tokens of the template and of each word; a real request checks them. A local tokenizer comes first;
    if it counts unlike the server, `sources["tokenizer"]` says so. `Facts.text` is None if nothing can be measured.
    """
    if not request.chat:
        return await _without_chat(client, facts, request)
    if request.tokenizer is not None:
        facts = await _by_folder(client, facts, request.tokenizer)
        if facts.text is not None:
            return facts
    return await _by_server(client, facts, quick=request.quick)


async def _by_server(client: DiscoveryClient, facts: Facts, *, quick: bool) -> Facts:
    words = _WORDS[:_QUICK_WORDS] if quick else _WORDS
    text = None
    for counter in server_counters(client, facts):
        if await counter.plain(" the") is not None and (text := await _measure_words(counter, words)) is not None:
            break
    if text is not None:
        return await _check(client, _with(facts, text), quick=quick)
    return await _by_usage(client, facts, quick=quick)


def _with(facts: Facts, text: TextFacts | None, why: str = "not learned") -> Facts:
    return replace(facts, text=text, sources={**facts.sources, "text": why if text is None else text.source})


async def _without_chat(client: DiscoveryClient, facts: Facts, request: CalibrationRequest) -> Facts:
    """Measure words only: what an endpoint adds is measured there (run/endpoint_check.py). A server without a counter
    and chat, such as vLLM with a Whisper model, gets texts of unknown lengths.
    """
    folder = request.tokenizer
    counters = [*server_counters(client, facts), *([LocalCounter(folder)] if folder is not None else [])]
    for counter in counters:
        words, unit = await _costs(counter, _WORDS)
        if unit is None:
            continue
        text, expected = sample(words, unit, seed=1)
        if await counter.plain(text) == expected:
            return _with(facts, TextFacts(0, tuple(words), unit, counter.source))
    try:
        return await _by_server(client, facts, quick=request.quick)
    except NoChatError:
        return _with(facts, None, "no tokenizer counts words, and the server has no chat endpoint")


async def _measure_words(counter: TokenCounter, asked: Sequence[str]) -> TextFacts | None:
    words, unit = await _costs(counter, asked)
    if unit is None:
        return None
    text, expected = sample(words, unit, seed=1)
    chat = await counter.chat(_user(text))
    return None if chat is None else TextFacts(chat - expected, tuple(words), unit, counter.source)


async def _costs(counter: TokenCounter, asked: Sequence[str]) -> tuple[list[tuple[str, int]], str | None]:
    """Words with their token counts, and a unit word of one token, without which they are useless."""

    async def cost(word: str) -> int | None:
        total = await counter.plain(word * _REPEAT)
        return total // _REPEAT if total and total % _REPEAT == 0 else None

    costs = await asyncio.gather(*(cost(f" {w}") for w in asked))
    words = _near([(f" {w}", c) for w, c in zip(asked, costs, strict=True) if c])
    for word in (*(w for w, c in words if c == 1), *(_UNITS if words else ())):
        if (word, 1) in words or await cost(word) == 1:
            return words, word
    return words, None


def _near(words: list[tuple[str, int]]) -> list[tuple[str, int]]:
    cheapest = min((c for _, c in words), default=0)
    return [(w, c) for w, c in words if c <= cheapest + 8]


def sample(words: Sequence[tuple[str, int]], unit: str, seed: int, length: int = 40) -> tuple[str, int]:
    text, tokens = mixture(words, seed, length)
    return text + unit * 3, tokens + 3


def mixture(words: Sequence[tuple[str, int]], seed: int, length: int) -> tuple[str, int]:
    """Draw words with their token counts; returns the text and its tokens."""
    rng = random.Random(seed)
    chosen = [rng.choice(words) for _ in range(length)]
    return "".join(w for w, _ in chosen), sum(n for _, n in chosen)


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def _check(client: DiscoveryClient, facts: Facts, *, quick: bool) -> Facts:
    """Compare the count with the usage of a request. A constant difference belongs to the template, a growing one to
    another tokenizer. /render stands in for a missing usage.
    """
    text = facts.text
    assert text is not None
    sentence, expected = sample(text.words, text.unit, seed=2)
    rendered = None
    renders = RenderCounter.source in DIALECTS.get(facts.dialect, UNKNOWN).prompt_counters
    if renders and text.source != RenderCounter.source:
        rendered = await RenderCounter(client, facts.model).chat(_user(sentence))
    used = (await _first_request(client, facts, sentence)).prompt_tokens
    by = "usage"
    if used is None:
        used, by = rendered, "/render"
    if used is None or used == expected + text.overhead:
        return facts
    if by == "usage" and not quick:
        longer, more = sample(text.words, text.unit, seed=5, length=90)
        if ((await client.generate(facts.model, longer)).prompt_tokens or 0) - used != more - expected:
            return await _by_usage(client, facts, quick=quick)
    if used < expected:
        return _with(facts, None, f"{by} contradicts the tokenizer")
    return _with(facts, replace(text, overhead=used - expected, source=f"{text.source}, corrected by {by}"))


class NoChatError(TargetError):
    """Signal that the server has no chat endpoint."""


async def _first_request(client: DiscoveryClient, facts: Facts, sentence: str) -> DiscoveryResponse:
    answer = await _generate(client, facts, sentence)
    if not answer.is_completion:
        raise TargetError(
            f"the server runs, but its first request failed: {answer.status or 'no answer'} {answer.text[:300]}; "
            "read its log, and check --model and --api-key-env"
        )
    return answer


async def _generate(client: DiscoveryClient, facts: Facts, text: str) -> DiscoveryResponse:
    answer = await client.generate(facts.model, text)
    if answer.lacks_path:
        raise NoChatError(await _no_chat_text(client, answer))
    return answer


async def _no_chat_text(client: DiscoveryClient, answer: DiscoveryResponse) -> str:
    listed = (await client.ask("GET", "/openapi.json")).fields.get("paths")
    paths = listed.items() if isinstance(listed, dict) else ()
    posted = sorted(path for path, methods in paths if path.startswith("/v1/") and "post" in methods)
    has = f"It has {', '.join(posted)}. " if posted else ""
    return (
        f"the server has no chat endpoint: POST {client.api.path(CHAT_PATH)} answered {answer.status} {answer.text[:100]}. "
        f"{has}"
        "--endpoint NAME of `loadchaos run` sends the load to another one"
    )


async def _by_folder(client: DiscoveryClient, facts: Facts, folder: LocalTokenizer) -> Facts:
    """Count words by the local tokenizer. The template is measured by one request, and both are checked by another."""
    counter = LocalCounter(folder)
    words, unit = await _costs(counter, _WORDS)
    if unit is None:
        return _with_note(facts, f"{folder.path} is not usable: none of its words is a single token")
    first, expected = sample(words, unit, seed=1)
    used = (await _first_request(client, facts, first)).prompt_tokens
    if used is None:
        return await _by_folder_alone(client, facts, folder, words, unit)
    second, more = "".join(w for w, _ in words) + first, sum(cost for _, cost in words) + expected  # each of them
    again = (await _first_request(client, facts, second)).prompt_tokens
    if used < expected or again is None or again - used != more - expected:
        there, here = more - expected, None if again is None else again - used
        return _with_note(
            facts,
            f"{folder.path} is not the server's tokenizer: the same words are {there} tokens by it and {here} by usage",
        )
    text = TextFacts(used - expected, tuple(words), unit, LocalCounter.source)
    return _with_note(_with(facts, text), f"{folder.path}, checked by usage")


async def _by_folder_alone(
    client: DiscoveryClient, facts: Facts, folder: LocalTokenizer, words: list[tuple[str, int]], unit: str
) -> Facts:
    """A server without usage: its own count of a chat checks the tokenizer, else its template is used unchecked."""
    sentence, expected = sample(words, unit, seed=1)
    by, whole = f"the template of {folder.path}, not checked: the server reports no usage", folder.chat(_user(sentence))
    for counter in server_counters(client, facts):
        if (counted := await counter.chat(_user(sentence))) is not None:
            by, whole = f"{folder.path}, checked by /{counter.source}", counted
            break
    if whole is None or whole < expected:
        return _with_note(facts, f"{folder.path}: the server reports no usage, and its chat template is not known")
    text = TextFacts(whole - expected, tuple(words), unit, LocalCounter.source)
    return _with_note(_with(facts, text), by)


def _with_note(facts: Facts, text: str) -> Facts:
    return replace(facts, sources={**facts.sources, "tokenizer": text})


async def _by_usage(client: DiscoveryClient, facts: Facts, *, quick: bool) -> Facts:
    """Two answers are enough if all words cost the same, and a third checks it. Else some words are measured one by
    one.
    """

    async def used(text: str) -> int | None:
        return (await _generate(client, facts, text)).prompt_tokens

    words = [f" {w}" for w in _WORDS[:_USAGE_WORDS]]
    few, many = await used("".join(words)), await used("".join(words * 3))
    if few is None or many is None or many <= few:
        return _with(facts, None)  # a usage that does not grow with the prompt is no prompt count
    cost, odd = divmod(many - few, 2 * len(words))
    if not odd and few >= cost * len(words):
        # The costs are equal on average; a single different word shows in the check.
        unit = words[0] if cost == 1 else "a"
        text = TextFacts(few - cost * len(words), tuple((w, cost) for w in words), unit, "usage")
        if quick:  # it came from generations, so it needs no other check
            return _with(facts, text)
        sentence, expected = sample(text.words, text.unit, seed=2)
        if (await _first_request(client, facts, sentence)).prompt_tokens == expected + text.overhead:
            return _with(facts, text)
    return _with(facts, None if quick else await _one_by_one(client, facts, words[:_SINGLE_WORDS]))


async def _one_by_one(client: DiscoveryClient, facts: Facts, words: Sequence[str]) -> TextFacts | None:
    """Measure each word by its own answer, then check a mixture. Returns None if it does not agree."""

    async def used(text: str) -> int:
        return (await client.generate(facts.model, text)).prompt_tokens or 0

    # The overhead does not depend on the length of a text, so a text twice as long shows it.
    first = words[0] * _REPEAT
    once, twice = await used(first), await used(first * 2)
    overhead = 2 * once - twice
    found = []
    for word in words:
        cost, odd = divmod((once if word == words[0] else await used(word * _REPEAT)) - overhead, _REPEAT)
        if cost > 0 and not odd:
            found.append((word, cost))
    found = _near(found)
    unit = next((word for word, cost in found if cost == 1), _UNITS[0])
    if not found or (unit == _UNITS[0] and await used(first + unit * _REPEAT) != once + _REPEAT):
        return None
    sentence, expected = sample(found, unit, seed=2)
    agrees = await used(sentence) == expected + overhead
    return TextFacts(overhead, tuple(found), unit, "usage") if agrees else None
