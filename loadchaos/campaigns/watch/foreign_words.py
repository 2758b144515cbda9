"""Find words of one request in the answer to another one, in the requests of a command: ids that no prompt shares."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

_WORD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{10,40}(?![A-Za-z0-9+/=])")
_TURNS = re.compile(r"[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])")
_FEWEST_TURNS = 3
"""Changes between letters and digits of an id that no model writes by chance. Names of models and dates have fewer."""
_ESCAPE = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|.)")  # of JSON
_MOST_BYTES = 64 << 10
"""A larger body, such as one with images, is not searched."""
_MOST_OF_REQUEST, _MOST_WORDS = 32, 20_000
_OF_SESSION = (b'"previous_response_id"', b'"conversation"')
"""Fields of a body whose server keeps the conversation, so that an answer may have words of an earlier request."""


class ForeignWords:
    """Words of the newest requests. A word of several requests names none of them, nor does one that an answer had first:
    the model made it, and may write it again.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[str, str | None] = OrderedDict()  # by word

    def checker(self, request: str, body: bytes) -> Callable[[str], str | None] | None:
        """Note the words of a request. Returns the check of its answer, which names the request whose word is in a text."""
        if len(body) > _MOST_BYTES or any(key in body for key in _OF_SESSION):
            return None
        for word in _words(_ESCAPE.sub(" ", body.decode("utf-8", "replace")))[:_MOST_OF_REQUEST]:
            self._owners[word] = request if self._owners.get(word, request) == request else None
            self._owners.move_to_end(word)
        while len(self._owners) > _MOST_WORDS:
            self._owners.popitem(last=False)

        def foreign(text: str) -> str | None:
            owners = [self._owners.setdefault(word, None) for word in _words(text) if word.encode() not in body]
            return next((owner for owner in owners if owner not in (None, request)), None)

        return foreign


def _words(text: str) -> list[str]:
    """Words with letters and digits by turns, in order, each once."""
    found = dict.fromkeys(word[0] for word in _WORD.finditer(text))
    return [word for word in found if len(_TURNS.findall(word)) >= _FEWEST_TURNS and not _is_example(word)]


def _is_example(word: str) -> bool:
    """True for words that models have learnt: the begin of a JSON web token, and `abc123def456`, which counts up."""
    letters, digits = ([c for c in word.lower() if c.isdigit() is number] for number in (False, True))
    steps = [ord(b) - ord(a) for part in (letters, digits) for a, b in pairwise(part)]
    return word.startswith("eyJ") or 2 * steps.count(1) >= len(steps)
