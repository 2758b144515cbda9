"""Longest prompts and sequences that a server takes, in tokens. All that is computed of its facts is computed here."""

from __future__ import annotations

from dataclasses import dataclass

from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN, Dialect

UNLIMITED = 1 << 62
"""Limit that is not known."""


@dataclass(frozen=True)
class SequenceLimits:
    """Limits of one server. `prompt`: longest prompt beside the shortest answer; `whole`: most tokens of prompt and answer
    together. UNLIMITED where they are not known.
    """

    prompt: int
    whole: int

    @property
    def surely_fits(self) -> int:
        """Longest sequence that fits for sure: the longest prompt where the context is not known. 0: nothing is known."""
        longest = self.whole if self.whole < UNLIMITED else self.prompt
        return longest if longest < UNLIMITED - 1 else 0

    def prompt_beside(self, output: int) -> int:
        """Longest prompt that leaves room for `output` tokens of answer."""
        return min(self.prompt, self.whole - output)


def sequence_limits(facts: Facts, shortest_answer: int = 1) -> SequenceLimits:
    """Limits of a sequence that is answered. `shortest_answer` is 0 where an endpoint generates no tokens."""
    whole = min(facts.capacity_tokens or UNLIMITED, _whole(facts, facts.input_limit))
    return SequenceLimits(min(whole - shortest_answer, _or_unlimited(facts.input_limit)), whole)


def refusal_limits(facts: Facts, given: int | None = None) -> SequenceLimits | None:
    """Limits that a server enforces by refusing what exceeds them, whatever its KV cache holds. None: unknown. `given`, a
    prompt that is one token too long, counts where the server does not tell: without a context, or where the KV cache may
    hold less.
    """
    longest, context = facts.input_limit, facts.max_model_len
    if longest is None and given is not None and (context is None or not _dialect(facts).context_fits):
        longest = given - 1
    if longest is None and context is None:
        return None
    prompt = min(_or_unlimited(context) - 1, _or_unlimited(longest))
    whole = prompt + 1 if prompt + 1 == context else _whole(facts, longest)
    return SequenceLimits(prompt, whole if whole < UNLIMITED else prompt + 1)


def _whole(facts: Facts, longest: int | None) -> int:
    """Most tokens of a sequence by its context. Where one bound holds for prompt and answer together (LMDeploy's
    `max_session_len`, to which it cuts answers silently), the longest prompt bounds both.
    """
    dialect, context = _dialect(facts), facts.max_model_len or UNLIMITED
    if longest is None or dialect.context_fits:
        return context
    return min(context, longest + dialect.answer_beyond_prompt)


def _dialect(facts: Facts) -> Dialect:
    return DIALECTS.get(facts.dialect, UNKNOWN)


def _or_unlimited(limit: int | None) -> int:
    return UNLIMITED if limit is None else limit
