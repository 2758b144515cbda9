"""Latency figures, `ttft_p99` in `expect` and `TTFT p99` in reports: names, quantiles, fewest samples of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SESSION_TIME = "session_e2e"
"""Name of the time of a session among the latencies of `expect`."""

LATENCIES: Mapping[str, str] = {
    "ttft": "time to first token",
    "ttfo": "time to first token after the reasoning",
    "itl": "inter-token latency: time between two chunks with tokens",
    "tpot": "time per output token of a request, after its first token",
    "e2e": "end-to-end time of a request",
    SESSION_TIME: "time of a session (a conversation with answers: live) from its first request to its last answer",
}
"""Latency by name, with its meaning."""

STATISTICS: Mapping[str, float | None] = {
    "p50": 0.5,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
    "mean": None,
    "max": None,
}
"""Statistic by name, with its quantile. Mean and maximum have none."""

REPORTED_QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Quantile by name, that distributions and trends show."""

REPORTED_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
"""Statistics in the order in which verdict.json, the report and the terminal show them."""

REPORTED_LATENCIES = ("ttft", "itl", "tpot", "e2e")
"""Latencies in the order in which the report and the terminal show them."""

FEWEST_SAMPLES: Mapping[str, int] = {"p50": 20, "p90": 50, "p95": 100, "p99": 300, "p999": 3000, "mean": 20, "max": 1}
"""Samples that a statistic needs to be judged, or compared with another run, and a percentile to be shown.

From there on the largest sample lies above the quantile with a confidence of 95 %: `1 - q ** n >= 0.95`. With fewer, the
quantile may be the largest sample, which a bootstrap only repeats. A comparison of two runs counts the gaps of an answer
as one sample.
"""

FEWEST_ITL_ANSWERS = 20
"""Answers that any statistic of ITL needs, too: the gaps of one answer are no independent samples."""


FEWEST_STEADY_S = 10.0
"""Length of the steady state that a percentile or mean needs to meet a limit."""


@dataclass(frozen=True)
class LatencyName:
    """One latency figure: a latency and a statistic over requests."""

    latency: str
    statistic: str

    @property
    def quantile(self) -> float | None:
        """The quantile from 0 to 1; None for the mean and the maximum."""
        return STATISTICS[self.statistic]

    def too_few(self, n: int, answers: int) -> str:
        """Say that samples are too few; empty: they are enough. `answers` are those that the `n` samples come from."""
        if n < (fewest := FEWEST_SAMPLES[self.statistic]):
            return f"{self.statistic} needs {fewest:,} samples"
        if self.latency == "itl" and answers < FEWEST_ITL_ANSWERS:
            return f"from {answers} answers, {FEWEST_ITL_ANSWERS} are needed"
        return ""

    @property
    def meaning(self) -> str:
        """The figure in words, for example `time to first token, p99`."""
        return f"{LATENCIES[self.latency]}, {self.statistic}"

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic}"


def parse(text: str) -> LatencyName | None:
    """Parse a name such as `ttft_p99`. Returns None if it names no latency figure."""
    latency, _, statistic = text.rpartition("_")
    return LatencyName(latency, statistic) if latency in LATENCIES and statistic in STATISTICS else None


def all_names() -> Iterator[LatencyName]:
    return (LatencyName(latency, statistic) for latency in LATENCIES for statistic in STATISTICS)


def enough_to_show(statistic: str, n: int) -> bool:
    """True for the mean and the maximum, and for a percentile of enough samples."""
    return STATISTICS[statistic] is None or n >= FEWEST_SAMPLES[statistic]


def quantile_label(q: float) -> str:
    """Label of a quantile in a report, for example `p99` or `p99.9`."""
    return f"p{q * 100:g}"


def label(latency: str, quantile: str) -> str:
    """Label of a latency figure in a report, for example `TTFT p99`."""
    return f"{latency.upper()} {quantile}"
