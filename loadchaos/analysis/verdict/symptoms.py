"""Symptoms in the figures of a whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loadchaos.core.ledger.rows import EndRow

_MOST_LENGTHS = 1_000
_FAILED = ("http_error", "finish_error", "stream_error", "truncated", "reset")  # it depends on the server version


@dataclass
class LengthSymptoms:
    """Planned prompt lengths (tokens) of answered and of failed requests."""

    longest_ok: int = 0
    oks: int = 0
    failed: dict[int, int] = field(default_factory=dict)

    def on_end(self, row: EndRow) -> None:
        """Fold an end row."""
        tokens, outcome = row.get("planned_tokens"), row.get("outcome")
        if tokens is None:
            return
        if outcome == "ok":
            self.longest_ok, self.oks = max(self.longest_ok, tokens), self.oks + 1
        elif outcome in _FAILED and (tokens in self.failed or len(self.failed) < _MOST_LENGTHS):
            self.failed[tokens] = self.failed.get(tokens, 0) + 1

    def boundary(self) -> tuple[int, int] | None:
        """(longest answered, shortest failed), where length alone separates them."""
        if self.oks < 3 or sum(self.failed.values()) < 3 or min(self.failed) <= self.longest_ok:
            return None
        return self.longest_ok, min(self.failed)


def kv_capacity(blocks: int, block_size: int, tokens: int, ratio: float | None) -> tuple[str, str]:
    """(title, remedy) of a prompt longer than the KV cache (LMDeploy).

    The number of blocks grows in proportion to cache_max_entry_count (five-bugs 2: 21 at 0.1, 107 at 0.5), so the least
    value is that of the needed blocks, rounded up to 0.01.
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
