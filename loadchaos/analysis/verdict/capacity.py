"""Server errors that length alone explains: what the KV cache holds, told by the log, by facts or by the boundary itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from loadchaos.analysis.incidents.failures import FailureRecord
from loadchaos.analysis.verdict import symptoms
from loadchaos.core.model import Facts

_CAPACITY = "lmdeploy_input_length_error"
_LENGTH_FLAGS = {"vllm": "--max-model-len", "lmdeploy": "--session-len", "sglang": "--context-length"}
_UNNAMED = ("unexplained_http_error", "unexplained_finish_error")


def name_by_length(
    entries: Iterable[FailureRecord], lengths: symptoms.LengthSymptoms, kv: Mapping[str, float], facts: Facts | None
) -> None:
    """Give entries (in place) the title and remedy that this run's own lengths allow.

    `kv` are the figures `blocks`, `block_size` and `ratio` as the log told them; facts stand in where it did not.
    """
    blocks = kv.get("blocks") or (facts.kv_blocks if facts else None)
    size = kv.get("block_size") or (facts.kv_block_size if facts else None)
    boundary = lengths.boundary()
    for entry in entries:
        seen = entry.seen
        if boundary is not None and seen.id in _UNNAMED:
            entry.title = f"{seen.title} (prompts of {boundary[1]} tokens or more; up to {boundary[0]} are answered)"
            if facts is not None and facts.dialect == "lmdeploy":
                entry.seen = replace(seen, id=_CAPACITY)
        if entry.seen.id == _CAPACITY and blocks and size:
            over = [n for n in lengths.failed if n > blocks * size]
            if over:
                title, remedy = symptoms.kv_capacity(int(blocks), int(size), max(over), kv.get("ratio"))
                entry.title, entry.remedy = title, remedy
                entry.incident.title, entry.incident.remedy = title, remedy
        elif entry.seen.id == _CAPACITY and boundary is not None:
            entry.title = (
                f"prompts of {boundary[1]} tokens or more fail, up to {boundary[0]} pass: what the KV cache holds"
            )


def moved_by(facts: Facts | None, limit: int | None) -> str:
    """Which flag of the server moves `limit`, its shortest prompt that is too long, in words; empty where not known."""
    if facts is None:
        return ""
    if facts.input_limit is not None and facts.input_limit < (facts.max_model_len or math.inf) and facts.kv_blocks:
        held = f"{facts.kv_blocks} blocks of {facts.kv_block_size}"
        return f"{held} hold a prompt of {facts.input_limit:,}: --num-gpu-blocks or --cache-max-entry-count moves it"
    flag = _LENGTH_FLAGS.get(facts.dialect)
    return f"{flag} moves it" if flag and limit is not None and limit == facts.max_model_len else ""
