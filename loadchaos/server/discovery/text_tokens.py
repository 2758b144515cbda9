"""How many tokens words cost on this server: by its tokenizer where it has one or a folder has it, else by usage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts, TextFacts
from loadchaos.server.dialects import DIALECTS, UNKNOWN
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient, DiscoveryResponse
from loadchaos.server.discovery.local_tokenizer import Folder
from loadchaos.server.discovery.token_counters import ByFolder, ByRender, Counter, server_counters, usage_of

# Short common words: most tokenizers have each, with its leading blank, as one token. What they really cost is measured.
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


async def learn_text(asker: DiscoveryClient, facts: Facts, wanted: CalibrationRequest) -> Facts:
    """What the template and each word cost, checked by a real request; `text` None where it cannot be known.

    A folder that the user names comes first, for whoever names one means it; one that counts unlike the server is told
    (`sources["tokenizer"]`) and left. `quick` asks for a few words only.
    """
    if wanted.tokenizer is not None:
        facts = await _by_folder(asker, facts, wanted.tokenizer)
        if facts.text is not None:
            return facts
    words = _WORDS[:_QUICK_WORDS] if wanted.quick else _WORDS
    text = None
    for counter in server_counters(asker, facts):
        if await counter.plain(" the") is not None and (text := await _measure_words(counter, words)) is not None:
            break
    if text is not None:
        return await _check(asker, _with(facts, text), quick=wanted.quick)
    return await _by_usage(asker, facts, quick=wanted.quick)


def _with(facts: Facts, text: TextFacts | None, why: str = "not learned") -> Facts:
    return replace(facts, text=text, sources={**facts.sources, "text": why if text is None else text.source})


async def _measure_words(counter: Counter, asked: Sequence[str]) -> TextFacts | None:
    words, unit = await _costs(counter, asked)
    if unit is None:
        return None
    text, expected = sample(words, unit, seed=1)
    chat = await counter.chat(_user(text))
    return None if chat is None else TextFacts(chat - expected, tuple(words), unit, counter.source)


async def _costs(counter: Counter, asked: Sequence[str]) -> tuple[list[tuple[str, int]], str | None]:
    """Words with what each costs, and one that costs a single token (None: there is none, and the words are no use)."""

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
    """Without those that cost far more than the cheapest."""
    cheapest = min((c for _, c in words), default=0)
    return [(w, c) for w, c in words if c <= cheapest + 8]


def sample(words: Sequence[tuple[str, int]], unit: str, seed: int, length: int = 40) -> tuple[str, int]:
    """A text of these words, and the tokens it must have."""
    rng = random.Random(seed)
    chosen = [rng.choice(words) for _ in range(length)]
    return "".join(w for w, _ in chosen) + unit * 3, sum(c for _, c in chosen) + 3


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# --- checked by the server itself -------------------------------------------------------------------------------------


async def _check(asker: DiscoveryClient, facts: Facts, *, quick: bool) -> Facts:
    """One real request: does usage agree with the count? A constant difference is the template's, and is put right.

    Where /render is there, it has its say, too: it knows the whole prompt, and stands in for a usage that is not told.
    A difference that grows with the text is another tokenizer's: then usage alone tells.
    """
    text = facts.text
    assert text is not None
    said, expected = sample(text.words, text.unit, seed=2)
    rendered = None
    renders = ByRender.source in DIALECTS.get(facts.dialect, UNKNOWN).prompt_counters
    if renders and text.source != ByRender.source:
        rendered = await ByRender(asker, facts.model).chat(_user(said))
    used = usage_of(await _first_request(asker, facts, said))
    by = "usage"
    if used is None:
        used, by = rendered, "/render"
    if used is None or used == expected + text.overhead:
        return facts
    if by == "usage" and not quick:
        longer, more = sample(text.words, text.unit, seed=5, length=90)
        if (usage_of(await asker.generate(facts.model, longer)) or 0) - used != more - expected:
            return await _by_usage(asker, facts, quick=quick)
    if used < expected:
        return _with(facts, None, f"{by} contradicts the tokenizer")
    return _with(facts, replace(text, overhead=used - expected, source=f"{text.source}, put right by {by}"))


async def _first_request(asker: DiscoveryClient, facts: Facts, said: str) -> DiscoveryResponse:
    answer = await asker.generate(facts.model, said)
    if answer.status != 200 or not isinstance(answer.json(), dict):
        raise TargetError(
            f"the server is up, but its first request failed: {answer.status or 'no answer'} {answer.text[:300]}; "
            "its log says why, --model and --api-key-env say what is asked for"
        )
    return answer


async def _by_folder(asker: DiscoveryClient, facts: Facts, folder: Folder) -> Facts:
    """Words by the folder, the template's share by one real request, and another one to see that both agree."""
    counter = ByFolder(folder)
    words, unit = await _costs(counter, _WORDS)
    if unit is None:
        return _told(facts, f"{folder.path} has no use here: none of its words is a single token")
    first, expected = sample(words, unit, seed=1)
    used = usage_of(await _first_request(asker, facts, first))
    if used is None:
        return await _by_folder_alone(asker, facts, folder, words, unit)
    second, more = "".join(w for w, _ in words) + first, sum(cost for _, cost in words) + expected  # each of them
    again = usage_of(await _first_request(asker, facts, second))
    if used < expected or again is None or again - used != more - expected:
        there, here = more - expected, None if again is None else again - used
        return _told(
            facts,
            f"{folder.path} is not the server's: the same words are {there} tokens by the folder and {here} by usage",
        )
    text = TextFacts(used - expected, tuple(words), unit, ByFolder.source)
    return _told(_with(facts, text), f"{folder.path}, checked by usage")


async def _by_folder_alone(
    asker: DiscoveryClient, facts: Facts, folder: Folder, words: list[tuple[str, int]], unit: str
) -> Facts:
    """The server tells no usage: its own count of a chat is the check, and where it has none the folder's template."""
    said, expected = sample(words, unit, seed=1)
    by, whole = (
        f"the template of {folder.path}, checked by nothing: the server tells no usage",
        folder.chat(_user(said)),
    )
    for counter in server_counters(asker, facts):
        if (counted := await counter.chat(_user(said))) is not None:
            by, whole = f"{folder.path}, checked by /{counter.source}", counted
            break
    if whole is None or whole < expected:
        return _told(facts, f"{folder.path}: the server tells no usage, and what its chat template adds is not known")
    text = TextFacts(whole - expected, tuple(words), unit, ByFolder.source)
    return _told(_with(facts, text), by)


def _told(facts: Facts, text: str) -> Facts:
    return replace(facts, sources={**facts.sources, "tokenizer": text})


# --- by usage alone ---------------------------------------------------------------------------------------------------


async def _by_usage(asker: DiscoveryClient, facts: Facts, *, quick: bool) -> Facts:
    """No tokenizer: a few one-token answers tell what words and template cost.

    Two are enough where all words cost the same, as most tokenizers have it, and a third one checks that; else some words
    are measured one by one.
    """

    async def used(text: str) -> int | None:
        return usage_of(await asker.generate(facts.model, text))

    words = [f" {w}" for w in _WORDS[:_USAGE_WORDS]]
    few, many = await used("".join(words)), await used("".join(words * 3))
    if few is None or many is None or many <= few:
        return _with(facts, None)  # a usage that does not grow with the prompt counts something else
    cost, odd = divmod(many - few, 2 * len(words))
    if not odd and few >= cost * len(words):
        # Costs are equal on average only: a single odd word shows in the check.
        unit = words[0] if cost == 1 else "a"
        text = TextFacts(few - cost * len(words), tuple((w, cost) for w in words), unit, "usage")
        if quick:  # what generations told needs no other
            return _with(facts, text)
        said, expected = sample(text.words, text.unit, seed=2)
        if usage_of(await _first_request(asker, facts, said)) == expected + text.overhead:
            return _with(facts, text)
    return _with(facts, None if quick else await _one_by_one(asker, facts, words[:_SINGLE_WORDS]))


async def _one_by_one(asker: DiscoveryClient, facts: Facts, words: Sequence[str]) -> TextFacts | None:
    """Each word by an answer of its own, then a mixture of them as the check; None where that does not agree."""

    async def used(text: str) -> int:
        return usage_of(await asker.generate(facts.model, text)) or 0

    # What stands around a text is the same however long it is: a text twice as long tells it.
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
    said, expected = sample(found, unit, seed=2)
    agrees = await used(said) == expected + overhead
    return TextFacts(overhead, tuple(found), unit, "usage") if agrees else None
