"""Measure log classification: 100 MB with one death, on one core.

Goal: under 10 s. Usage: python bench/classify.py [MEGABYTES]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from loadchaos.analysis.classify.classifier import Classifier, group, load

CRASHES = Path(__file__).parent.parent / "tests" / "crashes"


def lines(megabytes: float) -> Iterator[str]:
    """Give harmless log captures over and over, then one death."""
    ordinary = [
        line
        for name in (
            "vllm-traffic-and-resets",
            "vllm-start-up",
            "lmdeploy-start-up-and-traffic",
            "vllm-validation-errors",
        )
        for line in (CRASHES / "benign" / f"{name}.log").read_text("utf-8").partition("\n\n")[2].splitlines()
    ]
    size = 0
    while size < megabytes * 1e6:
        for line in ordinary:
            size += len(line) + 1
            yield line
    yield from (CRASHES / "vllm" / "encoder-cache-miss-in-the-drafter.log").read_text("utf-8").splitlines()


def main() -> None:
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 100.0
    load()
    classifier, matches, count = Classifier(), [], 0
    before_s = time.perf_counter()
    for n, line in enumerate(lines(megabytes), 1):
        matches += classifier.feed(line, line_no=n)
        count = n
    matches += classifier.close()
    failures = group(matches)
    took_s = time.perf_counter() - before_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{megabytes:g} MB, {count} lines in {took_s:.2f} s: {megabytes / took_s:.1f} MB/s, peak {peak_mb:.0f} MB")
    print("; ".join(f"{f.id} ({f.severity}), {f.repeats} repeats" for f in failures))


if __name__ == "__main__":
    main()
