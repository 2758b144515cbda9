"""Prompts of an exact number of tokens, as the server counts them: words of measured cost, in a new order each time."""

from __future__ import annotations

import functools
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.model import Facts, Step, TextFacts
from loadchaos.core.units import IntRange, Range
from loadchaos.load.payloads.base import Draft

ORDER = 10
_SCRIPTS = ("latin", "cjk", "emoji", "code")
_OPENINGS = 4096
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
    """`tokens` counts template and text; images come on top. Prompts are distinct from their first word on.

    `script` writes in Chinese and Japanese, emoji or code, each word of measured cost; `mixed` draws one a prompt.
    `blocks` come from a replayed trace: prompts begin with the blocks of these names, the same words for the same name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: IntRange = Range(64, 64)
    shared_prefix: SharedPrefix | None = None
    script: Literal["latin", "cjk", "emoji", "code", "mixed"] = "latin"
    blocks: tuple[int, ...] = Field(default=(), exclude=True)
    block_tokens: int = Field(default=512, gt=0, exclude=True)

    @field_validator("tokens")
    @classmethod
    def _some(cls, value: Range) -> Range:
        if value.low < 1:
            raise ValueError(f"a prompt has at least 1 token (got {value})")
        return value

    @model_validator(mode="after")
    def _room(self) -> Options:
        prefix = self.shared_prefix
        # Where no tokens are given a trace may have them.
        if prefix is not None and "tokens" in self.model_fields_set and prefix.tokens > self.tokens.high:
            raise ValueError(
                f"shared_prefix is a part of the prompt: at most {self.tokens.high} tokens (got {prefix.tokens})"
            )
        return self

    def replay(self, tokens: int, blocks: Sequence[int], block_tokens: int) -> Options:
        """The same text as one row of a trace has it."""
        return self.model_copy(
            update={"tokens": Range(tokens, tokens), "blocks": tuple(blocks), "block_tokens": block_tokens}
        )

    def describe(self) -> str:
        """For `explain`."""
        prefix = self.shared_prefix
        shared = f", the first {prefix.tokens} shared within {prefix.groups} groups" if prefix else ""
        script = "" if self.script == "latin" else f" ({self.script})"
        return f"{self.tokens} tokens of text{script}{shared}"

    def per_request(self) -> dict[str, float]:
        """For `explain`: the mean of what one request carries."""
        return {"tokens": (self.tokens.low + self.tokens.high) / 2}


def add(draft: Draft, options: BaseModel, step: Step, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG001 - the draws carry the step's seed
    """Set the prompt's text; a length already set by what must fit is kept as the upper bound."""
    assert isinstance(options, Options)
    wanted = rng.between(options.tokens.low, options.tokens.high)
    script: str = options.script
    if script == "mixed":
        script = _SCRIPTS[rng.bits() % len(_SCRIPTS)]
    if options.shared_prefix is not None or options.blocks or script != _PLAIN.script:
        draft.way = Way(options.shared_prefix, script, options.blocks, options.block_tokens)
    prompt(draft, facts, wanted, rng)


@dataclass(frozen=True)
class Way:
    """How a prompt is made, beside its length."""

    shared: SharedPrefix | None = None
    script: str = "latin"
    blocks: tuple[int, ...] = ()
    block_tokens: int = 512


_PLAIN = Way()


def prompt(draft: Draft, facts: Facts, tokens: int, rng: draws.Rng) -> None:
    """Make the draft's text cost exactly `tokens` with the template, or as near as words allow from above."""
    way = draft.way if isinstance(draft.way, Way) else _PLAIN
    known = facts.text or _GUESS
    around = known.overhead + draft.history_tokens
    inner = max(1, tokens - around)
    if inner + around > tokens and facts.text is not None:
        draft.notes.append(f"{inner + around} prompt tokens in place of {tokens}: the chat template costs that")
    if way.script != "latin" and way.script not in dict(known.scripts):
        draft.notes.append(f"Latin in place of {way.script}: what its words cost here is not known")
    corpus = _known_corpus(known, way.script)
    begin = ""
    if facts.text is not None and way is not _PLAIN:
        parts = _opening(corpus, known, way, inner - 1, rng)
        inner -= sum(cost for _, cost in parts)
        begin = "".join([text for text, _ in parts])
    draft.nonce, spent = corpus.nonce(inner, rng)
    draft.text = begin + draft.nonce + corpus.take(inner - spent, rng)
    draft.text_tokens = None if facts.text is None else max(tokens, around + 1)


def _opening(corpus: _Corpus, known: TextFacts, way: Way, room: int, rng: draws.Rng) -> list[tuple[str, int]]:
    """What the prompt begins with and others begin with, too: (text, tokens) each."""
    parts = []
    if way.shared is not None:
        group = rng.between(1, way.shared.groups)
        tokens = min(way.shared.tokens - known.overhead, room)
        if tokens > 0:
            parts.append((corpus.take(tokens, draws.Rng(draws.hash64(way.shared.tokens, group))), tokens))
    size = way.block_tokens
    return parts + [(corpus.take(size, draws.Rng(draws.hash64(77, name))), size) for name in way.blocks[: room // size]]


@dataclass(frozen=True)
class _Corpus:
    """Words in a random order with running sums, so that a run of any length is found by bisection and one slice."""

    words: tuple[tuple[str, int], ...]
    unit: str
    text: str
    chars: array[int]
    sums: array[int]
    openings: list[tuple[str, int]]

    def nonce(self, room: int, rng: draws.Rng) -> tuple[str, int]:
        """(words, their tokens): an order that no other prompt has, as far as there is room."""
        bits = rng.bits()
        openings, mask = self.openings, _OPENINGS - 1
        a, b, c = openings[bits & mask], openings[(bits >> 12) & mask], openings[(bits >> 24) & mask]
        d, e = openings[(bits >> 36) & mask], openings[(bits >> 48) & mask]
        spent = a[1] + b[1] + c[1] + d[1] + e[1]
        if spent <= room:
            return a[0] + b[0] + c[0] + d[0] + e[0], spent
        words: list[str] = []
        spent = 0
        while True:
            bits, which = divmod(bits, len(self.words))
            word, cost = self.words[which]
            if spent + cost > room:
                return "".join(words), spent
            words.append(word)
            spent += cost

    def take(self, tokens: int, rng: draws.Rng) -> str:
        """Text of exactly that many tokens, from a random place on; the corpus goes round, units fill the rest."""
        start = rng.between(0, len(self.chars) - 2)
        parts: list[str] = []
        whole = self.sums[-1]
        while tokens > 0:
            reach = self.sums[start] + tokens
            # A word costs a token or more, so the end is near; looking elsewhere would only miss the caches.
            end = bisect_right(self.sums, reach, start, min(start + tokens + 1, len(self.sums))) - 1
            if end == start:
                break
            parts.append(self.text[self.chars[start] : self.chars[end]])
            tokens -= self.sums[end] - self.sums[start]
            if self.sums[end] != whole:
                break
            start = 0
        return "".join(parts) + self.unit * tokens


def corpus_of(known: TextFacts | None) -> _Corpus:
    """The words of this server, to take runs of an exact number of tokens from."""
    return _corpus(known or _GUESS)


_corpora: dict[tuple[int, str], tuple[TextFacts, _Corpus]] = {}
"""By identity: hashing some hundred words for each prompt would cost more than the prompt."""


def _known_corpus(facts: TextFacts, script: str) -> _Corpus:
    found = _corpora.get((id(facts), script))
    if found is None:
        if len(_corpora) >= 16:
            _corpora.clear()
        found = _corpora[id(facts), script] = facts, _corpus(facts, script)
    return found[1]


@functools.lru_cache(maxsize=16)
def _corpus(facts: TextFacts, script: str = "latin") -> _Corpus:
    rng = draws.Rng(20260701)
    words = dict(facts.scripts).get(script) or facts.words
    chosen = [words[rng.bits() % len(words)] for _ in range(_CORPUS_WORDS)]
    chars, sums = array("q", [0]), array("q", [0])
    for word, cost in chosen:
        chars.append(chars[-1] + len(word))
        sums.append(sums[-1] + cost)
    openings = []
    for _ in range(_OPENINGS):
        three = [words[rng.bits() % len(words)] for _ in range(3)]
        openings.append(("".join(word for word, _ in three), sum(cost for _, cost in three)))
    return _Corpus(words, facts.unit, "".join(word for word, _ in chosen), chars, sums, openings)
