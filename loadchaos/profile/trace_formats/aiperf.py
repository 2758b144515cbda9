"""AIPerf's records of each request: `profile_export.jsonl`. JSON Lines of `metadata` (`request_start_ns`,
`benchmark_phase`) and `metrics` (`input_sequence_length`, `output_sequence_length`). Warm-up requests and failed ones
are left out. https://github.com/ai-dynamo/aiperf (docs: working with profile exports)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadchaos.core.units import NS_PER_MS
from loadchaos.profile.trace_formats.base import Arrival, TraceFormat, answered, whole


def _arrivals(row: Mapping[str, object]) -> Iterable[Arrival]:
    metadata, metrics = row["metadata"], row["metrics"]
    if not isinstance(metadata, Mapping) or not isinstance(metrics, Mapping):
        raise ValueError("metadata and metrics: objects were expected")
    if metadata.get("benchmark_phase") == "warmup" or row.get("error"):
        return []
    start = metadata.get("request_start_ns")
    if isinstance(start, bool) or not isinstance(start, int):
        raise ValueError(f"metadata.request_start_ns: a number was expected (got {start!r})")
    tokens = [_value(metrics, name) for name in ("input_sequence_length", "output_sequence_length")]
    return answered(start / NS_PER_MS, *tokens)


def _value(metrics: Mapping[str, object], name: str) -> int:
    found = metrics.get(name)
    return whole(found.get("value") if isinstance(found, Mapping) else found, f"metrics.{name}")


FORMAT = TraceFormat("AIPerf profile_export.jsonl", frozenset({"metadata", "metrics"}), _arrivals)
