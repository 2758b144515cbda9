"""A finished run for other tools: OpenMetrics to backfill Prometheus with, its rows as CSV or Parquet for everything else.

Built from the run folder alone. OpenMetrics replays the ledger through the very fold the exporter uses, a page each
`step_s`, so a backfilled run and a scraped one look alike.
"""

from __future__ import annotations

import csv
import heapq
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import orjson
from prometheus_client.core import Metric

from loadchaos.core import progress
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader, Tail
from loadchaos.report.export.tables import TABLES, RunClock
from loadchaos.report.live_stats.fold import Fold
from loadchaos.report.metrics.exporter import families

_NS = 1_000_000_000
Label = tuple[str, str]


def rows_of(folder: RunFolder, what: str = "exporting", say: progress.Say | None = None) -> Iterator[dict[str, Any]]:
    """The ledger's rows and the follower's findings, in order of time; `say` is told how far it is."""
    findings = [r for r in Tail(folder.findings).rows() if r.get("row") in {"failure", "incident"}]
    findings.sort(key=_at)
    return progress.rows(heapq.merge(Reader(folder).new(final=True), findings, key=_at), what, say)


def _at(row: dict[str, Any]) -> int:
    return int(row.get("at_ns") or row.get("mono_ns") or 0)


# -- OpenMetrics ---------------------------------------------------------------------------------------------------


class _Kept:
    """Samples of a whole run by family and label set, so that each family's lines can be written together."""

    def __init__(self) -> None:
        self.heads: dict[str, tuple[str, str]] = {}  # family: type, help
        self.groups: dict[str, dict[tuple[Label, ...], dict[tuple[str, str], array[float]]]] = {}
        self.times: dict[tuple[str, tuple[Label, ...]], array[float]] = {}

    def page(self, at_s: float, page: Iterable[Metric]) -> None:
        """Take one page. A histogram's buckets share a label set: `le` and the suffix tell them apart."""
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
        """The text of all of it; returns how many samples there are."""
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
    """Write the run as OpenMetrics text, a point each `step_s` of its own UTC time; the number of samples.

    OptionError where the run has no header that says what time it was.
    """
    fold, kept, run = Fold(), _Kept(), folder.path.resolve().name
    clock, step_ns, tick = RunClock.of(folder), int(step_s * _NS), 0
    for row in rows_of(folder, "OpenMetrics", say):
        at = row.get("at_ns")
        if isinstance(at, int):
            if not tick:
                # On whole steps of UTC, as a query's own steps are.
                tick = at + step_ns - (at + clock.offset_ns) % step_ns
            while at > tick:
                kept.page(clock.utc_s(tick), families(fold, run, tick))
                tick += step_ns
        fold.feed(row)
    fold.finish()
    for row in _judged(folder):
        fold.feed(row)
    if tick:
        kept.page(clock.utc_s(tick), families(fold, run, tick))
    if say is not None:
        say("OpenMetrics: writing the samples")
    return kept.write(out)


def _judged(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """The verdict's failures and incidents as findings: they count, and a killed follower may not have come to them."""
    try:
        verdict = orjson.loads(folder.verdict.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return
    for failure in verdict.get("failures") or ():
        yield {**failure, "row": "failure"}
        told = {k: failure.get(k) for k in ("id", "severity", "known", "attribution")}
        for name in failure.get("incidents") or ():
            home = str(name).rsplit("/", 1)[-1]
            if home[:3].isdigit():
                yield {
                    **told,
                    "row": "incident",
                    "what": "close",
                    "n": int(home[:3]),
                    "folder": f"incidents/{home}",
                }


# -- rows as tables ------------------------------------------------------------------------------------------------


def write_csv(folder: RunFolder, to: Path, say: progress.Say | None = None) -> list[Path]:
    """requests.csv, metrics.csv and events.csv in the folder `to`; times are UTC, an empty field is no value."""
    to.mkdir(parents=True, exist_ok=True)
    clock = RunClock.of(folder)
    paths = [to / f"{table.name}.csv" for table in TABLES]
    files = [path.open("w", newline="", encoding="utf-8") for path in paths]
    try:
        writers = [csv.writer(f) for f in files]
        makers = [table.rows(clock) for table in TABLES]
        for table, writer in zip(TABLES, writers, strict=True):
            writer.writerow(table.columns)
        for row in rows_of(folder, "tables", say):
            for make, writer in zip(makers, writers, strict=True):
                writer.writerows(make.feed(row))
        for make, writer in zip(makers, writers, strict=True):
            writer.writerows(make.rest())
    finally:
        for f in files:
            f.close()
    return paths


def write_parquet(folder: RunFolder, to: Path, say: progress.Say | None = None) -> list[Path]:
    """The same tables as Parquet (zstd), with types."""
    import duckdb  # slow to import, and only this needs it

    to.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory(dir=to) as work, duckdb.connect() as db:
        for table, source in zip(TABLES, write_csv(folder, Path(work), say), strict=True):
            target = to / f"{table.name}.parquet"
            if say is not None:
                say(f"writing {target.name}")
            rows = db.read_csv(
                str(source),
                header=True,
                columns=table.columns,
                quotechar='"',
                escapechar='"',
                delimiter=",",
                parallel=False,
            )
            rows.write_parquet(str(target), compression="zstd")
            made.append(target)
    return made
