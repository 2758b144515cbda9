"""Export a run as OpenMetrics text, or its rows as CSV or Parquet, from the run folder alone. OpenMetrics replays the
ledger through the fold of the exporter, a page every `step_s`, so a backfilled run looks like a scraped one.
"""

from __future__ import annotations

import csv
import heapq
import math
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from prometheus_client.core import Metric

from loadchaos.analysis.capacity.result import CapacityResult, CurrentStep, Saturation
from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core import progress
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader, Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.rows import AnyRow, at_ns_of
from loadchaos.core.units import NS_PER_S
from loadchaos.report.export.tables import TABLES, RunClock
from loadchaos.report.formatting import parse_time
from loadchaos.report.metrics.capacity_metrics import capacity_families
from loadchaos.report.metrics.exporter import families

_LAST_POINTS = 10
"""Points of the answer of a search, after its last step."""
Label = tuple[str, str]


def rows_of(folder: RunFolder, what: str = "exporting", say: progress.Say | None = None) -> Iterator[AnyRow]:
    """Merge ledger rows and findings in order of time; `say` gets progress."""
    findings = [r for r in Tail(folder.findings, fits_its_kind).rows() if r["row"] in {"failure", "incident"}]
    findings.sort(key=at_ns_of)
    return progress.rows(heapq.merge(Reader(folder, fits_its_kind).new(final=True), findings, key=at_ns_of), what, say)


# -- OpenMetrics ---------------------------------------------------------------------------------------------------


class _Samples:
    """Samples of a whole run by family and labels, to write each together."""

    def __init__(self) -> None:
        self.heads: dict[str, tuple[str, str]] = {}  # family: type, help
        self.groups: dict[str, dict[tuple[Label, ...], dict[tuple[str, str], array[float]]]] = {}
        self.times: dict[tuple[str, tuple[Label, ...]], array[float]] = {}

    def add(self, at_s: float, page: Iterable[Metric]) -> None:
        """Add a page. Buckets of a histogram share their labels: `le` and the suffix distinguish them."""
        for family in page:
            self.heads.setdefault(family.name, (family.type, family.documentation))
            seen = set()
            for sample in family.samples:
                labels = tuple((k, v) for k, v in sample.labels.items() if k != "le")
                group = self.groups.setdefault(family.name, {}).setdefault(labels, {})
                group.setdefault((sample.name, sample.labels.get("le", "")), array("d")).append(sample.value)
                seen.add(labels)
            for labels in seen:
                self.times.setdefault((family.name, labels), array("d")).append(at_s)

    def write(self, out: TextIO) -> int:
        n = 0
        for family, (kind, text) in self.heads.items():
            out.write(f"# HELP {family} {text}\n# TYPE {family} {kind}\n")
            for labels, group in self.groups[family].items():
                names = [(_series(name, labels, le), values) for (name, le), values in group.items()]
                for i, at_s in enumerate(self.times[family, labels]):
                    stamp = f"{at_s:.3f}"
                    out.writelines(f"{name} {values[i]!r} {stamp}\n" for name, values in names)
                    n += len(names)
        out.write("# EOF\n")
        return n


def _series(name: str, labels: tuple[Label, ...], le: str) -> str:
    pairs = [*labels, *([("le", le)] if le else [])]
    escaped = (v.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for _, v in pairs)
    return name + "{" + ",".join(f'{k}="{v}"' for (k, _), v in zip(pairs, escaped, strict=True)) + "}"


def openmetrics(folder: RunFolder, out: TextIO, step_s: float = 1.0, say: progress.Say | None = None) -> int:
    """Write the run as OpenMetrics, one point per `step_s`, in its UTC times. Returns the number of samples. Raises
    OptionError where the run has no header with its time.
    """
    live, samples, run = LiveFigures(), _Samples(), folder.path.resolve().name
    clock, step_ns, tick = RunClock.of(folder), int(step_s * NS_PER_S), 0
    for row in rows_of(folder, "OpenMetrics", say):
        at = row.get("at_ns")
        if isinstance(at, int):
            if not tick:
                # On whole steps of UTC, like the steps of a query.
                tick = at + step_ns - (at + clock.offset_ns) % step_ns
            while at > tick:
                samples.add(clock.utc_s(tick), families(live, run, tick))
                tick += step_ns
        live.fold(row)
    live.finish()
    if (verdict := Verdict.read(folder)) is not None:
        for failure in verdict.failures:  # a killed follower may not have written all of them
            live.add_failure(failure)
            live.close_incidents(failure)
    if tick:
        samples.add(clock.utc_s(tick), families(live, run, tick))
    if say is not None:
        say("OpenMetrics: writing the samples")
    return samples.write(out)


def search_openmetrics(data: CapacityResult, run: str, out: TextIO, step_s: float = 1.0) -> int:
    """Write a capacity search as OpenMetrics, one point per `step_s`. Returns the number of samples."""
    samples, at_s, done = _Samples(), 0.0, list[CapacityStep]()
    before = replace(data, ended=False, knee=None, saturation=Saturation())
    proved: Sequence[float | None] = (None, None)
    for step in data.steps:
        began, ended = parse_time(step.began), parse_time(step.ended)
        if began is None or ended is None:  # of an older version
            continue
        found = replace(data.answer, low=proved[0], high=proved[1], interval=())
        page = replace(before, steps=tuple(done), answer=found, current=CurrentStep(load=step.load))
        at_s = max(at_s, math.ceil(began.timestamp()))
        while at_s < ended.timestamp():
            samples.add(at_s, capacity_families(page, run))
            at_s += step_s
        done, proved = [*done, step], step.proved if len(step.proved) == 2 else proved
    started = parse_time(data.started)
    if not at_s and started is not None:
        at_s = started.timestamp() + data.seconds
    for _ in range(_LAST_POINTS):
        samples.add(at_s, capacity_families(data, run))
        at_s += step_s
    return samples.write(out)


# -- rows as tables ------------------------------------------------------------------------------------------------


def write_csv(folder: RunFolder, to: Path, say: progress.Say | None = None) -> list[Path]:
    """Write requests.csv, metrics.csv and events.csv, with UTC times, into the folder `to`."""
    to.mkdir(parents=True, exist_ok=True)
    clock = RunClock.of(folder)
    paths = [to / f"{table.name}.csv" for table in TABLES]
    with ExitStack() as files:
        open_tables = []
        for table, path in zip(TABLES, paths, strict=True):
            writer = csv.writer(files.enter_context(path.open("w", newline="", encoding="utf-8")))
            writer.writerow(table.types)
            open_tables.append((table, table.records(clock), writer))
        for row in rows_of(folder, "tables", say):
            for table, records, writer in open_tables:
                records.fold(row)
                writer.writerows(table.cells(records.taken()))
        for table, records, writer in open_tables:
            writer.writerows(table.cells(records.rest()))
    return paths


def write_parquet(folder: RunFolder, to: Path, say: progress.Say | None = None) -> list[Path]:
    """Write the same tables as typed Parquet files (zstd)."""
    import duckdb  # slow to import, and only this needs it

    to.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(dir=to) as work, duckdb.connect() as db:
        for table, source in zip(TABLES, write_csv(folder, Path(work), say), strict=True):
            target = to / f"{table.name}.parquet"
            if say is not None:
                say(f"writing {target.name}")
            rows = db.read_csv(
                str(source),
                header=True,
                columns=table.types,
                quotechar='"',
                escapechar='"',
                delimiter=",",
                parallel=False,
            )
            rows.write_parquet(str(target), compression="zstd")
            written.append(target)
    return written
