"""RefusalFigures: requests that admission control refused, in the words of the limiter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from loadchaos.core.goodput import WAIT
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.typed_json import IF_SET, Keywords
from loadchaos.core.units import NS_PER_S

if TYPE_CHECKING:
    from loadchaos.analysis.figures.requests import RequestStats

_MOST_TEXTS, _TEXT_CHARS = 50, 200
_SHOWN = 3
QUOTA_SPENT = "by a quota that is used up"
_SPENT = re.compile(r"insufficient_quota|billing|credit|balance|budget|prepaid", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NOT_ANSWERED = frozenset({"shed", "missed", "unfinished", "aborted"})
Count = Annotated[int, Keywords(minimum=0)]


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Waits after refusals with 429, after which the request was sent again (`on_429: wait`)."""

    waits: Count
    mean_s: Annotated[float, "mean wait"]
    longest_s: Annotated[float, "longest wait"]
    requests: Annotated[Count, "requests that waited and have an outcome"]
    ok: Annotated[Count, "of these, the ones that were answered"]


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """Requests that admission control refused (outcome `shed`)."""

    requests: Count
    sent: Count
    statuses: Annotated[tuple[str, ...], "HTTP statuses, most frequent first"] = ()
    texts: Annotated[
        tuple[str, ...], "the limiter's own words, most frequent first; of texts that differ only in numbers one"
    ] = ()
    retry_after: Annotated[tuple[str, ...], "values of the header Retry-After, most frequent first"] = ()
    accepted_per_s: Annotated[float | None, "requests that were not refused, per second of the load"] = None
    waited: Waits | None = field(default=None, metadata=IF_SET)


class RefusalFigures:
    """Folds ends; texts and values are bounded."""

    def __init__(self) -> None:
        self._statuses: Counter[str] = Counter()
        self._texts: Counter[str] = Counter()
        self._first_of: dict[str, str] = {}
        self._retry_after: Counter[str] = Counter()
        self._last_ns = 0
        self._waits, self._waited_ns, self._longest_ns = 0, 0, 0
        self._last_tries: Counter[str] = Counter()

    def on_end(self, row: EndRow) -> None:
        self._last_ns = max(self._last_ns, int(row.get("at_ns") or 0))
        detail = row.get("detail") or {}
        if wait_ns := int(detail.get(WAIT) or 0):
            self._waits += 1
            self._waited_ns, self._longest_ns = self._waited_ns + wait_ns, max(self._longest_ns, wait_ns)
        elif row.get("tries"):
            self._last_tries[str(row.get("outcome"))] += 1
        if row.get("outcome") != "shed":
            return
        self._statuses[str(row.get("status") or "")] += 1
        text = str(row.get("error") or "")[:_TEXT_CHARS]
        key = _NUMBER.sub("N", text)
        _count(self._texts, key)
        if key in self._texts:
            self._first_of.setdefault(key, text)
        if after := str(detail.get("retry_after") or ""):
            _count(self._retry_after, after)

    @property
    def by_spent_quota(self) -> bool:
        """True if most refusals say that money or a quota is used up, which no lower rate helps."""
        return bool(self._texts) and _SPENT.search(self._texts.most_common(1)[0][0]) is not None

    def figures(self, requests: RequestStats) -> Refusals | None:
        """None where nothing was refused."""
        outcomes = requests.total()
        if not outcomes["shed"]:
            return None
        seconds = (self._last_ns - (requests.first_sent_ns or self._last_ns)) / NS_PER_S
        accepted = sum(n for outcome, n in outcomes.items() if outcome not in _NOT_ANSWERED)
        return Refusals(
            requests=outcomes["shed"],
            sent=requests.begun,
            statuses=_most(self._statuses),
            texts=tuple(self._first_of[key] for key in _most(self._texts)),
            retry_after=_most(self._retry_after),
            accepted_per_s=round(accepted / seconds, 3) if seconds > 0 else None,
            waited=self._waited() if self._waits else None,
        )

    def _waited(self) -> Waits:
        return Waits(
            waits=self._waits,
            mean_s=round(self._waited_ns / self._waits / NS_PER_S, 3),
            longest_s=round(self._longest_ns / NS_PER_S, 3),
            requests=self._last_tries.total(),
            ok=self._last_tries["ok"],
        )


def retry_after_text(values: Sequence[str]) -> str:
    """Format values of Retry-After: `1 s, 30 s`; a date stays as it is."""
    return ", ".join(f"{value} s" if _NUMBER.fullmatch(value) else value for value in values)


def _count(counts: Counter[str], value: str) -> None:
    if value in counts or len(counts) < _MOST_TEXTS:
        counts[value] += 1


def _most(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(value for value, _ in counts.most_common(_SHOWN) if value)
