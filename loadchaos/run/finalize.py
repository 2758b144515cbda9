"""Judge a run's ledger and write verdict, incidents and reports."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TypeVar

from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.incidents.record import RunEnvironment
from loadchaos.analysis.judge import Judge
from loadchaos.analysis.verdict.model import CheckResult, FailureResult, Verdict
from loadchaos.core import progress
from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Accept, Reader, Tail
from loadchaos.core.ledger.row_check import fits_completely, fits_its_kind
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.typed_json import from_json
from loadchaos.core.whole_file import write_json
from loadchaos.report.export import junit
from loadchaos.report.html import page
from loadchaos.report.incident import folder as incident
from loadchaos.report.incident.page import replay_command
from loadchaos.run import rebuild
from loadchaos.run.chart_process import chart_process, fold_series
from loadchaos.run.interrupts import Interrupts

T = TypeVar("T")
_POLL_S = 0.1
_IMMEDIATE_S = 2.0
_GC_THRESHOLDS = (50_000, 20, 100)
_BODIES_S = 5.0  # bodies not made in this time are listed; `loadchaos judge` makes them without a limit


@dataclass(frozen=True)
class Result:
    """Result of a run for the command line. `verdict` is None for a run that was not judged."""

    exit_code: int
    verdict: Verdict | None
    folder: RunFolder
    error: str | None = None

    @property
    def failures(self) -> tuple[FailureResult, ...]:
        return self.verdict.failures if self.verdict is not None else ()

    @property
    def outcomes(self) -> Mapping[str, int]:
        return self.verdict.outcomes if self.verdict is not None else {}


async def conclude_interruptible(folder: RunFolder, print_line: progress.Say, interrupts: Interrupts) -> Verdict:
    """Run `conclude` in a thread. One more interrupt (the second at least) exits this process, and so do two seconds
    after two: the ledger is closed and can be judged at any time.
    """
    say = progress.on_terminal(print_line)
    work = asyncio.create_task(asyncio.to_thread(conclude, folder, say, bodies_s=_BODIES_S))
    begin_s, before = time.monotonic(), interrupts.count
    while not work.done():
        await asyncio.wait([work], timeout=_POLL_S)
        again = interrupts.count > max(before, 1)
        if again or (before > 1 and time.monotonic() - begin_s > _IMMEDIATE_S):
            _exit_unjudged(folder, print_line, interrupts.exit_code)
    return work.result()


def _exit_unjudged(folder: RunFolder, print_line: progress.Say, code: int) -> None:
    print_line(f"the run was not judged; judge it with: loadchaos judge {folder.path}")
    time.sleep(_POLL_S)  # the console is a thread: let it print
    os._exit(code)


def conclude(
    folder: RunFolder,
    say: progress.Say | None = None,
    *,
    bodies_s: float | None = None,
    unmade: list[str] | None = None,
) -> Verdict:
    """Judge the whole ledger and write verdict.json, incidents/, report.html and junit.xml. The verdict's `notes` list
    the files that could not be made, and so does `unmade`, which is added to. A pass that cannot be written is unknown, as
    nothing would prove it. `bodies_s`: longest time to rebuild the bodies of the incidents' requests. Raises LedgerError
    for a folder without a ledger.
    """
    if not folder.events.exists():
        raise LedgerError(
            f"{folder.path} is not a run folder (it has no events.jsonl); `loadchaos runs` lists the runs here"
        )
    judge, series, verdict = _stricter_on_error(functools.partial(_charted, folder, say))
    notes: list[str] = []
    judged = len(verdict.notes)
    _try("the incidents", lambda: _incidents(folder, judge), notes)
    _try("report.html", lambda: page.write(folder, verdict, series), notes)
    _try("junit.xml", lambda: junit.write(folder, verdict), notes)
    verdict = _written(folder, _noted(verdict, notes))
    if judge.incidents and folder.plan.exists():  # without a plan no request was sent
        later: list[str] = []
        _try("the bodies of the incidents' requests", lambda: _bodies(folder, judge, bodies_s), later)
        if later:
            verdict = _written(folder, _noted(verdict, later))
    if unmade is not None:
        unmade += verdict.notes[judged:]
    return verdict


def _noted(verdict: Verdict, notes: Sequence[str]) -> Verdict:
    return replace(verdict, notes=(*verdict.notes, *notes))


def read_verdict(folder: RunFolder) -> Verdict:
    """Read the verdict of a run, or judge a run that was killed. Writes nothing."""
    if (found := Verdict.read(folder)) is not None:
        return found
    return _stricter_on_error(functools.partial(_judged, folder))


def _stricter_on_error(judge: Callable[[Accept], T]) -> T:
    try:
        return judge(fits_its_kind)
    except LedgerError:
        raise
    except Exception:  # noqa: BLE001  # a row lacks a field, or a bug of ours: that one comes again
        return judge(fits_completely)


def _charted(folder: RunFolder, say: progress.Say | None, accept: Accept) -> tuple[Judge, Series, Verdict]:
    """The charts of a large run are folded in a process of their own, with the latencies, which the verdict shares."""
    with chart_process(folder, accept) as charts:
        judge = Judge(answers=charts is None)
        series = Series(answers=judge.figures.answers)
        bad_rows = _fold(folder, say, accept, [judge, series] if charts is None else [judge])
        if charts is not None:
            series = charts() or fold_series(folder, accept)
            judge.figures.answers = series.answers
    return judge, series, _verdict(folder, judge, accept, bad_rows)


def _judged(folder: RunFolder, accept: Accept) -> Verdict:
    judge = Judge()
    bad_rows = _fold(folder, None, accept, [judge])
    return _verdict(folder, judge, accept, bad_rows)


def _fold(folder: RunFolder, say: progress.Say | None, accept: Accept, folds: Sequence[RowFold]) -> int:
    reader = Reader(folder, accept)
    with _rare_collections():
        for row in progress.rows(reader.new(final=True), "judging", say):
            for fold in folds:
                fold.fold(row)
    return reader.bad_rows


def _verdict(folder: RunFolder, judge: Judge, accept: Accept, bad_rows: int) -> Verdict:
    begins = (r for r in Tail(folder.events, accept).rows() if r.get("row") == "run" and r.get("what") == "begin")
    verdict, environment = judge.verdict(bad_rows=bad_rows), from_json(RunEnvironment, next(begins, None))
    warm = verdict.efficiency is not None and verdict.efficiency.warm_cache is not None
    return replace(verdict, replay=replay_command(environment, other_prompts=warm))


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Search for cyclic garbage rarely: rows leave none."""
    before = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _try(what: str, make: Callable[[], object], notes: list[str]) -> None:
    try:
        make()
    except Exception as e:  # noqa: BLE001  # a page that cannot be drawn must never cost the verdict
        notes.append(f"{what} could not be made: {type(e).__name__}: {e}")


def _incidents(folder: RunFolder, judge: Judge) -> None:
    kept = [incident.write(folder, i.record()) for i in islice(judge.incidents, incident.MOST_INCIDENTS)]
    if folder.incidents.is_dir():
        incident.remove_others(folder, kept)


def _bodies(folder: RunFolder, judge: Judge, budget_s: float | None) -> None:
    """Store request bodies of incidents. This comes last, as it may take seconds: the verdict is on disk by then."""
    incidents = [i.record() for i in islice(judge.incidents, incident.MOST_INCIDENTS)]
    kept = rebuild.store(folder, incidents, budget_s=budget_s)
    for i in incidents:
        if requests := kept.get(i.n):
            incident.write(folder, i, [asdict(request) for request in requests])


def _written(folder: RunFolder, verdict: Verdict) -> Verdict:
    try:
        write_json(folder.verdict, verdict.to_json())
    except OSError as e:
        actual = f"verdict.json could not be written: {e.strerror}"
        return replace(
            _noted(verdict, [actual]),
            checks=(*verdict.checks, CheckResult("written", "kept", actual, "unknown")),
            verdict="unknown" if verdict.verdict == "pass" else verdict.verdict,
            exit_code=verdict.exit_code or LedgerError.exit_code,
        )
    return verdict
