"""Requests and tokens per second, from the first send to the last end."""

from __future__ import annotations

from loadchaos.analysis.verdict.model import ThroughputFigures
from loadchaos.core.ledger.rows import BeginRow, EndRow
from loadchaos.core.units import NS_PER_S, significant


class Throughput:
    """Sums of the requests that succeeded. Tokens are those of usage."""

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self.requests = self._counted = self._input = self._output = 0

    def on_begin(self, row: BeginRow) -> None:
        if self._first_ns is None or row["at_ns"] < self._first_ns:
            self._first_ns = row["at_ns"]

    def on_end(self, row: EndRow) -> None:
        outcome = row.get("outcome")
        if outcome != "missed" and (self._last_ns is None or row["at_ns"] > self._last_ns):
            self._last_ns = row["at_ns"]
        if outcome != "ok":
            return
        self.requests += 1
        if row.get("prompt_tokens") is not None:
            self._counted += 1
            self._input += int(row["prompt_tokens"] or 0)
            self._output += int(row.get("completion_tokens") or 0)

    def seconds(self) -> float | None:
        if self._first_ns is None or self._last_ns is None or self._last_ns <= self._first_ns:
            return None
        return (self._last_ns - self._first_ns) / NS_PER_S

    def figures(self) -> ThroughputFigures:
        seconds = self.seconds()
        complete = self._counted == self.requests
        return ThroughputFigures(
            seconds=significant(seconds),
            requests=self.requests,
            input_tokens=self._input if complete else None,
            output_tokens=self._output if complete else None,
            requests_per_s=per_s(self.requests, seconds),
            input_tokens_per_s=per_s(self._input, seconds) if complete else None,
            output_tokens_per_s=per_s(self._output, seconds) if complete else None,
        )


def per_s(n: int, seconds: float | None) -> float | None:
    return significant(n / seconds) if seconds else None
