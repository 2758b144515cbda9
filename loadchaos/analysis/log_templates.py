"""Templates of log lines: the constant part of each kind of line.

An online miner in the manner of Drain (He et al., ICWS 2017): a line is normalised, split into words, and compared with the
templates of its length and first word. A word that differs becomes a wildcard.
"""

from __future__ import annotations

import re

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.classify.prefixes import expand, strip_prefixes

WILDCARD = "*"
_SIMILAR = 0.6
_MOST_WORDS = 40
_MOST_CHARS = 400
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|\{[^{}]*\}")
_NUMBERED = re.compile(r"\b[A-Za-z_]*\d[\w.%-]*")


def masked(text: str) -> list[str]:
    found = []
    for line in expand(text[:_MOST_CHARS]):
        own = strip_prefixes(line)
        short = normalise(_NUMBERED.sub("N", _QUOTED.sub("Q", own.text)))
        if short:
            found.append(f"{own.level} {short}".strip())
    return found


class TemplateMiner:
    """Templates seen so far; `add` gives the template of a masked line. A template keeps its name (its first line),
    however general it becomes.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], list[tuple[list[str], str]]] = {}

    def add(self, line: str) -> str:
        """Find or make the template of a masked line. Returns its name."""
        words = line.split()[:_MOST_WORDS]
        group = self._groups.setdefault((len(words), words[0] if words else ""), [])
        best, score = None, 0.0
        for template in group:
            shared = sum(a in (b, WILDCARD) for a, b in zip(template[0], words, strict=True)) / max(1, len(words))
            if shared > score:
                best, score = template, shared
        if best is None or score < _SIMILAR:
            best = (words, line)
            group.append(best)
        for i, word in enumerate(words):
            if best[0][i] != word:
                best[0][i] = WILDCARD
        return best[1]

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))
