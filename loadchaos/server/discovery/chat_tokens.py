"""What only some traffic needs to know before the load: what a turn of a conversation costs, and words of other scripts.

Everything is measured on the server and then checked on mixtures: words that melt into each other when they stand side
by side, and templates that treat turns unequally, are left out, so that a planned length is exact or said to be unknown.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadchaos.core.model import Facts, TextFacts
from loadchaos.server.discovery.client import DiscoveryClient
from loadchaos.server.discovery.local_tokenizer import Folder
from loadchaos.server.discovery.token_counters import ByFolder, Counter, counter_used, usage_of

_REPEAT = 8
_SAMPLES = 3
# Each with its leading blank, which keeps most tokenizers from joining neighbours.
SCRIPTS: Mapping[str, Sequence[str]] = {
    "cjk": (
        "你好", "世界", "服务器", "图像", "请求", "模型", "时间", "问题", "天气", "音乐", "东京", "ありがとう", "こんにちは",
        "日本語", "カメラ", "데이터", "서버", "안녕하세요", "漢字", "中文",
    ),
    "emoji": (
        "🙂", "🚀", "🔥", "👍", "🎉", "🌍", "🐍", "❤️", "👩‍💻", "🇩🇪", "🏳️‍🌈", "😂", "🤖", "📈", "✅", "⚠️",
    ),
    "code": (
        "def f(x):", "return x", "if n > 0:", "for i in range(10):", "import os", "{\"a\": [1, 2]}", "x += 1", "print(s)",
        "SELECT * FROM t;", "</div>", "fn main()", "a[i] = b", "while True:", "// todo", "#include <stdio.h>", "=> null",
    ),
}  # fmt: skip


async def with_chat_tokens(
    asker: DiscoveryClient, facts: Facts, *, turns: bool, scripts: Sequence[str], tokenizer: Folder | None = None
) -> Facts:
    """Facts with what `turns` and `scripts` ask for, as far as this server lets it be known; a handful of questions.

    Counted by what the facts' own words were counted by, which was checked; `tokenizer` is the folder where that was it.
    """
    text = facts.text
    if text is None:
        return facts
    counter = counter_used(asker, facts, tokenizer)
    if turns:
        text = replace(text, turn_overhead=await _turn_overhead(asker, facts, text, counter))
    if counter is None:
        return replace(facts, text=text)
    found = [(name, words) for name in scripts if (words := await _script(counter, text, SCRIPTS[name]))]
    return replace(facts, text=replace(text, scripts=tuple(found)))


# --- turns --------------------------------------------------------------------------------------------------------------


async def _turn_overhead(asker: DiscoveryClient, facts: Facts, text: TextFacts, counter: Counter | None) -> int | None:
    """Tokens a question and its answer add beside their words; None where turns do not add up evenly.

    Thinking templates (Qwen3) drop what is between marks in earlier turns; made-up answers hold none.
    """
    counts = await asyncio.gather(*(_conversation(asker, facts, text, n, counter) for n in (0, 1, 2, 4)))
    known = [n for n in counts if n is not None]
    if len(known) < len(counts):
        return None
    none, one, two, four = known
    each = one - none
    return each if each >= 0 and two == none + 2 * each and four == none + 4 * each else None


async def _conversation(
    asker: DiscoveryClient, facts: Facts, text: TextFacts, turns: int, counter: Counter | None
) -> int | None:
    """Tokens of the template in a conversation of so many earlier turns."""
    messages, words = [], 0
    for i in range(2 * turns + 1):
        said, tokens = _mixture(text.words, seed=i, length=6)
        words += tokens
        messages.append({"role": "assistant" if i % 2 else "user", "content": said})
    # A folder's template need not be the server's, and LMDeploy's encoder takes one message: then an answer tells.
    counted = None if counter is None or isinstance(counter, ByFolder) else await counter.chat(messages)
    if counted is None:
        body = {"model": facts.model, "messages": messages, "max_tokens": 1, "temperature": 0}
        counted = usage_of(await asker.post("/v1/chat/completions", body))
    return None if counted is None else counted - words


# --- scripts ------------------------------------------------------------------------------------------------------------


async def _script(counter: Counter, text: TextFacts, words: Sequence[str]) -> tuple[tuple[str, int], ...] | None:
    """Words with their cost, those that keep it in any neighbourhood; None where too few do."""
    repeated = await asyncio.gather(*(counter.plain(f" {w}" * _REPEAT) for w in words))
    found = [(f" {w}", n // _REPEAT) for w, n in zip(words, repeated, strict=True) if n and n % _REPEAT == 0]
    if len(found) < 4:
        return None
    found = await _keep_their_cost(counter, text, found)
    samples = (
        [_mixture([*found, (text.unit, 1)], seed=s, length=60) for s in range(_SAMPLES)] if len(found) >= 4 else []
    )
    counts = await asyncio.gather(*(counter.plain(said) for said, _ in samples))
    right = samples and all(n == tokens for n, (_, tokens) in zip(counts, samples, strict=True))
    return tuple(found) if right else None


async def _keep_their_cost(counter: Counter, text: TextFacts, words: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those words whose cost is the same between any others: each is put between all of them once."""
    around = "".join(w for w, _ in words)
    base = await counter.plain(around + text.unit)
    if base is None:
        return []
    counts = await asyncio.gather(
        *(counter.plain("".join(w + word for w, _ in words) + text.unit) for word, _ in words)
    )
    return [pair for pair, n in zip(words, counts, strict=True) if n == base + pair[1] * len(words)]


def _mixture(words: Sequence[tuple[str, int]], seed: int, length: int) -> tuple[str, int]:
    rng = random.Random(seed)
    chosen = [rng.choice(words) for _ in range(length)]
    return "".join(w for w, _ in chosen), sum(n for _, n in chosen)
