"""Compare what a command reported with what was on the wire: the rows of a table, and one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.latency_percentiles import STATISTICS, enough_to_show, label
from loadchaos.core.reported_figures import ReportedFigures
from loadchaos.core.units import NS_PER_S

_LATENCIES = ("ttft", "itl", "tpot", "e2e")
_TOLD = ("p99", "p95", "p90", "p50", "mean")
_DIFFERS, _DIFFERS_S = 0.1, 0.002
"""A latency is told where it differs by this share and by this time. Tools interpolate percentiles and round times."""
_WHY: Mapping[str, str] = {"itl": "chunks that arrive together are one here"}
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
    itl_s: Mapping[str, float] = field(default_factory=dict)
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


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """One row: a figure as the command reported it and as it was on the wire; null where one of them has none."""

    name: str
    reported: float | None
    wire: float | None
    unit: Annotated[str, "`s`, or empty for a count"] = ""
    differs: Annotated[bool, "both are known and differ: a count at all, a time by 10 % and 2 ms"] = False
    why: Annotated[str, "why they differ, where the definitions do"] = ""


@dataclass(frozen=True, kw_only=True)
class ReportedComparison:
    """Figures that the command of a watch reported beside what was on the wire."""

    tool: str
    file: Annotated[str, "result file of the command"]
    more_files: Annotated[int, "further result files that it wrote"] = 0
    rows: tuple[ComparedFigure, ...]
    sentence: str
    remark: Annotated[str, "what a reader of the tool's figures has to know"] = ""
    hidden: Annotated[int, "answers that the command calls ok and that were not ok on the wire, at least"] = 0

    @property
    def note(self) -> str:
        """Text that has to be seen first: the command calls answers ok that are not."""
        return f"{self.tool} {self.sentence}" if self.hidden else ""


def _row(name: str, reported: float | None, wire: float | None, unit: str = "", why: str = "") -> ComparedFigure:
    limit = max(_DIFFERS * (wire or 0), _DIFFERS_S) if unit == "s" else 0
    differs = reported is not None and wire is not None and abs(reported - wire) > limit
    return ComparedFigure(
        name=name, reported=reported, wire=wire, unit=unit, differs=differs, why=why if differs else ""
    )


def compare_reported(reported: ReportedFigures, wire: WireFigures) -> ReportedComparison:
    """Put both side by side. A result file of no known tool gives the sentence alone."""
    if not reported.tool:
        sentence = "wrote a result file that is not read: it is broken, or of a tool that loadchaos does not know"
        return ReportedComparison(tool="it", file=reported.file, rows=(), sentence=sentence)
    ok = wire.outcomes.get("ok", 0) - max(wire.findings.values(), default=0)  # an answer may have several
    rows = [
        _row("requests", reported.requests_sent, wire.requests),
        _row("requests ok", reported.requests_ok, ok),
        _row("requests failed", reported.requests_failed, wire.requests - ok),
        _row("output tokens", reported.output_tokens, wire.output_tokens),
    ]
    pairs = {
        "ttft": (reported.ttft_s, wire.ttft_s),
        "itl": (reported.itl_s, wire.itl_s),
        "tpot": (reported.tpot_s, wire.tpot_s),
        "e2e": (reported.e2e_s, wire.e2e_s),
    }
    told = []
    for name, (said, seen) in pairs.items():
        why = _WHY.get(name, "")
        rows += [_row(label(name, s), said[s], seen.get(s), "s", why) for s in STATISTICS if s in said]
        told += [
            _row(label(name, s), said[s], seen[s], "s")
            for s in _TOLD
            if not why and s in said and s in seen and enough_to_show(s, wire.outcomes.get("ok", 0))
        ][:1]
    known = tuple(row for row in rows if row.reported is not None)
    return ReportedComparison(
        tool=reported.tool,
        file=reported.file,
        more_files=reported.more_files,
        rows=known,
        sentence="; ".join((*_counts(reported, wire), *_times(told))),
        remark=reported.remark,
        hidden=max(0, (reported.requests_ok or 0) - ok),
    )


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
