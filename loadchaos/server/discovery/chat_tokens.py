"""Measure the tokens of conversation turns and of other scripts, where the traffic needs them. Words whose tokens merge
with their neighbours, and templates that treat turns unequally, are left out: a planned length is exact or unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadchaos.core.model import Facts, TextFacts
from loadchaos.server.discovery.client import DiscoveryClient
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer
from loadchaos.server.discovery.text_tokens import mixture
from loadchaos.server.discovery.token_counters import LocalCounter, TokenCounter, counter_used

_REPEAT = 8
_SAMPLES = 3
# Each gets a leading blank, which keeps most tokenizers from merging neighbours.
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
    client: DiscoveryClient,
    facts: Facts,
    *,
    turns: bool,
    scripts: Sequence[str],
    tokenizer: LocalTokenizer | None = None,
) -> Facts:
    """Add the token counts of turns and `scripts` (names of SCRIPTS), as far as the server allows to measure them."""
    text = facts.text
    if text is None:
        return facts
    counter = counter_used(client, facts, tokenizer)
    if turns:
        text = replace(text, turn_overhead=await _turn_overhead(client, facts, text, counter))
    if counter is None:
        return replace(facts, text=text)
    found = [(name, words) for name in scripts if (words := await _script(counter, text, SCRIPTS[name]))]
    return replace(facts, text=replace(text, scripts=tuple(found)))


async def _turn_overhead(
    client: DiscoveryClient, facts: Facts, text: TextFacts, counter: TokenCounter | None
) -> int | None:
    """Tokens that one turn adds beside its words; None if turns do not cost the same."""
    counts = await asyncio.gather(*(_conversation(client, facts, text, n, counter) for n in (0, 1, 2, 4)))
    known = [n for n in counts if n is not None]
    if len(known) < len(counts):
        return None
    none, one, two, four = known
    each = one - none
    return each if each >= 0 and two == none + 2 * each and four == none + 4 * each else None


async def _conversation(
    client: DiscoveryClient, facts: Facts, text: TextFacts, turns: int, counter: TokenCounter | None
) -> int | None:
    messages, words = [], 0
    for i in range(2 * turns + 1):
        sentence, tokens = mixture(text.words, seed=i, length=6)
        words += tokens
        messages.append({"role": "assistant" if i % 2 else "user", "content": sentence})
    # A local template may differ from the server's, and LMDeploy's encoder takes one message: then usage tells.
    counted = None if counter is None or isinstance(counter, LocalCounter) else await counter.chat(messages)
    if counted is None:
        counted = (await client.chat(facts.model, None, messages=messages)).prompt_tokens
    return None if counted is None else counted - words


async def _script(counter: TokenCounter, text: TextFacts, words: Sequence[str]) -> tuple[tuple[str, int], ...] | None:
    """Words whose token count does not depend on their neighbours. Returns None if there are fewer than four."""
    repeated = await asyncio.gather(*(counter.plain(f" {w}" * _REPEAT) for w in words))
    found = [(f" {w}", n // _REPEAT) for w, n in zip(words, repeated, strict=True) if n and n % _REPEAT == 0]
    if len(found) < 4:
        return None
    found = await _keep_their_cost(counter, text, found)
    samples = [mixture([*found, (text.unit, 1)], seed=s, length=60) for s in range(_SAMPLES)] if len(found) >= 4 else []
    counts = await asyncio.gather(*(counter.plain(sentence) for sentence, _ in samples))
    right = samples and all(n == tokens for n, (_, tokens) in zip(counts, samples, strict=True))
    return tuple(found) if right else None


async def _keep_their_cost(
    counter: TokenCounter, text: TextFacts, words: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Keep the words whose token count is the same between any others. Each is put between all of them once."""
    around = "".join(w for w, _ in words)
    base = await counter.plain(around + text.unit)
    if base is None:
        return []
    counts = await asyncio.gather(
        *(counter.plain("".join(w + word for w, _ in words) + text.unit) for word, _ in words)
    )
    return [pair for pair, n in zip(words, counts, strict=True) if n == base + pair[1] * len(words)]
