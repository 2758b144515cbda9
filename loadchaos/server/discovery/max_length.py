"""Search for the longest prompt a server accepts. It takes at most 40 generations of one token each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from loadchaos.core.model import Facts, TextFacts
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.discovery.client import DiscoveryClient

MOST_GENERATIONS = 40
_FIRST_GUESS = 1024
_HIGHEST = 4_000_000


@dataclass(frozen=True)
class LengthLimit:
    """Longest accepted and shortest refused prompt, in tokens. `reason` is the server's."""

    longest: int
    refused: int | None = None
    reason: str = ""


def prompt_limit_unknown(facts: Facts) -> bool:
    """True if the longest prompt is not known. The context length is missing, or the KV cache may not hold it."""
    if facts.max_model_len is None:
        return True
    dialect = DIALECTS.get(facts.dialect)
    if facts.input_limit is not None or dialect is None or dialect.context_fits:
        return False
    # One or two blocks are reserved, depending on the version; far above the context length it does not matter.
    kept = 2 * (facts.kv_block_size or 0)
    return facts.capacity_tokens is None or facts.capacity_tokens - kept < facts.max_model_len


async def longest_prompt(client: DiscoveryClient, facts: Facts) -> Facts:
    """Search `input_limit`. Such prompts can break a server near its limit, so the caller needs authorisation."""
    text = facts.text
    if text is None:
        return facts

    async def takes(tokens: int) -> str | None:
        answer = await client.generate(facts.model, _prompt(text, tokens))
        # LMDeploy up to 0.15 gives 200 without a token to a prompt that is too long.
        if answer.is_completion and answer.answer is not None and answer.answer.completion_tokens != 0:
            return None
        return f"{answer.status} {answer.text[:160]}".strip()

    limits = [n for n in (facts.max_model_len, facts.capacity_tokens) if n is not None]
    known = facts.input_limit or min(limits, default=None)
    found = await search(takes, text.overhead + 1, known, MOST_GENERATIONS)
    if found is None:
        return replace(facts, sources={**facts.sources, "input_limit": "no prompt was answered"})
    if found.refused is None:  # the longest prompt of the search is a limit of ours
        source = f"no limit found: prompts of up to {found.longest} tokens were answered"
        return replace(facts, sources={**facts.sources, "input_limit": source})
    source = f"{found.longest} tokens were answered, {found.refused} not: {found.reason}"
    return replace(facts, input_limit=found.longest, sources={**facts.sources, "input_limit": source})


def _prompt(text: TextFacts, tokens: int) -> str:
    return text.unit * max(1, tokens - text.overhead)


async def search(
    takes: Callable[[int], Awaitable[str | None]], least: int, known: int | None, most: int
) -> LengthLimit | None:
    """Search the boundary between accepted and refused lengths. `takes` returns the reason of a refusal; without
    `known`, a likely limit, the length doubles. None if not even `least` is accepted.
    """
    low, high, reason, tried = least - 1, None, "", 0
    candidates = [n for n in (known - 1, known, known + 1) if n >= least] if known is not None else []
    guess = _FIRST_GUESS
    while tried < most and (high is None or high - low > 1):
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
        tried += 1
        if why is None:
            low = length
        else:
            high, reason = length, why
    return LengthLimit(low, high, reason) if low >= least else None
