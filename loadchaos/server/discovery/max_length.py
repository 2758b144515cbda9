"""`probe --lengths`: the longest prompt a server really takes, found by asking; at most 40 generations of one token each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from loadchaos.core.model import Facts, TextFacts
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.discovery.client import DiscoveryClient, DiscoveryResponse

MOST_GENERATIONS = 40
_FIRST_GUESS = 1024
_HIGHEST = 4_000_000


@dataclass(frozen=True)
class LengthLimit:
    """`longest` prompt tokens that were answered; `refused` the shortest that was not, and what the server said."""

    longest: int
    refused: int | None = None
    said: str = ""


def open_question(facts: Facts) -> bool:
    """Whether the server told too little to know its longest prompt: no context, or one its KV cache may not hold."""
    if facts.max_model_len is None:
        return True
    dialect = DIALECTS.get(facts.dialect)
    if facts.input_limit is not None or dialect is None or dialect.context_fits:
        return False
    # A block or two are kept back, how many depends on the version (calibrate): far above the context it does not matter.
    kept = 2 * (facts.kv_block_size or 0)
    return facts.capacity_tokens is None or facts.capacity_tokens - kept < facts.max_model_len


async def longest_prompt(asker: DiscoveryClient, facts: Facts) -> Facts:
    """The facts with the found limit in `input_limit`; as they were where prompts cannot be counted exactly.

    Such prompts are an attack on a server that breaks near its limit: the caller asks for authorisation.
    """
    text = facts.text
    if text is None:
        return facts

    async def takes(tokens: int) -> str | None:
        answer = await asker.generate(facts.model, _prompt(text, tokens))
        if answer.status == 200 and _has_token(answer):
            return None
        return f"{answer.status} {answer.text[:160]}".strip()

    told = [n for n in (facts.max_model_len, facts.capacity_tokens) if n is not None]
    known = facts.input_limit or min(told, default=None)
    found = await search(takes, text.overhead + 1, known, MOST_GENERATIONS)
    if found is None:
        return replace(facts, sources={**facts.sources, "input_limit": "no prompt at all was answered"})
    source = f"asking with up to {found.longest} tokens"
    if found.refused is not None:
        source = f"{found.longest} tokens were answered, {found.refused} not: {found.said}"
    return replace(facts, input_limit=found.longest, sources={**facts.sources, "input_limit": source})


def _has_token(answer: DiscoveryResponse) -> bool:
    """LMDeploy up to 0.15 answers what is too long with 200 and nothing."""
    data = answer.json()
    usage = data.get("usage") if isinstance(data, dict) else None
    return not isinstance(usage, dict) or usage.get("completion_tokens") != 0


def _prompt(text: TextFacts, tokens: int) -> str:
    """Exactly `tokens` with the template around it: the unit costs one token each time."""
    return text.unit * max(1, tokens - text.overhead)


async def search(
    takes: Callable[[int], Awaitable[str | None]], least: int, known: int | None, most: int
) -> LengthLimit | None:
    """The boundary between lengths that are taken (None) and those that are not (why), in at most `most` questions.

    It begins around `known`, where there is such a figure: right at it or one below is where most servers stop. Without
    one it doubles. None when not even `least` is taken.
    """
    low, high, said, asked = least - 1, None, "", 0
    candidates = [n for n in (known - 1, known, known + 1) if n >= least] if known is not None else []
    guess = _FIRST_GUESS
    while asked < most and (high is None or high - low > 1):
        inside = [n for n in candidates if low < n < (high or n + 1)]
        if inside:
            length = inside[0]
        elif high is None:
            guess = max(guess, low + 1)
            length, guess = guess, guess * 2
            if length > _HIGHEST:
                break
        else:
            length = (low + high) // 2
        why = await takes(length)
        asked += 1
        if why is None:
            low = length
        else:
            high, said = length, why
    return LengthLimit(low, high, said) if low >= least else None
