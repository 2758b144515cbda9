"""Prompts of an exact number of tokens, as the server counts them: words of measured cost, in a new order each time."""

from __future__ import annotations

import functools
from bisect import bisect_right
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator

from loadchaos import draws
from loadchaos.model import Facts, Step, TextFacts
from loadchaos.payloads.draft import Draft
from loadchaos.units import IntRange, Range

ORDER = 10
_OPENINGS = 4096
_SHIFTS = (0, 12, 24, 36, 48)
"""A prompt opens with five of 4096 runs of three words: 2**60 openings, so no two share their first cache block."""
_CORPUS_WORDS = 8192
_GUESS_WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "with",
    "they",
    "at",
    "be",
)
_GUESS = TextFacts(overhead=0, words=tuple((f" {w}", 1) for w in _GUESS_WORDS), unit=" the", source="guess")
"""Where nothing was measured: close to right with most tokenizers, and the request says its length is not known."""


class SharedPrefix(BaseModel):
    """The first `tokens` of the prompt are the same within each of `groups`: prefix-cache hits on purpose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int = Field(gt=0)
    groups: int = Field(default=1, gt=0)


class Options(BaseModel):
    """`tokens` counts template and text; images come on top. Prompts are distinct from their first word on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: IntRange = Range(64, 64)
    shared_prefix: SharedPrefix | None = None

    @field_validator("tokens")
    @classmethod
    def _some(cls, value: Range) -> Range:
        if value.low < 1:
            raise ValueError(f"a prompt has at least 1 token (got {value})")
        return value

    def words(self) -> str:
        """For `explain`."""
        prefix = self.shared_prefix
        shared = f", the first {prefix.tokens} shared within {prefix.groups} groups" if prefix else ""
        return f"{self.tokens} tokens of text{shared}"

    def per_request(self) -> dict[str, float]:
        """For `explain`: the mean of what one request carries."""
        return {"tokens": (self.tokens.low + self.tokens.high) / 2}


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: draws.Draws) -> None:  # noqa: ARG001 - the draws carry the step's seed
    """Set the prompt's text; a length already set by what must fit is kept as the upper bound."""
    assert isinstance(options, Options)
    wanted = rng.between(options.tokens.low, options.tokens.high)
    prompt(draft, facts, wanted, rng, options.shared_prefix)


def prompt(draft: Draft, facts: Facts, tokens: int, rng: draws.Draws, shared: SharedPrefix | None = None) -> None:
    """Make the draft's text cost exactly `tokens` with the template, or as near as words allow from above."""
    known = facts.text or _GUESS
    inner = max(1, tokens - known.overhead)
    if inner + known.overhead > tokens and facts.text is not None:
        draft.notes.append(f"{inner + known.overhead} prompt tokens in place of {tokens}: the chat template costs that")
    corpus = _corpus(known)
    parts = []
    if shared is not None and facts.text is not None:
        group = rng.between(1, shared.groups)
        prefix_tokens = min(shared.tokens - known.overhead, inner - 1)
        if prefix_tokens > 0:
            parts.append(corpus.take(prefix_tokens, draws.Draws(draws.mix(shared.tokens, group))))
            inner -= prefix_tokens
    draft.nonce, spent = corpus.nonce(inner, rng)
    parts += [draft.nonce, corpus.take(inner - spent, rng)]
    draft.text = "".join(parts)
    draft.text_tokens = None if facts.text is None else max(tokens, known.overhead + 1)


@dataclass(frozen=True)
class _Corpus:
    """Words in a random order with running sums, so that a run of any length is found by bisection and one slice."""

    words: tuple[tuple[str, int], ...]
    unit: str
    text: str
    chars: list[int]
    sums: list[int]
    openings: list[tuple[str, int]]

    def nonce(self, room: int, rng: draws.Draws) -> tuple[str, int]:
        """(words, their tokens): an order that no other prompt has, as far as there is room."""
        bits = rng.bits()
        mask = _OPENINGS - 1
        chosen = [self.openings[(bits >> shift) & mask] for shift in _SHIFTS]
        spent = sum(cost for _, cost in chosen)
        if spent <= room:
            return "".join([text for text, _ in chosen]), spent
        words: list[str] = []
        spent = 0
        while True:
            bits, which = divmod(bits, len(self.words))
            word, cost = self.words[which]
            if spent + cost > room:
                return "".join(words), spent
            words.append(word)
            spent += cost

    def take(self, tokens: int, rng: draws.Draws) -> str:
        """Text of exactly that many tokens, from a random place on; the corpus goes round, units fill the rest."""
        start = rng.between(0, len(self.chars) - 2)
        parts = []
        whole = self.sums[-1]
        while tokens > 0:
            reach = self.sums[start] + tokens
            end = min(bisect_right(self.sums, reach) - 1, len(self.sums) - 1)
            if end == start:
                break
            parts.append(self.text[self.chars[start] : self.chars[end]])
            tokens -= self.sums[end] - self.sums[start]
            if self.sums[end] != whole:
                break
            start = 0
        return "".join(parts) + self.unit * tokens


@functools.lru_cache(maxsize=8)
def _corpus(facts: TextFacts) -> _Corpus:
    rng = draws.Draws(20260701)
    chosen = [facts.words[rng.bits() % len(facts.words)] for _ in range(_CORPUS_WORDS)]
    chars, sums = [0], [0]
    for word, cost in chosen:
        chars.append(chars[-1] + len(word))
        sums.append(sums[-1] + cost)
    openings = []
    for _ in range(_OPENINGS):
        three = [facts.words[rng.bits() % len(facts.words)] for _ in range(3)]
        openings.append(("".join(word for word, _ in three), sum(cost for _, cost in three)))
    return _Corpus(facts.words, facts.unit, "".join(word for word, _ in chosen), chars, sums, openings)
