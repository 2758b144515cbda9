"""Find answers that say nothing about their prompt: blank, of special tokens, copied, equal to others. Sans-I/O.

What is found is in `content` of the end row; analysis/detectors/answer_text.py and equal_answers.py judge its share.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import orjson

from loadchaos.core.body_hash import body_hash
from loadchaos.core.ledger.rows import AnswerContent
from loadchaos.load.wire.decision import FEWEST_WORDS, is_cut

if TYPE_CHECKING:
    from loadchaos.load.wire.answer_reader import AnswerReader
    from loadchaos.load.wire.request import Request

_FEWEST_OF_FILE = 32
"""Tokens from which answers to a user's own prompts must differ: a shorter one may be a class or a yes."""
_FEWEST_COPIED = 32
_HEAD_CHARS = 2_000
_EXCERPT_CHARS = 80
_WRITTEN = frozenset({"text", "quote", "images", "conversation", "near_limit", "positions", "sampling", "batch"})
"""Payloads whose prompts loadchaos writes itself: no two of them have the same answer by right."""
_RULED = frozenset({"structured", "tools", "audio", "video", "hostile_images", "image_positions"})
"""Payloads whose answers a rule or a medium may make equal."""
_SPECIAL = re.compile(
    r"<\|[^<>|]{1,40}\|>|<\uff5c[^<>\uff5c]{1,40}\uff5c>|</?(?:s|pad|unk|bos|eos|mask|sep|cls)>|<(?:start|end)_of_turn>"
    r"|<(?:extra_id_|unused|reserved_|0x)[0-9A-Fa-f]{1,5}>|\[(?:PAD|UNK|CLS|SEP|MASK|BOS|EOS|/?INST)\]",
    re.IGNORECASE,
)
_VISIBLE = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]")
_VARIES = re.compile(r"[\W\d_]+")
_ASCII_WORDS = bytes(n if chr(n).isalpha() else 32 for n in range(128)) + bytes(128)
"""The same as a table for `bytes.translate`, which takes a fifth of the time."""
_RULE_BYTES_PER_TOKEN = 4
"""A limit of fewer tokens may leave no room for an answer that ends: a schema names each field twice, its answer once."""
_MOST_SEEN = 4_096
_seen: dict[str, int] = {}
"""Number of answers with each hash. The row of the second one has the text."""


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
        found["odd"], found["begin"] = blank, text[:_EXCERPT_CHARS]
        return found
    written = bool(payloads) and _WRITTEN.issuperset(payloads)
    if not request.quotes and text and copies(text, request.body, written=written):
        found["odd"], found["begin"] = "copies_prompt", text[:_EXCERPT_CHARS]
        return found
    name = text_digest(text) if answer.HAS_CHOICES else answer.digest
    if name and (written or not answer.HAS_CHOICES or tokens >= _FEWEST_OF_FILE) and not one_word:
        found["hash"] = name
        seen = _seen.get(name, 0)
        if seen == 1:
            found["begin"] = text[:_EXCERPT_CHARS]
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
