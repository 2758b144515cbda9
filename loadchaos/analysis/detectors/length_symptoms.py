"""Name server errors that the length of the prompts alone explains, by the capacity of the KV cache."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from loadchaos.analysis.failure import Failure
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow, LaunchRow, LogRow
from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_MOST_LENGTHS = 1_000
_FAILED = ("http_error", "finish_error", "stream_error", "truncated", "reset")  # it depends on the server version
_RATIO = re.compile(r"\bcache_max_entry_count=([\d.]+)|--cache-max-entry-count[ =]([\d.]+)")
_UNNAMED = ("unexplained_http_error", "unexplained_finish_error")


class LengthSymptoms(RowFold):
    """Planned prompt lengths (tokens) of answered and of failed requests."""

    def __init__(self) -> None:
        self._longest_ok = self._oks = 0
        self._failed: dict[int, int] = {}
        self._ratio: float | None = None

    def on_launch(self, row: LaunchRow) -> None:
        self._read(" ".join(map(str, row.get("command") or ())))

    def on_log(self, row: LogRow) -> None:
        self._read(str(row.get("text") or ""))

    def _read(self, text: str) -> None:
        if "cache" in text and (found := _RATIO.search(text)) is not None:
            self._ratio = float(found[1] or found[2])

    def on_end(self, row: EndRow) -> None:
        tokens, outcome = row.get("planned_tokens"), row.get("outcome")
        if tokens is None:
            return
        if outcome == "ok":
            self._longest_ok, self._oks = max(self._longest_ok, tokens), self._oks + 1
        elif outcome in _FAILED and (tokens in self._failed or len(self._failed) < _MOST_LENGTHS):
            self._failed[tokens] = self._failed.get(tokens, 0) + 1

    def _boundary(self) -> tuple[int, int] | None:
        """(longest answered, shortest failed), where length alone separates them."""
        if self._oks < 3 or sum(self._failed.values()) < 3 or min(self._failed) <= self._longest_ok:
            return None
        return self._longest_ok, min(self._failed)

    def name(self, failures: Iterable[Failure], facts: Facts | None) -> None:
        """Set title and remedy of failures (in place) by prompt lengths and the KV cache of the facts."""
        blocks, size = (facts.kv_blocks, facts.kv_block_size) if facts is not None else (None, None)
        boundary, capacity = self._boundary(), {dialect.length_failure for dialect in DIALECTS.values()}
        for failure in failures:
            if boundary is not None and failure.id in _UNNAMED:
                failure.title += f" (prompts of {boundary[1]} tokens or more; up to {boundary[0]} are answered)"
                if facts is not None and (name := DIALECTS.get(facts.dialect, UNKNOWN).length_failure):
                    failure.id = name
            if failure.id not in capacity:
                continue
            too_long = [n for n in self._failed if blocks and size and n > blocks * size]
            if too_long and blocks and size:
                failure.title, failure.remedy = _kv_capacity(blocks, size, max(too_long), self._ratio)
                if failure.incident is not None:
                    failure.incident.title, failure.incident.remedy = failure.title, failure.remedy
            elif boundary is not None and not (blocks and size):
                failure.title = (
                    f"Prompts of {boundary[1]} tokens or more fail, up to {boundary[0]} pass: KV cache capacity"
                )


def _kv_capacity(blocks: int, block_size: int, tokens: int, ratio: float | None) -> tuple[str, str]:
    """(title, remedy) of a prompt longer than the KV cache (LMDeploy). The number of blocks grows in proportion to
    cache_max_entry_count (five-bugs 2: 21 at 0.1, 107 at 0.5), so the least value is that of the needed blocks, rounded
    up to 0.01.
    """
    cap, needed = blocks * block_size, math.ceil(tokens / block_size)
    title = f"the KV cache holds {blocks} x {block_size} = {cap} tokens, this prompt had {tokens}, "
    title += f"which needs {needed} blocks"
    if ratio is None:
        return title, "a larger --cache-max-entry-count, or a shorter input"
    least = math.ceil(needed / blocks * ratio * 100 - 1e-9) / 100
    if least >= 1:
        return (
            title,
            f"a shorter input, or more GPU memory (--cache-max-entry-count is {ratio:g} now and cannot reach {least:g})",
        )
    return title, f"--cache-max-entry-count of at least {least:g} ({ratio:g} now), or a shorter input"
