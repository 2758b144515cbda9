"""Prometheus page: counters, gauges and histograms. The format is that of prometheus-client."""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Labels = Mapping[str, str]


def number(value: float) -> str:
    """Format a value as prometheus-client does: 3.0, 1.79e+09."""
    if value == float("inf"):
        return "+Inf"
    text = repr(float(value))
    mantissa, dot, fraction = text.partition(".")
    if "e" not in text and len(mantissa.lstrip("-")) > 6:
        digits = (mantissa + fraction).rstrip("0") if dot else mantissa
        sign = "-" if digits.startswith("-") else ""
        digits = digits.lstrip("-")
        exponent = len(mantissa.lstrip("-")) - 1
        return f"{sign}{digits[0]}.{digits[1:] or '0'}e+{exponent:02d}"
    return text


def label_text(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
    return f"{{{inside}}}"


def one_two_five(limit: int) -> tuple[float, ...]:
    """Bounds 1, 2, 5, 10, ... up to a limit."""
    return tuple(float(m * 10**e) for e in range(8) for m in (1, 2, 5) if m * 10**e <= limit)


class Histogram:
    """Counts by upper bound, cumulated only when written."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class MetricsPage:
    """One answer of /metrics, built anew for each scrape."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Add a counter or gauge with all its samples. `name` is as on the page (counters with _total)."""
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        self._lines += [f"{name}{label_text(labels)} {number(value)}" for labels, value in samples]

    def histogram(self, name: str, text: str, labels: Labels, histogram: Histogram) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        total = 0
        for bound, count in zip([*histogram.bounds, float("inf")], histogram.counts, strict=True):
            total += count
            self._lines.append(f"{name}_bucket{label_text({**labels, 'le': number(bound)})} {number(total)}")
        self._lines.append(f"{name}_count{label_text(labels)} {number(total)}")
        self._lines.append(f"{name}_sum{label_text(labels)} {number(histogram.sum)}")

    def process(self) -> None:
        memory = _memory()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for name, kind, text, value in (
            ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", memory[0]),
            ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", memory[1]),
            ("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", STARTED),
            (
                "process_cpu_seconds_total",
                "counter",
                "Total user and system CPU time spent in seconds.",
                usage.ru_utime + usage.ru_stime,
            ),
            ("process_open_fds", "gauge", "Number of open file descriptors.", _open_files()),
            (
                "process_max_fds",
                "gauge",
                "Maximum number of open file descriptors.",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
        ):
            self.family(name, kind, text, [({}, value)])

    def render(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _memory() -> tuple[float, float]:
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0.0, 0.0  # not Linux
    size = os.sysconf("SC_PAGE_SIZE")
    return float(pages[0]) * size, float(pages[1]) * size


def _open_files() -> float:
    try:
        return float(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - counting, on every scrape
    except OSError:
        return 0.0  # not Linux


STARTED = round(time.time() - time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID), 2)  # imported right at the start

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
