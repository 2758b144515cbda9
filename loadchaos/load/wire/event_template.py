"""Recognise a repeated stream event by its first and last bytes.

A server sends the same JSON over and over with another token in it. Once one such event was parsed, its bytes around
the token's text are kept. A second parse with another text between them proves that they surround exactly one JSON
string. A later event with the same begin and end, and valid JSON string content between them, is then the same JSON
value with that text, by JSON's own grammar, and is not parsed.
"""

from __future__ import annotations

from typing import Any

import orjson

_TOKEN_KEYS = ("content", "reasoning", "reasoning_content")
_PROBE_TEXT = "another word, to prove it"
_TRIES = 4
"""Learning stops where every event differs in more than its text (token ids, log probabilities)."""


def json_string(between: bytes) -> str | None:
    """Decode bytes as the inside of a JSON string.

    Returns None where they cannot stand in one.
    """
    try:
        text: str = orjson.loads(b'"%s"' % between)
    except orjson.JSONDecodeError:
        return None
    return text


class EventTemplate:
    """Bytes around the text of a stream's token events, once `learned`.

    `is_answer`: the text belongs to the answer itself, not to its reasoning. `index`: its choice. `frame_begin` and
    `frame_end` are the same bytes with the SSE line around them.
    """

    __slots__ = ("_begin", "_end", "_tries", "frame_begin", "frame_end", "index", "is_answer", "learned")

    def __init__(self) -> None:
        self.learned = False
        self.is_answer = False
        self.index = 0
        self.frame_begin = self.frame_end = b""
        self._begin = self._end = b""
        self._tries = _TRIES

    def token_text(self, data: bytes) -> str | None:
        """Return the text of an event like the learned one.

        Returns None or "" where the event must be parsed.
        """
        if self.learned and data.startswith(self._begin) and data.endswith(self._end):
            return json_string(data[len(self._begin) : -len(self._end)])
        return None

    def learn(self, data: bytes, value: Any) -> None:
        """Learn from an event that held one token and nothing else. Changes `value`, which `data` was parsed to."""
        # A line end inside came from several data lines: framed anew it would be something else.
        # A numbered event must be read in full each time.
        if not self._tries or value.get("usage") is not None or "sequence_number" in value or b"\n" in data:
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
        holder[key] = _PROBE_TEXT
        try:
            proved = orjson.loads(begin + _PROBE_TEXT.encode() + end) == value
        except orjson.JSONDecodeError:
            return
        if proved:
            self.learned, self._begin, self._end = True, begin, end
            self.frame_begin, self.frame_end = b"data: " + begin, end + b"\n\n"
            self.is_answer = key in {"content", "text"}
            self.index = value["choices"][0].get("index", 0)


UNLEARNED = EventTemplate()
"""A template that recognises nothing; whoever wants to learn makes one of its own."""


def _token(choices: Any) -> tuple[dict[str, Any], str] | None:
    """Find the event's only token.

    Returns None where there are several, or a finish_reason.
    """
    if not isinstance(choices, list) or len(choices) != 1 or choices[0].get("finish_reason") is not None:
        return None
    delta = choices[0].get("delta")
    if delta is None:
        return (choices[0], "text") if choices[0].get("text") else None
    if delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"):
        return None
    keys = [key for key in _TOKEN_KEYS if delta.get(key)]
    return (delta, keys[0]) if len(keys) == 1 else None
