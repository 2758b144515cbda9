"""Knows an event of a stream again by its first and last bytes, so that only the word between them has to be looked at.

A server sends the same JSON over and over with another token in it. Once one such event was parsed, its bytes around
the token's text are kept; that they are what stands around one JSON string, and which, is proved by parsing them again
with another text between. A later event with the same begin and end, and what may stand in a JSON string between them,
is then the same JSON value with that text, by JSON's own grammar.
"""

from __future__ import annotations

from typing import Any

import orjson

_TOKEN_KEYS = ("content", "reasoning", "reasoning_content")
_OTHER_WORD = "another word, to prove it"
_TRIES = 4
"""Where every event differs in more than its text (token ids, log probabilities), learning is given up."""


def string(between: bytes) -> str | None:
    """The text of these bytes where they may stand in a JSON string as they are, else None."""
    try:
        text: str = orjson.loads(b'"%s"' % between)
    except orjson.JSONDecodeError:
        return None
    return text


class EventTemplate:
    """The bytes around the text of a stream's token events, once there was one to learn them from (`known`).

    `is_answer` says whether the text belongs to the answer itself, not to its reasoning. `frame_begin` and `frame_end`
    are the same bytes with the SSE line around them.
    """

    __slots__ = ("_begin", "_end", "_tries", "frame_begin", "frame_end", "is_answer", "known")

    def __init__(self) -> None:
        self.known = False
        self.is_answer = False
        self.frame_begin = self.frame_end = b""
        self._begin = self._end = b""
        self._tries = _TRIES

    def word(self, data: bytes) -> str | None:
        """The text of an event that is like the one learned; None (or "") where it has to be parsed."""
        if self.known and data.startswith(self._begin) and data.endswith(self._end):
            return string(data[len(self._begin) : -len(self._end)])
        return None

    def learn(self, data: bytes, value: Any) -> None:
        """Learn from an event's bytes and what they were parsed to, if it brought one token and nothing else at all.

        Changes `value`.
        """
        # A line end inside came from several data lines: framed anew it would be something else.
        if not self._tries or value.get("usage") is not None or b"\n" in data:
            return
        found = _token(value.get("choices"))
        if found is None:
            return
        holder, key = found
        quoted = b'"%s"' % holder[key].encode()
        at = data.rfind(quoted)
        if at < 0:  # it was written with escapes; another one will not be
            return
        self._tries -= 1
        begin, end = data[: at + 1], data[at + len(quoted) - 1 :]
        holder[key] = _OTHER_WORD
        try:
            proved = orjson.loads(begin + _OTHER_WORD.encode() + end) == value
        except orjson.JSONDecodeError:
            return
        if proved:
            self.known, self._begin, self._end = True, begin, end
            self.frame_begin, self.frame_end = b"data: " + begin, end + b"\n\n"
            self.is_answer = key in {"content", "text"}


def _token(choices: Any) -> tuple[dict[str, Any], str] | None:
    """Where the text of an event's only token stands; None where it brought more, or an end."""
    if not isinstance(choices, list) or len(choices) != 1 or choices[0].get("finish_reason") is not None:
        return None
    delta = choices[0].get("delta")
    if delta is None:
        return (choices[0], "text") if choices[0].get("text") else None
    if delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"):
        return None
    keys = [key for key in _TOKEN_KEYS if delta.get(key)]
    return (delta, keys[0]) if len(keys) == 1 else None
