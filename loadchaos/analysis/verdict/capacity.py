"""Name server errors that length alone explains, by the KV cache capacity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from loadchaos.analysis.failure import Failure
from loadchaos.analysis.verdict import symptoms
from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_CAPACITY = {dialect.length_failure for dialect in DIALECTS.values() if dialect.length_failure}
_UNNAMED = ("unexplained_http_error", "unexplained_finish_error")


def name_by_length(
    failures: Iterable[Failure], lengths: symptoms.LengthSymptoms, kv: Mapping[str, float], facts: Facts | None
) -> None:
    """Set title and remedy of failures (in place) by prompt lengths.

    `kv` are the figures `blocks`, `block_size` and `ratio` of the log, else those of the facts.
    """
    blocks = kv.get("blocks") or (facts.kv_blocks if facts else None)
    size = kv.get("block_size") or (facts.kv_block_size if facts else None)
    boundary = lengths.boundary()
    for failure in failures:
        if boundary is not None and failure.id in _UNNAMED:
            failure.title += f" (prompts of {boundary[1]} tokens or more; up to {boundary[0]} are answered)"
            if facts is not None and (name := DIALECTS.get(facts.dialect, UNKNOWN).length_failure):
                failure.id = name
        if failure.id not in _CAPACITY:
            continue
        too_long = [n for n in lengths.failed if blocks and size and n > blocks * size]
        if too_long and blocks and size:
            failure.title, failure.remedy = symptoms.kv_capacity(int(blocks), int(size), max(too_long), kv.get("ratio"))
            if failure.incident is not None:
                failure.incident.title, failure.incident.remedy = failure.title, failure.remedy
        elif boundary is not None and not (blocks and size):
            failure.title = f"Prompts of {boundary[1]} tokens or more fail, up to {boundary[0]} pass: KV cache capacity"


def moved_by(facts: Facts | None, limit: int | None) -> str:
    """Server flag that sets `limit`, the shortest refused prompt."""
    if facts is None:
        return ""
    dialect, context = DIALECTS.get(facts.dialect, UNKNOWN), facts.max_model_len or math.inf
    if facts.input_limit is not None and facts.input_limit < context and facts.kv_blocks and dialect.capacity_flag:
        capacity = f"{facts.kv_blocks} blocks of {facts.kv_block_size}"
        return f"{capacity} hold a prompt of {facts.input_limit:,}, set by {dialect.capacity_flag}"
    known = {facts.max_model_len, None if facts.input_limit is None else facts.input_limit + 1}
    cache_decides = facts.capacity_tokens is not None and facts.capacity_tokens < context and not dialect.context_fits
    flag = dialect.capacity_flag if cache_decides else dialect.length_flag
    return f"set by {flag}" if flag and limit is not None and limit in known else ""
