"""Mooncake traces, and `vllm bench serve --dataset-name timed_trace`.

JSON Lines of `timestamp`, `input_length`, `output_length` and optionally `hash_ids`, one id for each block of the prompt.
Blocks with the same id have the same text. https://github.com/kvcache-ai/Mooncake (FAST25-release/traces); AIPerf reads them
as `mooncake_trace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadchaos.profile.trace_formats.base import WAITING, Arrival, TraceFormat


def _arrivals(row: Mapping[str, object]) -> Iterator[Arrival]:
    at = row.get("timestamp")
    if row.get("session_id") is not None and (at is None or "delay" in row):
        raise ValueError(f"session_id: {WAITING}")
    if isinstance(at, bool) or not isinstance(at, int | float) or not -1e18 < at < 1e18:
        raise ValueError(f"timestamp: a number was expected (got {at!r})")
    blocks = row.get("hash_ids") or ()
    if not isinstance(blocks, list | tuple) or not all(isinstance(b, int) for b in blocks):
        raise ValueError(f"hash_ids: a list of whole numbers was expected (got {str(blocks)[:80]})")
    yield Arrival(float(at), _tokens(row, "input_length"), _tokens(row, "output_length"), tuple(blocks))


def _tokens(row: Mapping[str, object], name: str) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: a number of tokens of at least 1 was expected (got {value!r})")
    return value


FORMAT = TraceFormat(
    "Mooncake, vLLM timed_trace, AIPerf mooncake_trace",
    frozenset({"timestamp", "input_length", "output_length"}),
    _arrivals,
    own_unit=False,
)
