"""Prefix cache hits on prompts that the profile does not repeat.

Such a hit means that an earlier load, or another client, sent the same prompt: a run with the same seed sends the same
prompts. Latencies of the run are then those of a warm cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from loadchaos.analysis.figures.requests import Part
from loadchaos.core import typed_json
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import BeginRow, EndRow, FactsRow, MetricsRow, QuestionRow, RunRow
from loadchaos.core.model import Facts

_MOST_SHARE = 0.1
"""Share of the prompt tokens that may be cached without a note: other clients, retries."""
_PREEMPTIONS = "preemptions_total"
_LIKE_WORDS = 4
"""Tokens at the start of two prompts that may be equal by chance."""


class WarmCache(RowFold):
    """Folds what explains prefix cache hits: `fold` rows, then `hit_rate`. Prompts of `new_prompts` (names of traffic)
    share the tokens of the chat template only. Hits are not judged where these are unknown, or where the engine
    preempted requests: it reads their prompts again.
    """

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._template_tokens: int | None = None
        self._asked = False
        self._loading = False
        self._preemptions: dict[tuple[str, str], float] = {}
        self._preempted = False

    def on_run(self, row: RunRow) -> None:
        if row.get("what") == "load_begin":
            self._loading = True

    def on_facts(self, row: FactsRow) -> None:
        text = typed_json.from_json(Facts, row["facts"]).text if row.get("facts") else None
        self._template_tokens = text.overhead if text is not None and text.source != "guess" else None

    def on_begin(self, row: BeginRow) -> None:
        self._sent[str(row.get("traffic", ""))] += 1

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") == "ok":
            self._answered[str(row.get("traffic", ""))] += 1

    def on_question(self, row: QuestionRow) -> None:  # noqa: ARG002 - any question of the load counts
        self._asked = self._asked or self._loading

    def on_metrics(self, row: MetricsRow) -> None:
        key, now = (str(row.get("replica")), str(row.get("engine"))), (row.get("values") or {}).get(_PREEMPTIONS)
        if now is not None:
            self._preempted = self._preempted or (self._loading and now > self._preemptions.get(key, now))
            self._preemptions[key] = now

    def hit_rate(self, hits: dict[str, Part], source: str | None, new_prompts: Collection[str]) -> float | None:
        """Share of the prompt tokens that were cached though none repeats.

        Args:
            hits: cached and all prompt tokens by traffic; "": all of it.
            source: `usage` of the answers, or `counters` of the server, which count our questions, too.
            new_prompts: names of traffic without repeated prompts.

        None: not known.
        """
        if self._template_tokens is None or self._preempted:
            return None
        if source == "usage":
            known = [(hits[t], self._answered[t]) for t in new_prompts if t in hits]
        elif source == "counters" and not self._asked and set(self._sent) <= set(new_prompts):
            known = [(hits[""], self._sent.total())]
        else:
            return None
        shared = self._template_tokens + _LIKE_WORDS
        tokens = sum(part.whole for part, _ in known)
        surplus = sum(max(0, part.n - shared * requests) for part, requests in known)
        return surplus / tokens if tokens else None


def why_warm(hit_rate: float | None) -> str | None:
    if hit_rate is None or hit_rate <= _MOST_SHARE:
        return None
    return (
        "the server had the prompts in its prefix cache, though the profile repeats none: an earlier run with this seed, or "
        "another client, has sent them (restart the server, empty its cache, or give another --seed)"
    )
