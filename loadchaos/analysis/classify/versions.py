"""Compare the server's version with those of known issues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from loadchaos.analysis.verdict.model import KnownIssue
from loadchaos.core.version_ranges import order, within
from loadchaos.server.dialects import DIALECTS, UNKNOWN


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
