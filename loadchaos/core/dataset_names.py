"""Values of --dataset-name, with the options that each of them has."""

from __future__ import annotations

from collections.abc import Mapping

TRACES = ("timed_trace", "mooncake", "burstgpt", "azure", "aiperf", "otel")
"""Data sets with times of their own."""

DATASETS = ("random", "random-mm", "prefix_repetition", "sharegpt", "custom", *TRACES)
"""Data sets that requests without a profile are made from."""

DATASET_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "input_len": ("random", "random-mm"),
    "output_len": ("random", "random-mm", "prefix_repetition", "sharegpt", "custom"),
    "random_input_len": ("random", "random-mm"),
    "random_output_len": ("random", "random-mm"),
    "random_range_ratio": ("random", "random-mm"),
    "random_prefix_len": ("random", "random-mm"),
    "random_mm_base_items_per_request": ("random-mm",),
    "random_mm_num_mm_items_range_ratio": ("random-mm",),
    "random_mm_bucket_config": ("random-mm",),
    "prefix_repetition_prefix_len": ("prefix_repetition",),
    "prefix_repetition_suffix_len": ("prefix_repetition",),
    "prefix_repetition_num_prefixes": ("prefix_repetition",),
    "prefix_repetition_output_len": ("prefix_repetition",),
    "dataset_path": ("sharegpt", "custom", *TRACES),
    "timed_trace_chunk_hash_size": ("timed_trace",),
    "timed_trace_sec_multiplier": ("timed_trace",),
}
"""Data sets that an option belongs to; with any other one it is a mistake."""
