"""Prompts of an exact token count, made of words of measured cost in a new order each time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from loadchaos.core import rng as draws
from loadchaos.core.model import SENT_SHORT, Facts, TextFacts
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.secret_word import Alphabet, alphabet
from loadchaos.load.wire.request import Request
from loadchaos.profile.base import ProfilePart
from loadchaos.profile.request_options import RequestContent

SHORTEST_TEXT_TOKENS = 16
SHORT_TOKENS = 64
"""Prompt tokens where a payload cannot be made, or names no length of its text."""
_SCRIPTS = ("latin", "cjk", "emoji", "code")
_CORPUS_WORDS = 8192
_GUESS_WORDS = [
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
]
_GUESS = TextFacts(overhead=0, words=tuple((f" {w}", 1) for w in _GUESS_WORDS), unit=" the", source="guess")
"""Used where nothing was measured: nearly right for most tokenizers; the request's length counts as unknown."""


class SharedPrefix(ProfilePart):
    """The prompts of each of `groups` share their first `tokens`.

    They hit the prefix cache on purpose.
    """

    tokens: int = Field(gt=0)
    groups: int = Field(default=1, gt=0)


class Options(Payload):
    """Length and style of a prompt; prompts differ from their first word on.

    `tokens` counts template and text; images come on top. `script` writes in Chinese and Japanese, emoji or code, each word
    of measured cost; `mixed` draws one script per prompt. `blocks` come from a replayed trace: prompts begin with the blocks
    of these names, equal words for equal names.
    """

    ORDER: ClassVar[int] = 10
    tokens: Annotated[IntRange, at_least(1, "a prompt has at least 1 token")] = Range(64, 64)
    shared_prefix: SharedPrefix | None = None
    script: Literal["latin", "cjk", "emoji", "code", "mixed"] = "latin"
    blocks: tuple[int, ...] = Field(default=(), exclude=True)
    block_tokens: int = Field(default=512, gt=0, exclude=True)

    @model_validator(mode="after")
    def _prefix_fits(self) -> Options:
        prefix = self.shared_prefix
        # Without tokens here, a trace may give them.
        if prefix is not None and "tokens" in self.model_fields_set and prefix.tokens > self.tokens.high:
            raise ValueError(
                f"shared_prefix is a part of the prompt: at most {self.tokens.high} tokens (got {prefix.tokens})"
            )
        return self

    def replay(self, tokens: int, blocks: Sequence[int], block_tokens: int) -> Options:
        return self.model_copy(
            update={"tokens": Range(tokens, tokens), "blocks": tuple(blocks), "block_tokens": block_tokens}
        )

    def scripts(self) -> Sequence[str]:
        return _SCRIPTS[1:] if self.script == "mixed" else () if self.script == "latin" else (self.script,)

    @property
    def prompts_differ(self) -> bool:
        return self.shared_prefix is None and not self.blocks

    def describe(self) -> str:
        prefix = self.shared_prefix
        shared = f", the first {prefix.tokens} shared within {prefix.groups} groups" if prefix else ""
        script = "" if self.script == "latin" else f" ({self.script})"
        return f"{self.tokens} tokens of text{script}{shared}"

    @property
    def longest_text(self) -> int:
        return self.tokens.high

    def per_request(self) -> RequestContent:
        return RequestContent(tokens=self.tokens.mean)

    def add(self, request: Request, facts: Facts, rng: draws.Rng) -> None:
        wanted = rng.between(self.tokens.low, self.tokens.high)
        script: str = self.script
        if script == "mixed":
            script = _SCRIPTS[rng.bits() % len(_SCRIPTS)]
        if self.shared_prefix is not None or self.blocks or script != "latin":
            request.text_style, request.script = self, script
        request.wanted_tokens = wanted
        write_prompt(request, facts, wanted, rng)


QUOTE_ORDER = "Repeat these words, with single blanks between them and nothing else:"
"""Order of the payload `quote`; the words follow it, each with its leading blank."""
_ORDER_RESERVE = 1.5


def write_prompt(request: Request, facts: Facts, tokens: int, rng: draws.Rng) -> None:
    """Write a text that costs exactly `tokens` with the template, or as little more as words allow."""
    style, script = request.text_style, request.script
    known = facts.text or _GUESS
    template_tokens = known.overhead + request.history_tokens
    own_tokens = max(1, tokens - template_tokens)
    if own_tokens + template_tokens > tokens and facts.text is not None:
        sent = own_tokens + template_tokens
        asked = text.tokens.high if isinstance(text := request.step.payload.get("text"), Options) else 0
        why = "the chat template needs that many"
        request.adapt(f"{sent} prompt tokens", str(tokens), why, allowed=sent <= asked)
    if script != "latin" and script not in dict(known.scripts):
        request.adapt("Latin", script, "the token count of its words is unknown on this server")
    corpus = corpus_for(known, script)
    opening = ""
    if facts.text is not None and style is not None:
        parts = _shared_opening(corpus, known, style, own_tokens - 1, rng)
        own_tokens -= sum(cost for _, cost in parts)
        opening = "".join([text for text, _ in parts])
    request.nonce, used, whole = corpus.make_nonce(own_tokens, request.secret, rng)
    request.secret_sent = whole
    own_tokens -= used
    order = ""
    if request.quotes and not request.fixed_length:
        needed = corpus.order_tokens() + request.quotes * used
        if whole and needed <= own_tokens:
            order = f"\n{QUOTE_ORDER}{request.nonce * request.quotes}"
            own_tokens -= needed
        else:
            request.quotes = 0
            request.notes.append("no quote: the prompt is too short for its secret word and the order to repeat it")
    request.text = opening + request.nonce + corpus.text_of(own_tokens, rng) + order
    request.text_tokens = None if facts.text is None else max(tokens, template_tokens + 1)


def write_short(request: Request, facts: Facts, rng: draws.Rng, why: str) -> None:
    """Write a short prompt in place of one that cannot be made, and note why."""
    write_prompt(request, facts, SHORT_TOKENS, rng)
    request.notes.append(f"{why}: {SENT_SHORT}")


def _shared_opening(
    corpus: _Corpus, known: TextFacts, style: Options, available: int, rng: draws.Rng
) -> list[tuple[str, int]]:
    """Make the parts that other prompts begin with, too: (text, tokens) each."""
    parts = []
    if style.shared_prefix is not None:
        group = rng.between(1, style.shared_prefix.groups)
        tokens = min(style.shared_prefix.tokens - known.overhead, available)
        if tokens > 0:
            parts.append((corpus.text_of(tokens, draws.Rng(draws.hash64(style.shared_prefix.tokens, group))), tokens))
    size = style.block_tokens
    return parts + [
        (corpus.text_of(size, draws.Rng(draws.hash64(77, name))), size) for name in style.blocks[: available // size]
    ]


@dataclass(frozen=True)
class _Corpus:
    """Words in a random order with running sums of their tokens: a text of any length is a slice, found by bisection."""

    words: tuple[tuple[str, int], ...]
    unit: str
    text: str
    chars: array[int]
    sums: array[int]
    alphabet: Alphabet

    def make_nonce(self, available: int, code: int, rng: draws.Rng) -> tuple[str, int, bool]:
        """Make words that no other prompt has: a secret word. Returns (words, their tokens, True). Without enough tokens
        it returns fewer random words, and False.
        """
        written = self.alphabet.write(code, available)
        if written is not None:
            return *written, True
        bits = rng.bits()
        words: list[str] = []
        used = 0
        while True:
            bits, which = divmod(bits, len(self.words))
            word, cost = self.words[which]
            if used + cost > available:
                return "".join(words), used, False
            words.append(word)
            used += cost

    def order_tokens(self) -> int:
        """Estimate the tokens of the order to quote, from above: its words were not measured."""
        return ceil(_ORDER_RESERVE * len(QUOTE_ORDER) * self.sums[-1] / self.chars[-1])

    def text_of(self, tokens: int, rng: draws.Rng) -> str:
        """Return text of exactly `tokens` tokens from a random place on. The corpus repeats; unit words fill the rest."""
        start = rng.between(0, len(self.chars) - 2)
        sums = self.sums
        reach = sums[start] + tokens
        end = bisect_right(sums, reach, start, min(start + tokens + 1, len(sums))) - 1
        if sums[end] == reach:  # nearly always: it ends before the corpus does
            return self.text[self.chars[start] : self.chars[end]]
        parts: list[str] = []
        whole = self.sums[-1]
        while tokens > 0:
            reach = self.sums[start] + tokens
            # A word costs a token or more, so the end is near; a wider search would only miss the CPU caches.
            end = bisect_right(self.sums, reach, start, min(start + tokens + 1, len(self.sums))) - 1
            if end == start:
                break
            parts.append(self.text[self.chars[start] : self.chars[end]])
            tokens -= self.sums[end] - self.sums[start]
            if self.sums[end] != whole:
                break
            start = 0
        return "".join(parts) + self.unit * tokens


def alphabets_of(known: TextFacts | None) -> list[Alphabet]:
    """The alphabets that secret words may be written in on a server."""
    return [corpus_for(known).alphabet, *(alphabet(words) for _, words in (known.scripts if known is not None else ()))]


_corpora: dict[tuple[int, str], tuple[TextFacts, _Corpus]] = {}
"""Keyed by identity: hashing some hundred words per prompt would cost more than the prompt."""


def corpus_for(known: TextFacts | None, script: str = "latin") -> _Corpus:
    """The words of a server, to cut texts of an exact number of tokens from."""
    facts = known or _GUESS
    found = _corpora.get((id(facts), script))
    if found is None:
        if len(_corpora) >= 16:
            _corpora.clear()
        found = _corpora[id(facts), script] = facts, _corpus(facts, script)
    return found[1]


def _corpus(facts: TextFacts, script: str) -> _Corpus:
    rng = draws.Rng(20260701)
    words = dict(facts.scripts).get(script) or facts.words
    drawn = [words[rng.bits() % len(words)] for _ in range(_CORPUS_WORDS)]
    chars, sums = array("q", [0]), array("q", [0])
    for word, cost in drawn:
        chars.append(chars[-1] + len(word))
        sums.append(sums[-1] + cost)
    return _Corpus(words, facts.unit, "".join(word for word, _ in drawn), chars, sums, alphabet(words))
