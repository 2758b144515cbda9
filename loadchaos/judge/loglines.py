"""Log lines to failures, live: what a dying server says is held back a moment, so that the cause outruns its echoes."""

from __future__ import annotations

import re

from loadchaos.judge.classify import Classifier
from loadchaos.judge.group import Failure, Match, group
from loadchaos.judge.tally import S
from loadchaos.model import Row

_QUIET_NS = 2 * S
_LONGEST_NS = 10 * S
_MOST_MATCHES = 5_000

_KV_FACTS = {
    "blocks": re.compile(r"\bnum_gpu_blocks=(\d+)|\bblock num: (\d+)|Initialize cache engine with (\d+) gpu blocks"),
    "block_size": re.compile(r"\bblock_size=(\d+)"),
    "ratio": re.compile(r"\bcache_max_entry_count=([\d.]+)|--cache-max-entry-count[ =]([\d.]+)"),
}
_KV_HINT = ("gpu_blocks", "block num", "block_size", "cache_max_entry_count", "cache-max-entry-count", "gpu blocks")


class LogLines:
    """Feeds the classifier; `ready` gives the failures of a burst once 2 s have passed without another match."""

    def __init__(self) -> None:
        self._classifier = Classifier()
        self._matches: list[Match] = []
        self._first_ns = self._newest_ns = 0
        self.lines = 0
        self.kv: dict[str, float] = {}

    def feed(self, row: Row, now_ns: int) -> bool:
        """Fold a `log` row; True when it holds a match."""
        self.lines += 1
        text = str(row.get("text", ""))
        if any(hint in text for hint in _KV_HINT):
            self.remember(text)
        source = str(row.get("file") or row.get("source") or "server.log")
        at_ns = row.get("at_ns")
        return self._hold(self._classifier.feed(text, line_no=int(row["line"]), at_ns=at_ns, source=source), now_ns)

    def ready(self, now_ns: int | None) -> list[Failure]:
        """Failures of what has been said; None: the run is over, and everything is given."""
        if now_ns is None:
            self._hold(self._classifier.close(), self._newest_ns)
        elif not self._matches or (
            now_ns - self._newest_ns < _QUIET_NS
            and now_ns - self._first_ns < _LONGEST_NS
            and len(self._matches) < _MOST_MATCHES
        ):
            return []
        matches, self._matches = self._matches, []
        return group(matches)

    def _hold(self, matches: list[Match], now_ns: int) -> bool:
        if not matches:
            return False
        if not self._matches:
            self._first_ns = now_ns
        self._matches += matches
        self._newest_ns = now_ns
        return True

    def remember(self, text: str) -> None:
        """Take figures of the KV cache from a line of the log or from the command that started the server."""
        for name, pattern in _KV_FACTS.items():
            if (hit := pattern.search(text)) is not None:
                self.kv[name] = float(next(g for g in hit.groups() if g))
