"""Values of --dataset-name, with the options that each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

TRACES = ("timed_trace", "mooncake", "burstgpt", "azure", "aiperf", "otel")
"""Data sets with times of their own."""

DATASETS = ("random", "random-mm", "prefix_repetition", "sharegpt", "custom", *TRACES)
"""Data sets that requests without a profile are made from."""

_RANDOM = ("random", "random-mm")
_WITH_OUTPUT = (*_RANDOM, "prefix_repetition", "sharegpt", "custom")


def _of(*datasets: str) -> Any:
    return field(default=None, metadata={"datasets": datasets})


@dataclass(frozen=True)
class DatasetOptions:
    """Options of data sets, named as those of `vllm bench serve`; None: not given. `random_range_ratio` has those of input
    and output, `random_mm_bucket_config` a weight for each (height, width, frames).
    """

    input_len: int | None = _of(*_RANDOM)
    output_len: int | None = _of(*_WITH_OUTPUT)
    random_input_len: int | None = _of(*_RANDOM)
    random_output_len: int | None = _of(*_RANDOM)
    random_range_ratio: tuple[float, float] | None = _of(*_RANDOM)
    random_prefix_len: int | None = _of(*_RANDOM)
    random_mm_base_items_per_request: int | None = _of("random-mm")
    random_mm_num_mm_items_range_ratio: float | None = _of("random-mm")
    random_mm_bucket_config: Mapping[tuple[int, int, int], float] | None = _of("random-mm")
    prefix_repetition_prefix_len: int | None = _of("prefix_repetition")
    prefix_repetition_suffix_len: int | None = _of("prefix_repetition")
    prefix_repetition_num_prefixes: int | None = _of("prefix_repetition")
    prefix_repetition_output_len: int | None = _of("prefix_repetition")
    dataset_path: str | None = _of("sharegpt", "custom", *TRACES)
    timed_trace_chunk_hash_size: int | None = _of("timed_trace")
    timed_trace_sec_multiplier: float | None = _of("timed_trace")

    def given(self, *names: str) -> list[str]:
        """Names of the options that are given, of some or of all."""
        return [name for name in names or DATASET_OPTIONS if getattr(self, name) is not None]


DATASET_OPTIONS: Mapping[str, tuple[str, ...]] = {f.name: f.metadata["datasets"] for f in fields(DatasetOptions)}
"""Data sets that an option belongs to; with any other one it is a mistake."""
