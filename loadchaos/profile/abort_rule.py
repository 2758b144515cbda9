"""`abort_when` of a profile: `error_rate > 50% for 10s`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from loadchaos.core.units import duration_s, share

EXAMPLE = "error_rate > 50% for 10s"
_TEXT = re.compile(r"\s*(\S+)\s*(>=|>|<=|<|==|!=|=)\s*(\S+)\s+for\s+(\S.*?)\s*")


@dataclass(frozen=True)
class AbortRule:
    """Rule that ends the load early: the share of failed requests over `for_s` seconds is above `share` (0 to 1), or
    equal to it with `or_equal`.
    """

    text: str
    share: float
    or_equal: bool
    for_s: float

    def is_met(self, failed: int, ended: int) -> bool:
        part = failed / ended if ended else 0.0
        return part > self.share or (self.or_equal and part == self.share)


def parse(text: str) -> AbortRule:
    """Parse a rule. Raises ValueError that says what was expected."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"`error_rate > share for duration` was expected, e.g. {EXAMPLE} (got {text!r})")
    name, op, limit, length = match.groups()
    if name != "error_rate":
        raise ValueError(f"only error_rate ends a run early, e.g. {EXAMPLE} (got {name!r})")
    if op not in (">", ">="):
        raise ValueError(f"> or >= was expected, e.g. {EXAMPLE} (got {op!r})")
    for_s = duration_s(length)
    if not for_s:
        raise ValueError(f"a duration above 0 was expected, e.g. {EXAMPLE} (got {length!r})")
    return AbortRule(text.strip(), share(limit), op == ">=", for_s)
