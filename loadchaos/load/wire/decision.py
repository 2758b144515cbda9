"""Decide the outcome of an exchange from its end, head and body; check the content of a complete answer. Sans-I/O.

`wrong_parts` are contradictions that no right answer has. `signs` are properties that a right answer may have, such as
a text that repeats itself: the analysis compares their share with that of idle answers. Statuses and error texts are
classified by core/outcome_rules.py. `content_of` finds answers that say nothing about their prompt (blank, of special
tokens, copied, equal to others): analysis/detectors/answer_text.py and equal_answers.py judge their share.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson

from loadchaos.core.answer_labels import MOST_CHARS
from loadchaos.core.body_hash import body_hash
from loadchaos.core.ledger.rows import AnswerContent, WrongPart
from loadchaos.core.outcome_rules import (
    WORD_OF_ANOTHER,
    End,
    OutcomeEvent,
    OutcomeRules,
    end_event,
    error_response_event,
)
from loadchaos.load.wire.answer_reader import PART_CHARS, AnswerReader, final_event

if TYPE_CHECKING:
    from loadchaos.load.wire.request import Request

_WINDOW = 256
_BANGS = "!" * 24
_RUN = 24
_RELEASE = re.compile(r"(?:[@:].*|-(?:latest|\d{4}-?\d\d-?\d\d))$")
FEWEST_WORDS = 7
"""Repetitions of one word, or tokens, from which a short answer tells something."""
KEPT_ERROR_BYTES = 64 * 1024
"""Bytes of an error response that are read."""

_FEWEST_OF_FILE = 32
"""Tokens from which answers to a user's own prompts must differ: a shorter one may be a class or a yes."""
_FEWEST_COPIED = 32
_HEAD_CHARS = 2_000
_BEGIN_CHARS = 80
_WRITTEN = frozenset({"text", "quote", "images", "conversation", "near_limit", "positions", "sampling", "batch"})
"""Payloads whose prompts loadchaos writes itself: no two of them have the same answer by right."""
_RULED = frozenset({"structured", "tools", "audio", "video", "hostile_images", "image_positions"})
"""Payloads whose answers a rule or a medium may make equal."""
_SPECIAL = re.compile(
    r"<\|[^<>|]{1,40}\|>|<\uff5c[^<>\uff5c]{1,40}\uff5c>|</?(?:s|pad|unk|bos|eos|[se]o[pt]|mask|sep|cls)>|<(?:start|end)_of_turn>"
    r"|<(?:extra_id_|unused|reserved_|special_|0x)[0-9A-Fa-f]{1,5}>|<fim_\w{1,10}>"
    r"|\[(?:PAD|UNK|CLS|SEP|g?MASK|BOS|EOS|/?INST|(?:UNUSED_TOKEN|control)_\d{1,5})\]",
    re.IGNORECASE,
)
_VISIBLE = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]")
_VARIES = re.compile(r"[\W\d_]+")
_ASCII_WORDS = bytes(n if chr(n).isalpha() else 32 for n in range(128)) + bytes(128)
"""The same as a table for `bytes.translate`, which takes a fifth of the time."""
_BY_LENGTH = ("length", "max_tokens")
_RULE_BYTES_PER_TOKEN = 4
"""A limit of fewer tokens may leave no room for an answer that ends: a schema names each field twice, its answer once."""
_FEWEST_PAIRS, _FEWEST_OF_PAIRS = 6, 4
"""Pieces of a text that come twice, and how many of them differ."""
_MOST_TOKENS = 10**9
"""No context is so long."""
_MOST_SEEN = 4_096
_seen: dict[str, int] = {}
"""Number of answers with each hash. The row of the second one has the text."""


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
    if (doubled := _doubled(answer)) is not None:
        found.append(doubled)
    contract = answer.rules.contract
    if contract is not None:
        for text, calls, reason in answer.contents():
            violation = None if is_cut(answer, reason) else contract.violation(text, calls)
            if violation is not None:
                of_model = violation.id == "tool_call_invalid"
                begin = "the answer has a wrong tool call" if of_model else "the answer violates its schema"
                found.append(
                    {
                        "id": violation.id,
                        "text": f"{begin}: {violation.text[:PART_CHARS]}",
                        "expected": violation.expected[:PART_CHARS],
                        "got": violation.got[:PART_CHARS],
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
    if (early := _early_end(answer)) is not None:
        return {"id": "length_too_early", "text": early}
    if answer.HAS_CHOICES and rules.answers is not None and ends < rules.answers:
        return {"id": "choices_missing", "text": f"{ends} of {rules.answers} choices arrived"}
    demanded = "tool_calls" in answer.finish.values() and not answer.names_call
    if demanded and (answer.has_calls or not _is_full(answer)):
        return {"id": "tool_call_missing", "text": "the finish_reason is tool_calls, and no function was named"}
    if rules.logprobs and answer.logprob_entries is None and answer.has_answer:
        return {"id": "no_logprobs", "text": "log probabilities were asked for, and the answer has none"}
    tokens, most = answer.completion_tokens, rules.most_tokens if answer.LIMIT_IS_OF_WHOLE_ANSWER else None
    if most is not None and tokens is not None and tokens > (allowed := most * max(1, ends)):
        over = tokens - answer.reasoning_tokens() > allowed
        text = f"{tokens} completion tokens; {allowed} were allowed"
        return {"id": "more_tokens_than_allowed", "text": text} if over else None
    return None


def _early_end(answer: AnswerReader) -> str | None:
    """Describe an answer that says it ended by its length with less than half of the tokens that it may have. Tokenizers
    of gateways count differently, so a smaller gap proves nothing, nor does an end of the context.
    """
    rules, tokens = answer.rules, answer.completion_tokens
    if rules.limit is None or tokens is None or not (answer.LIMIT_IS_OF_WHOLE_ANSWER and answer.has_text):
        return None
    if 2 * tokens >= rules.limit * len(answer.finish) or any(r not in _BY_LENGTH for r in answer.finish.values()):
        return None
    if (answer.prompt_tokens or 0) + tokens >= rules.context - 1:
        return None
    return f"the finish_reason is length after {tokens} completion tokens; {rules.limit} were allowed"


def _doubled(answer: AnswerReader) -> WrongPart | None:
    """A stream in which each piece comes twice, and that has more of them than tokens. A piece has a token at least."""
    tokens = answer.completion_tokens
    if tokens is None and answer.rules.limit is not None and answer.LIMIT_IS_OF_WHOLE_ANSWER:
        tokens = answer.rules.limit
    if tokens is None or answer.chunks <= tokens or not _in_pairs(answer):
        return None
    return {"id": "tokens_doubled", "text": f"each of {answer.chunks} chunks comes twice; {tokens} tokens are the most"}


def _in_pairs(answer: AnswerReader) -> bool:
    """True if each piece of a text is followed by the same one. Choices that alternate are equal by right."""
    pieces = answer.texts
    if len(pieces) < 2 * _FEWEST_PAIRS or pieces[0] != pieces[1] or len(answer.finish) != 1:
        return False  # nearly every text
    firsts = pieces[0::2][: len(pieces) // 2]
    return firsts == pieces[1::2] and len(set(firsts)) >= _FEWEST_OF_PAIRS


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
    begin = "the usage contradicts itself"
    for of, count in (("prompt", prompt), ("completion", completion)):
        if isinstance(count, int) and not 0 <= count <= _MOST_TOKENS:
            return f"{begin}: no request has {count} {of} tokens"
    if not isinstance(completion, int):
        return ""
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
    # A limit on tokens may cut the last character.
    if "\ufffd" in (text.rstrip("\ufffd") if answer.finish_reason == "length" else text):
        found.append("replacement_character")
    if _BANGS in text:
        found.append("exclamation_run")
    if len(answer.texts) >= _RUN and _longest_run(answer.texts) >= _RUN:
        found.append("repeated_token")
    if _in_pairs(answer):
        found.append("token_pairs")
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
    if text.count(text.lstrip()[:1]) < FEWEST_WORDS:
        return False  # nearly every text
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


def blank_kind(text: str) -> Literal["control_characters", "special_tokens"] | None:
    """Name what a text has beside blanks, if it has nothing else; None for any other text."""
    if not text or text[:1].isalnum():
        return None
    left = _SPECIAL.sub("", text)
    if _VISIBLE.search(left) is not None:
        return None
    return "control_characters" if left == text else "special_tokens"


def copies(text: str, body: bytes, *, written: bool) -> bool:
    """True if the text is a piece of the request's prompt, of which the first and last quarter may differ. With a
    prompt that is not `written` by us: if it is one whole message.
    """
    text = text.strip()
    if len(text) < _FEWEST_COPIED:
        return False
    quarter = len(text) // 4
    needle = orjson.dumps(text[quarter:-quarter])[1:-1] if written else orjson.dumps(text)
    return needle in body


def content_of(request: Request, answer: AnswerReader, text: str, *, one_word: bool) -> AnswerContent:
    """Facts of an ok answer for its row. Only a text that other prompts should not get has a hash. `one_word`: the sign of
    that name.
    """
    found: AnswerContent = {}
    payloads = request.step.payload.keys()
    ruled = answer.rules.contract is not None and answer.rules.contract.size > 0
    if ruled:
        found["rule"] = _rule_state(request, answer)
    if request.quotes and request.secret_sent and request.nonce:
        found["quoted"] = request.nonce in text
    tokens = answer.completion_tokens or answer.chunks
    long_enough = tokens >= FEWEST_WORDS or answer.finish_reason not in ("length", None)  # a cut one may be one word
    if ruled or answer.has_calls or not long_enough or not _RULED.isdisjoint(payloads):
        return found
    if blank := blank_kind(text):
        found["odd"], found["begin"] = blank, text[:_BEGIN_CHARS]
        return found
    written = bool(payloads) and _WRITTEN.issuperset(payloads)
    if not request.quotes and text and copies(text, request.body, written=written):
        found["odd"], found["begin"] = "copies_prompt", text[:_BEGIN_CHARS]
        return found
    name = text_digest(text) if answer.HAS_CHOICES else answer.digest
    if name and (written or not answer.HAS_CHOICES or tokens >= _FEWEST_OF_FILE) and not one_word:
        found["hash"] = name
        seen = _seen.get(name, 0)
        if seen == 1:
            found["begin"] = text[:_BEGIN_CHARS]
        elif not seen and len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[name] = seen + 1
    return found


def _rule_state(request: Request, answer: AnswerReader) -> Literal["checked", "cut", "no_room"]:
    """Tell whether a choice was held to its contract, or else whether the profile's limit of tokens is to blame."""
    if not all(is_cut(answer, reason) for _, _, reason in answer.contents()):
        return "checked"
    limit, contract = answer.rules.most_tokens, answer.rules.contract
    exact = request.exact is not None or request.most is not None  # such an answer has no end of its own
    small = limit is not None and contract is not None and limit * _RULE_BYTES_PER_TOKEN < contract.size
    # A text where a call is demanded is not the begin of one.
    text_only = contract is not None and contract.must_call and answer.has_answer and not answer.has_calls
    return "no_room" if exact or (small and not text_only) else "cut"


def text_digest(text: str) -> str:
    """Hash of the words of a text, without digits and punctuation; of a text without words itself. "": no text."""
    head = text[:_HEAD_CHARS].casefold()
    if head.isascii():
        words = b" ".join(head.encode().translate(_ASCII_WORDS).split())
    else:
        words = _VARIES.sub(" ", head).strip().encode("utf-8", "replace")
    words = words or text.strip().encode("utf-8", "replace")
    return body_hash(words) if words else ""
