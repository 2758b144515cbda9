"""Compare the server's version with those of known issues."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from loadchaos.analysis.verdict.model import KnownIssue
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_VERSION = re.compile(r"v?(\d{1,9}(?:\.\d{1,9})*)(?:[.-]?(post|rc|a|b|dev)(\d{0,9}))?", re.IGNORECASE)
_CLAUSE = re.compile(r"(<=|>=|<|>|==)\s*(v?\d[\w.]*)")
# A development or candidate version comes before the version it leads to, a post version after it (PEP 440).
_STAGE = {"dev": -4, "a": -3, "b": -2, "rc": -1, "": 0, "post": 1}
_PLACES = 4

Order = tuple[tuple[int, ...], int, int]


def order(text: str) -> Order | None:
    """Sort key of the version at the start of a text. None where there is none. `0.8.5.post1` > `0.8.5` > `0.8.5rc2`; a
    local part (`+cpu`) does not count.
    """
    found = _VERSION.match(text.strip())
    if found is None:
        return None
    numbers = [int(n) for n in found[1].split(".")][:_PLACES]
    stage = (found[2] or "").lower()
    return tuple(numbers + [0] * (_PLACES - len(numbers))), _STAGE[stage], int(found[3] or 0)


def within(spec: str, version: str) -> bool | None:
    """True when a version is in `>=0.11.0, <0.27.1`. None when either cannot be parsed."""
    clauses, mine = _CLAUSE.findall(spec), order(version)
    if not clauses or mine is None:
        return None
    for sign, text in clauses:
        limit = order(text)
        if limit is None:
            return None
        holds = {"<": mine < limit, "<=": mine <= limit, ">": mine > limit, ">=": mine >= limit, "==": mine == limit}
        if not holds[sign]:
            return False
    return True


def standing(issue: KnownIssue, version: str) -> str:
    """Standing of an issue for a server of this version. The text follows `fixed in ...`."""
    fixed, affected = issue.fixed or "", issue.affected or ""
    fix, mine = order(fixed), order(version)
    hit = within(affected, version) if affected else None
    if fix is not None and mine is not None:
        if mine < fix:
            why = "lacks the fix" if hit is not False else f"is older than the affected versions ({affected})"
            return f"you run {version}, which {why}"
        condition = fixed.partition(" ")[2]
        if condition:
            return f"you run {version}, which has the fix only {condition}"
        return f"you run {version}, which should have the fix. Report upstream that the bug has returned"
    if hit is not None:
        return f"you run {version}, {'an affected version' if hit else 'not an affected version'} ({affected})"
    return f"you run {version}"


def with_standing(known: Iterable[KnownIssue], dialect: str | None, version: str | None) -> tuple[KnownIssue, ...]:
    """Known issues with `you_run` and `standing` for this server. Issues of other projects stay as they are."""
    repository = DIALECTS.get(dialect or "", UNKNOWN).repository
    return tuple(
        replace(issue, you_run=version, standing=standing(issue, version))
        if version and repository and issue.issue.startswith(f"{repository}#")
        else issue
        for issue in known
    )
