"""Detect another request's secret word in an answer (answers mixed up)."""

from __future__ import annotations

import re
from collections.abc import Callable

from loadchaos.core.model import TextFacts
from loadchaos.load.payloads import secret_word
from loadchaos.load.payloads.text import corpus_for

_PROBE = re.compile(r"\b(?:canary|probe)-\d{10}\b")
"""Words of canary and probes; no prompt of the load contains one."""


class SecretWords:
    """Secret words of all requests of the run, those of other workers too.

    They need no memory: a word names its request (load/payloads/secret_word.py).
    """

    def __init__(self, text: TextFacts | None, seed: int, id_prefix: str) -> None:
        books = [corpus_for(text).alphabet]
        books += [secret_word.alphabet(words) for _, words in (text.scripts if text is not None else ())]
        self._alphabets = [book for book in books if book.bits]
        self._markers = [book.marker for book in self._alphabets]
        self._seed, self._id_prefix = seed, id_prefix

    def checker(self, own: int | None) -> Callable[[str], str | None]:
        """Return the check of one request's answer.

        It returns the name of the other request whose word is in the answer, or None.
        """

        def foreign(text: str) -> str | None:
            for n, marker in enumerate(self._markers):
                if marker in text:
                    for owner in self._alphabets[n].read(text, self._seed):
                        if owner != own:
                            return secret_word.owner_text(owner, self._id_prefix)
            if ("canary-" in text or "probe-" in text) and (probe := _PROBE.search(text)) is not None:
                return probe[0]
            return None

        return foreign
