"""Compare what a command reported with what was on the wire: the rows of a table, and one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.latency_percentiles import STATISTICS, enough_to_show, label
from loadchaos.core.units import NS_PER_S
from loadchaos.recorder.reported.base import ReportedFigures

_LATENCIES = ("ttft", "tpot", "e2e")
_TOLD = ("p99", "p95", "p90", "p50", "mean")
_DIFFERS, _DIFFERS_S = 0.1, 0.002
"""A latency is told where it differs by this share and by this time. Tools interpolate percentiles and round times."""
_CLAUSES: Mapping[str, str] = {
    "rejected": "were rejected",
    "shed": "were shed",
    "http_error": "had an HTTP error",
    "stream_error": "had an error in the stream",
    "finish_error": "ended with finish_reason error",
    "finish_abort": "were aborted by the server",
    "truncated": "were cut without finish_reason",
    "empty": "had no text",
    "protocol_error": "were no valid answers",
    "wrong_output": "had text that is not theirs",
    "connect_error": "found no server",
    "reset": "were cut by the connection",
    "aborted": "were left by the client",
}


@dataclass(frozen=True, kw_only=True)
class WireFigures:
    """Requests on the wire by outcome, and latencies in seconds by statistic. `findings` are answers that a check
    refused although their outcome is `ok`, by a clause such as "hold another request's text".
    """

    outcomes: Mapping[str, int]
    findings: Mapping[str, int] = field(default_factory=dict)
    ttft_s: Mapping[str, float] = field(default_factory=dict)
    tpot_s: Mapping[str, float] = field(default_factory=dict)
    e2e_s: Mapping[str, float] = field(default_factory=dict)
    output_tokens: int | None = None

    @classmethod
    def of(
        cls,
        outcomes: Mapping[str, int],
        latency: LatencyHistograms,
        output_tokens: int | None,
        findings: Mapping[str, int] | None = None,
    ) -> WireFigures:
        found = {
            f"{name}_s": {s: ns / NS_PER_S for s in STATISTICS if (ns := latency[name].statistic(s)) is not None}
            for name in _LATENCIES
        }
        return cls(outcomes=outcomes, findings=findings or {}, output_tokens=output_tokens, **found)

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class ComparedFigure:
    """One row: a figure as the command reported it and as it was on the wire; None where one of them has none."""

    name: str
    reported: float | None
    wire: float | None
    unit: str = ""

    @property
    def differs(self) -> bool:
        """True if both are known and differ: a count at all, a time by more than tools differ among each other."""
        if self.reported is None or self.wire is None:
            return False
        limit = max(_DIFFERS * self.wire, _DIFFERS_S) if self.unit == "s" else 0
        return abs(self.reported - self.wire) > limit


@dataclass(frozen=True)
class ReportedComparison:
    """The table "what the command reported / what was on the wire", and its sentence."""

    rows: Sequence[ComparedFigure]
    sentence: str
    remark: str = ""


def compare_reported(reported: ReportedFigures, wire: WireFigures) -> ReportedComparison:
    ok = wire.outcomes.get("ok", 0) - sum(wire.findings.values())
    rows = [
        ComparedFigure("requests", reported.requests_sent, wire.requests),
        ComparedFigure("requests ok", reported.requests_ok, ok),
        ComparedFigure("requests failed", reported.requests_failed, wire.requests - ok),
        ComparedFigure("output tokens", reported.output_tokens, wire.output_tokens),
    ]
    pairs = {
        "ttft": (reported.ttft_s, wire.ttft_s),
        "tpot": (reported.tpot_s, wire.tpot_s),
        "e2e": (reported.e2e_s, wire.e2e_s),
    }
    told = []
    for name, (said, seen) in pairs.items():
        rows += [ComparedFigure(label(name, s), said[s], seen.get(s), "s") for s in STATISTICS if s in said]
        told += [
            ComparedFigure(label(name, s), said[s], seen[s], "s")
            for s in _TOLD
            if s in said and s in seen and enough_to_show(s, wire.outcomes.get("ok", 0))
        ][:1]
    known = tuple(row for row in rows if row.reported is not None)
    return ReportedComparison(known, "; ".join((*_counts(reported, wire), *_times(told))), reported.remark)


def _counts(reported: ReportedFigures, wire: WireFigures) -> Iterator[str]:
    if reported.requests_ok is not None and reported.requests_sent is not None:
        yield f"reported {reported.requests_ok:,} of {reported.requests_sent:,} ok"
    faults = [(n, _CLAUSES.get(outcome, outcome)) for outcome, n in wire.outcomes.items() if outcome != "ok"]
    told = [f"{n:,} {clause}" for n, clause in (*faults, *((n, clause) for clause, n in wire.findings.items())) if n]
    yield f"of {wire.requests:,} on the wire {', '.join(told) or 'all were ok'}"


def _times(told: Sequence[ComparedFigure]) -> Iterator[str]:
    """Yield the first latency, and the others that differ."""
    for number, row in enumerate(told):
        if row.reported is not None and row.wire is not None and (not number or row.differs):
            yield f"{row.name} reported {row.reported * 1e3:,.3g} ms, on the wire {row.wire * 1e3:,.3g} ms"
