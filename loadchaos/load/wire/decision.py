"""Decide the outcome of an exchange from its end, head and body; check the content of a complete answer. Sans-I/O.

`wrong_parts` are contradictions that no right answer has. `signs` are properties that a right answer may have, such as
a text that repeats itself: the analysis compares their share with that of idle answers. Statuses and error texts are
classified by core/outcome_rules.py.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loadchaos.core.answer_labels import MOST_CHARS
from loadchaos.core.ledger.rows import WrongPart
from loadchaos.core.outcome_rules import (
    WORD_OF_ANOTHER,
    End,
    OutcomeEvent,
    OutcomeRules,
    end_event,
    error_response_event,
)
from loadchaos.load.wire.answer_reader import AnswerReader, final_event

_EXCERPT = 400
_WINDOW = 256
_BANGS = "!" * 24
_RUN = 24
_RELEASE = re.compile(r"(?:[@:].*|-(?:latest|\d{4}-?\d\d-?\d\d))$")
FEWEST_WORDS = 7
"""Repetitions of one word, or tokens, from which a short answer tells something."""
KEPT_ERROR_BYTES = 64 * 1024
"""Bytes of an error response that are read."""


class ExchangeEnd(NamedTuple):
    """End of an exchange, and what an incomplete one says of itself. `at_ns`: time of the last byte, monotonic ns."""

    end: End
    why: str
    at_ns: int


class ResponseHead(NamedTuple):
    """Status line and headers of an answer. `headers`: values by lower-case name; `retry-after` has a meaning here."""

    status: int
    reason: str
    headers: Mapping[str, str]


def decide(
    ended: ExchangeEnd, head: ResponseHead | None, answer: AnswerReader | None, error_body: bytes, rules: OutcomeRules
) -> tuple[list[OutcomeEvent], Sequence[WrongPart]]:
    """Decide an outcome: the first event has it.

    Returns the decisive events in byte order, and the wrong parts of a complete answer. Closes the reader. `answer` is None
    and `error_body` is given for an answer that is not 2xx.
    """
    ending = [] if ended.end == "complete" else [end_event(ended.end, ended.why)]
    if head is None:
        return ending or [OutcomeEvent("protocol_error", "the exchange ended without a response head")], ()
    if answer is None:
        return [error_response_event(*head, error_body, rules), *ending], ()
    answer.close(ended.at_ns, complete=ended.end == "complete")
    if not ending and not answer.done_seen:
        ending = [final_event(answer)]
    events = [*answer.outcome_events, *ending]
    wrong = wrong_parts(answer) if events[0].outcome == "ok" else ()
    if wrong:
        return [OutcomeEvent("wrong_output", wrong[0]["text"])], wrong
    return events, part_of_event(events[0])


def wrong_parts(answer: AnswerReader) -> list[WrongPart]:
    found: list[WrongPart] = []
    if answer.second_done:
        found.append({"id": "second_done", "text": "a second [DONE] follows the first"})
    if answer.disorder:
        found.append({"id": "stream_out_of_order", "text": answer.disorder[0]})
    found += answer.contradictions
    contradiction = _usage_contradiction(answer)
    if contradiction:
        found.append({"id": "usage_contradicts", "text": contradiction})
    if (missing := _missing_part(answer)) is not None:
        found.append(missing)
    contract = answer.rules.contract
    if contract is not None:
        for text, calls, reason in answer.contents():
            violation = None if is_cut(answer, reason) else contract.violation(text, calls)
            if violation is not None:
                found.append(
                    {
                        "id": violation.id,
                        "text": f"the answer violates its schema: {violation.text[:_EXCERPT]}",
                        "expected": violation.expected[:_EXCERPT],
                        "got": violation.got[:_EXCERPT],
                    }
                )
    return found


def other_model(answer: AnswerReader) -> str | None:
    """The model that an answer names, if it is another one than the request asked for."""
    asked, named = answer.rules.model, answer.model
    if asked is None or named is None or named == asked:
        return None
    return None if _without_release(named) == _without_release(asked[:MOST_CHARS]) else named


def _without_release(model: str) -> str:
    """A model's name without its organisation and its release: OpenAI answers gpt-x with gpt-x-2026-01-31, transformers
    NAME with NAME@main, Ollama NAME with NAME:latest.
    """
    return _RELEASE.sub("", model.rstrip("/").rpartition("/")[2]).casefold()


def _missing_part(answer: AnswerReader) -> WrongPart | None:
    """The part that a complete answer lacks or has too much of: choices, a tool call, tokens."""
    rules, ends = answer.rules, len(answer.finish)
    if answer.front_skipped:
        return None
    if answer.HAS_CHOICES and rules.answers is not None and ends < rules.answers:
        return {"id": "choices_missing", "text": f"{ends} of {rules.answers} choices arrived"}
    demanded = "tool_calls" in answer.finish.values() and not answer.names_call
    if demanded and (answer.has_calls or not _is_full(answer)):
        return {"id": "tool_call_missing", "text": "the finish_reason is tool_calls, and no function was named"}
    if rules.logprobs and answer.logprob_entries is None and answer.has_answer:
        return {"id": "no_logprobs", "text": "log probabilities were asked for, and the answer has none"}
    tokens, most = answer.completion_tokens, rules.most_tokens if answer.MOST_IS_OF_ANSWER else None
    if most is not None and tokens is not None and tokens - answer.reasoning_tokens() > most * max(1, ends):
        text = f"{tokens} completion tokens; {most * max(1, ends)} were allowed"
        return {"id": "more_tokens_than_allowed", "text": text}
    return None


def _is_full(answer: AnswerReader) -> bool:
    """True if an answer with one choice has as many tokens as it may have."""
    tokens = answer.usage.get("completion_tokens") if answer.usage else None
    most = answer.rules.most_tokens
    return most is not None and isinstance(tokens, int) and tokens >= most and len(answer.finish) == 1


def is_cut(answer: AnswerReader, reason: str | None) -> bool:
    """True if a choice is not held to its contract, as it ended by its length."""
    return reason == "length" or _is_full(answer)


def part_of_event(event: OutcomeEvent) -> list[WrongPart]:
    """Make the wrong part of an answer with another request's word."""
    begin, _, other = event.text.partition(": ")
    if event.outcome != "wrong_output" or begin != WORD_OF_ANOTHER:
        return []
    return [{"id": "answer_of_another_request", "text": event.text, "other": other}]


def _usage_contradiction(answer: AnswerReader) -> str:
    """Describe a usage that contradicts itself; empty if it does not."""
    usage = answer.usage
    if usage is None:
        return ""
    prompt, completion, total = usage.get("prompt_tokens"), usage.get("completion_tokens"), usage.get("total_tokens")
    if not isinstance(completion, int):
        return ""
    begin = "the usage contradicts itself"
    if isinstance(prompt, int) and isinstance(total, int) and total != prompt + completion:
        return f"{begin}: {prompt} prompt + {completion} completion tokens are not {total} in total"
    cached = answer.cached_tokens
    if cached is not None and isinstance(prompt, int) and cached > prompt:
        return f"{begin}: {cached} cached tokens of {prompt} prompt tokens"
    reasoning = answer.reasoning_tokens() if usage.get("completion_tokens_details") else 0
    if reasoning > completion:
        return f"{begin}: {reasoning} reasoning tokens of {completion} completion tokens"
    return ""


def signs(answer: AnswerReader, text: str) -> list[str]:
    """List the signs of an answer with this text (docs/correctness.md)."""
    found = []
    tokens = answer.completion_tokens
    if "\ufffd" in text:
        found.append("replacement_character")
    if _BANGS in text:
        found.append("exclamation_run")
    if len(answer.texts) >= _RUN and _longest_run(answer.texts) >= _RUN:
        found.append("repeated_token")
    if not text and not answer.has_calls and (tokens or 0) > 1:
        found.append("no_text")
    if one_word(text):
        found.append("one_word")
    if answer.logprob_entries is not None and tokens is not None and answer.logprob_entries != tokens:
        found.append("logprob_count")
    if answer.id_changes:
        found.append("chunk_id_changes")
    return found


def one_word(text: str) -> bool:
    """True if the whole text is one character or word, seven times or more."""
    compact = "".join(text.split())
    n = len(compact)
    at = compact.find(compact[: n // 2], 1) if n >= FEWEST_WORDS else 0
    return 0 < at <= n // FEWEST_WORDS and compact.startswith(compact[at:])


def _longest_run(pieces: list[str]) -> int:
    if len(set(pieces)) > len(pieces) - _RUN + 1:
        return 1  # so many different pieces leave no room for a run
    return max(len(list(run)) for _, run in itertools.groupby(pieces))


def text_ratio(text: str) -> float | None:
    """Compressed size of the last 256 characters, relative to their size. About 0.6 for prose, 0.1 for one repeated
    word. A text that degenerates does so to its end. None for a shorter text.
    """
    if len(text) < _WINDOW:
        return None
    piece = text[-_WINDOW:].encode("utf-8", "replace")
    return round(len(zlib.compress(piece, 1)) / len(piece), 3)
