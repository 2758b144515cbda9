"""How many tokens words and images cost on this server: by its tokenizer where it has one, else by usage."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadchaos.asker import Answer, Asker, Wanted
from loadchaos.dialects import DIALECTS
from loadchaos.errors import TargetError
from loadchaos.model import Facts, TextFacts

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
_QUICK_GENERATIONS = 3
_REPEAT = 8


async def text_facts(asker: Asker, facts: Facts, *, quick: bool) -> TextFacts | None:
    """What the template and each word cost, by the tokenizer or by usage; None where neither can be had.

    `quick` asks for a few words only.
    """
    words = _WORDS[:_QUICK_WORDS] if quick else _WORDS
    dialect = DIALECTS[facts.dialect]
    counters: list[_CountByTokenize | _CountByEncode] = [_CountByTokenize(asker, facts.model), _CountByEncode(asker)]
    if dialect.name == "lmdeploy":
        counters.reverse()
    for counter in counters:
        if await counter.plain(" the") is None:
            continue
        found = await _measure_words(counter, words)
        if found is not None:
            return found
    return await _measure_by_usage(asker, facts.model)


class _CountByTokenize:
    """vLLM's POST /tokenize, with a prompt or with messages (template included)."""

    source = "tokenize"

    def __init__(self, asker: Asker, model: str) -> None:
        self._asker, self._model = asker, model

    async def plain(self, text: str) -> int | None:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return _count(await self._asker.ask("POST", "/tokenize", body, admin=True))

    async def chat(self, text: str) -> int | None:
        body = {"model": self._model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        return _count(await self._asker.ask("POST", "/tokenize", body, admin=True))

    async def completion(self, text: str) -> int | None:
        body = {"model": self._model, "prompt": text}
        return _count(await self._asker.ask("POST", "/tokenize", body, admin=True))


class _CountByEncode:
    """LMDeploy's POST /v1/encode; `do_preprocess` applies the chat template."""

    source = "encode"

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def plain(self, text: str) -> int | None:
        return await self._encode(text, preprocess=False, bos=False)

    async def chat(self, text: str) -> int | None:
        return await self._encode(text, preprocess=True, bos=True)

    async def completion(self, text: str) -> int | None:
        return await self._encode(text, preprocess=False, bos=True)

    async def _encode(self, text: str, *, preprocess: bool, bos: bool) -> int | None:
        body = {"input": text, "do_preprocess": preprocess, "add_bos": bos}
        return _count(await self._asker.ask("POST", "/v1/encode", body))


def _count(answer: Answer) -> int | None:
    data = answer.json() if answer.status == 200 else None
    if not isinstance(data, dict):
        return None
    value = data.get("count", data.get("length"))
    return value if isinstance(value, int) else None


async def _measure_words(counter: _CountByTokenize | _CountByEncode, asked: Sequence[str]) -> TextFacts | None:
    async def cost(word: str) -> int | None:
        total = await counter.plain(word * _REPEAT)
        return total // _REPEAT if total and total % _REPEAT == 0 else None

    costs = await asyncio.gather(*(cost(f" {w}") for w in asked))
    words = [(f" {w}", c) for w, c in zip(asked, costs, strict=True) if c]
    cheapest = min((c for _, c in words), default=0)
    words = [(w, c) for w, c in words if c <= cheapest + 8]
    units = [w for w, c in words if c == 1]
    for unit in _UNITS if words and not units else ():
        if await cost(unit) == 1:
            units.append(unit)
            break
    if not words or not units:
        return None
    text, expected = _sample(words, units[0], seed=1)
    chat, completion = await counter.chat(text), await counter.completion(text)
    if chat is None:
        return None
    return TextFacts(
        overhead=chat - expected, words=tuple(words), unit=units[0], source=counter.source,
        completions_overhead=(completion or expected) - expected,
    )  # fmt: skip


async def _measure_by_usage(asker: Asker, model: str) -> TextFacts | None:
    """No tokenizer endpoint: three one-token generations tell the template's overhead and the cost of one word."""

    async def used(text: str) -> int | None:
        data = (await asker.generate(model, text)).json()
        usage = data.get("usage") if isinstance(data, dict) else None
        value = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return value if isinstance(value, int) else None

    words = [f" {w}" for w in _WORDS[:24]]
    few, many = await used("".join(words)), await used("".join(words * 3))
    if few is None or many is None or (many - few) % (2 * len(words)):
        return None
    cost = (many - few) // (2 * len(words))
    if cost < 1 or few < cost * len(words):
        return None  # a usage that does not grow with the prompt counts something else
    # Costs are equal on average only; a single odd word would show in the check that follows.
    unit = words[0] if cost == 1 else "a"
    return TextFacts(overhead=few - cost * len(words), words=tuple((w, cost) for w in words), unit=unit, source="usage")


def _sample(words: Sequence[tuple[str, int]], unit: str, seed: int, length: int = 40) -> tuple[str, int]:
    rng = random.Random(seed)
    chosen = [rng.choice(words) for _ in range(length)]
    return "".join(w for w, _ in chosen) + unit * 3, sum(c for _, c in chosen) + 3


async def check_text(asker: Asker, facts: Facts) -> Facts:
    """One real request: does usage agree with the count? A constant difference is the template's, and is put right."""
    text = facts.text
    if text is None:
        return facts
    sample, expected = _sample(text.words, text.unit, seed=2)
    answer = await asker.generate(facts.model, sample)
    data = answer.json()
    if answer.status != 200 or not isinstance(data, dict):
        raise TargetError(
            f"the server is up, but its first request failed: {answer.status or 'no answer'} {answer.text[:300]}; "
            "its log says why, --model and --api-key-env say what is asked for"
        )
    used = (data.get("usage") or {}).get("prompt_tokens")
    if not isinstance(used, int) or used == expected + text.overhead:
        return facts
    if used < expected:
        return replace(facts, text=None, sources={**facts.sources, "text": "usage contradicts the tokenizer"})
    fixed = replace(text, overhead=used - expected, source=f"{text.source}, put right by usage")
    return replace(facts, text=fixed)


# --- images ---------------------------------------------------------------------------------------------------------


def plain_png(width: int, height: int) -> str:
    """A data URL of a one-colour PNG: what an image of that size costs does not depend on what it shows."""
    from PIL import Image  # only where images are measured

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _image_content(text: str, urls: Sequence[str]) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*images, {"type": "text", "text": text}]


async def image_facts(asker: Asker, facts: Facts, wanted: Wanted) -> Facts:
    """Whether images are taken, how many a request may have, and what one of each size costs in prompt tokens."""
    sources = dict(facts.sources)
    tokens: dict[str, int] = {}
    if facts.text is None:
        return facts
    sample, expected = _sample(facts.text.words, facts.text.unit, seed=3, length=8)
    for width, height in dict.fromkeys(wanted.image_sizes):
        answer = await asker.generate(facts.model, _image_content(sample, [plain_png(width, height)]))
        data = answer.json()
        if answer.status == 200 and isinstance(data, dict):
            used = (data.get("usage") or {}).get("prompt_tokens")
            if isinstance(used, int):
                tokens[f"{width}x{height}"] = used - expected - facts.text.overhead
                sources["image_tokens"] = "usage"
            continue
        if answer.status in (400, 415, 422, 501) and not tokens:
            said = f"refused with {answer.status}: {answer.text[:160]}"
            if "context length" in answer.text or "max_model_len" in answer.text:
                sources["image_tokens"] = said  # too large for the context, which says nothing against images
                continue
            return replace(facts, images=False, sources={**sources, "images": said})
    if not tokens:
        return replace(facts, sources=sources)
    # LMDeploy's text-only models drop images silently in some eras: an image that costs nothing was not looked at.
    if all(cost <= 0 for cost in tokens.values()):
        sources["images"] = "an image adds no prompt token: the server drops it"
        return replace(facts, images=False, sources=sources)
    facts = replace(facts, images=True, image_tokens=tokens, sources={**sources, "images": "a request with one"})
    if wanted.images_per_request > 1 and not (wanted.quick and asker.generations >= _QUICK_GENERATIONS):
        facts = await _max_images(asker, facts, wanted, sample)
    return facts


async def _max_images(asker: Asker, facts: Facts, wanted: Wanted, sample: str) -> Facts:
    """The limit of images a prompt, taken from the refusal's own words; the images asked with are small."""
    urls = [plain_png(32, 32)] * wanted.images_per_request
    answer = await asker.generate(facts.model, _image_content(sample, urls))
    if answer.status == 200:
        return replace(facts, sources={**facts.sources, "max_images": f"a request with {len(urls)} was answered"})
    limit = re.search(r"[Aa]t most (\d+) image", answer.text)
    if limit is None:
        return facts
    sources = {**facts.sources, "max_images": "the server's refusal of more"}
    return replace(facts, max_images=int(limit[1]), sources=sources)


async def video_facts(asker: Asker, facts: Facts, wanted: Wanted) -> Facts:
    """Whether videos are taken, and what one of each kind costs in prompt tokens."""
    if facts.text is None:
        return facts
    sample, expected = _sample(facts.text.words, facts.text.unit, seed=4, length=8)
    tokens: dict[str, int] = {}
    for kind, part in wanted.videos:
        content = [json.loads(part.rstrip(b",")), {"type": "text", "text": sample}]
        answer = await asker.generate(facts.model, content)
        data = answer.json()
        used = (data.get("usage") or {}).get("prompt_tokens") if isinstance(data, dict) else None
        if answer.status == 200 and isinstance(used, int):
            tokens[kind] = used - expected - facts.text.overhead
        elif not tokens:
            said = f"refused with {answer.status}: {answer.text[:160]}"
            return replace(facts, videos=False, sources={**facts.sources, "videos": said})
    if all(cost <= 0 for cost in tokens.values()):
        said = "a video adds no prompt token: the server drops it"
        return replace(facts, videos=False, sources={**facts.sources, "videos": said})
    return replace(facts, videos=True, video_tokens=tokens, sources={**facts.sources, "videos": "a request with one"})
