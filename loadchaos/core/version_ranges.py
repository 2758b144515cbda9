"""Order versions of servers, and compare them with ranges such as `>=0.11.0, <0.27.1`."""

from __future__ import annotations

import re

_VERSION = re.compile(r"[vb]?(\d{1,9}(?:\.\d{1,9})*)(?:[.-]?(post|rc|a|b|dev)(\d{0,9}))?", re.IGNORECASE)
SIGNS = ("<=", ">=", "<", ">", "==")
_CLAUSE = re.compile(r"(<=|>=|<|>|==)\s*([vb]?\d[\w.]*)")
# A development or candidate version comes before the version it leads to, a post version after it (PEP 440).
_STAGE = {"dev": -4, "a": -3, "b": -2, "rc": -1, "": 0, "post": 1}
_PLACES = 4

Order = tuple[tuple[int, ...], int, int]


def order(text: str) -> Order | None:
    """Sort key of the version at the start of a text. None where there is none. `0.8.5.post1` > `0.8.5` > `0.8.5rc2`; a
    local part (`+cpu`) does not count. A build such as `b6987` of llama.cpp is a version of one number.
    """
    found = _VERSION.match(text.strip())
    if found is None:
        return None
    numbers = [int(n) for n in found[1].split(".")][:_PLACES]
    stage = (found[2] or "").lower()
    return tuple(numbers + [0] * (_PLACES - len(numbers))), _STAGE[stage], int(found[3] or 0)


def clauses(spec: str) -> list[tuple[str, str]]:
    """The comparisons of a range, as (sign, version). Raises ValueError for a text that is no range."""
    found = [_CLAUSE.fullmatch(part.strip()) for part in spec.split(",")]
    if not all(found):
        raise ValueError(f"a range such as '>=0.11.0, <0.27.1' or '==0.22.1' was expected (got {spec!r})")
    return [(one[1], one[2]) for one in found if one is not None]


def within(spec: str, version: str) -> bool | None:
    """True when a version is in `>=0.11.0, <0.27.1`. None when either cannot be parsed."""
    parts, mine = _CLAUSE.findall(spec), order(version)
    if not parts or mine is None:
        return None
    for sign, text in parts:
        limit = order(text)
        if limit is None:
            return None
        holds = {"<": mine < limit, "<=": mine <= limit, ">": mine > limit, ">=": mine >= limit, "==": mine == limit}
        if not holds[sign]:
            return False
    return True
