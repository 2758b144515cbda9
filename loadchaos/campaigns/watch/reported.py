"""Put what the command of a watch reported beside the rows of its requests, as lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.recorder.reported.compare import ComparedFigure, ReportedComparison, WireFigures, compare_reported
from loadchaos.recorder.reported.find import ResultFile, find_result_file
from loadchaos.report.formatting import duration
from loadchaos.run.finalize import Result


def compare_with_result(
    command: Sequence[str], since_ns: int, result: Result
) -> tuple[ResultFile, ReportedComparison] | None:
    """Compare the result file that `command` wrote below the current folder since `since_ns` (Unix time) with the rows of
    its requests. None: there is no file that can be read, or nothing was judged.
    """
    runs = result.folder.path.resolve().parent
    found = find_result_file(Path.cwd(), command, since_ns, leave_out=runs)
    if found is None or result.verdict is None:
        return None
    return found, compare_reported(found.figures, wire_figures(result.folder, result.verdict))


def wire_figures(run: RunFolder, verdict: Verdict) -> WireFigures:
    """Fold the rows of a run. Answers that are wrong although their outcome is `ok` are counted by their failure."""
    figures = RunFigures()
    for row in Reader(run).new(final=True):
        figures.fold(row)
    tokens = sum(traffic.completion_tokens for traffic in figures.requests.traffic.values())
    wrong = [f for f in verdict.failures if f.wrong_answers is not None and not f.requests]
    findings = {f"have the failure {failure.id}": failure.count for failure in wrong}
    return WireFigures.of(figures.requests.total(), figures.answers.all_latency(), tokens or None, findings)


def comparison_lines(found: ResultFile, comparison: ReportedComparison) -> Iterator[str]:
    yield f"What {found.figures.tool} reported, and what was on the wire"
    yield f"  {'':16} {'reported':>10} {'wire':>10}"
    for row in comparison.rows:
        mark = "  differs" if row.differs else ""
        yield f"  {row.name:16} {_shown(row, row.reported):>10} {_shown(row, row.wire):>10}{mark}"
    yield f"  {comparison.sentence}"
    if comparison.remark:
        yield f"  {comparison.remark}"
    more = f"; {found.others} more result files were written" if found.others else ""
    yield f"  result file    {found.path}{more}"


def _shown(row: ComparedFigure, value: float | None) -> str:
    return "–" if value is None else duration(value) if row.unit == "s" else f"{value:,.0f}"
