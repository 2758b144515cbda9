"""Read drafted and accepted tokens of one answer (speculative decoding).

| server | place in the answer | told |
|---|---|---|
| vLLM | `metrics.speculative_decoding` | with `--per-request-spec-decode-metrics summary` |
| llama.cpp | `timings` | where it drafts |
| SGLang | `sglext.spec_tokens_details` | where the request has `return_spec_tokens_details: true` |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class DraftCount(NamedTuple):
    """Drafted tokens of an answer, and how many of them were accepted."""

    drafted: int
    accepted: int


_PLACES = (
    ("metrics", "speculative_decoding", "num_draft_tokens", "num_accepted_draft_tokens"),
    ("timings", None, "draft_n", "draft_n_accepted"),
    ("sglext", "spec_tokens_details", "spec_num_proposed_drafts", "spec_num_correct_drafts"),
)
"""Key of the answer, key inside it, keys of the drafted and the accepted tokens."""
KEYS = frozenset(place[0] for place in _PLACES)
"""Keys of an answer or an event that may have them."""


def draft_count(data: Mapping[str, object]) -> DraftCount | None:
    """Read the draft count of an answer or its last event; None: not told."""
    for key, inner, drafted, accepted in _PLACES:
        found: Any = data.get(key)
        if inner is not None:
            found = found.get(inner) if isinstance(found, dict) else None
        parts = [part for part in (found if isinstance(found, list) else [found]) if isinstance(part, dict)]
        counts = [DraftCount(part.get(drafted), part.get(accepted)) for part in parts]  # type: ignore[arg-type]  # tested below
        if counts and all(type(n) is int and n >= 0 for count in counts for n in count):
            return DraftCount(sum(c.drafted for c in counts), sum(c.accepted for c in counts))
    return None
