"""Read the result files of load tools. One file for each tool has `read`, which takes what the file holds and gives
`ReportedFigures`, or None for the file of another tool. To add one, copy k6.py and enter it in `READERS`.

`find` looks for the file that a command wrote; analysis/figures/reported.py puts its figures beside those of the wire.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadchaos.campaigns.recorder.reported import aiperf, guidellm, inference_perf, k6, locust, vllm_bench
from loadchaos.core.reported_figures import ReportedFigures

__all__ = ["READERS", "ReportedFigures", "read_result_file"]

READERS: Mapping[str, Sequence[Callable[[object], ReportedFigures | None]]] = {
    "vllm bench and vllm-rs bench": [vllm_bench.read],
    "GuideLLM": [guidellm.read],
    "AIPerf": [aiperf.read],
    "inference-perf": [inference_perf.read],
    "Locust": [locust.read_csv, locust.read_json],
    "k6": [k6.read],
}

MOST_BYTES = 256 << 20
"""A larger file is not read. GuideLLM writes 9 kB for each request."""


def read_result_file(path: Path) -> ReportedFigures | None:
    """Read what a tool reported; None for a file of no known tool, one that is broken, too large or gone."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        data = content_of(path)
    except (OSError, ValueError, RecursionError, csv.Error):
        return None
    found = (read(data) for readers in READERS.values() for read in readers)
    return next((figures for figures in found if figures is not None), None)


def content_of(path: Path) -> object:
    """Read JSON, the last line of JSON Lines (`vllm bench serve --append-result`), or the rows of a CSV file."""
    text = path.read_text("utf-8")
    if text.lstrip()[:1] not in ("{", "["):
        return list(csv.DictReader(text.splitlines()))
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(text.rstrip().rpartition("\n")[2])
