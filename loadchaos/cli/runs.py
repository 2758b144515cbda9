"""`judge`, `report`, `compare`, `runs`, `export`, `follow`: read runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from loadchaos.cli.common import (
    PATH,
    flag,
    json_option,
    no_live_option,
    option,
    page_option,
    print_result,
    terminal,
    terminal_width,
    time_option,
    verbose_option,
    write_page,
    writing,
)
from loadchaos.core import own_folder
from loadchaos.core.errors import LedgerError, OptionError
from loadchaos.core.private import create_privately
from loadchaos.report.formatting import clean

if TYPE_CHECKING:
    from loadchaos.report.html.compare_gate import DifferenceLimit, GateResult
    from loadchaos.report.repeat_result import RepeatResult

_TO = "give --to a folder that can be written"


def _run_folder(path: Path) -> Any:
    from loadchaos.core.ledger.folder import RunFolder

    folder = RunFolder(path)
    if not folder.events.is_file():
        raise OptionError(
            f"{path} is not a run folder: it has no events.jsonl; `loadchaos runs` lists the runs in runs/"
        )
    own_folder.refuse_links(path)
    return folder


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@json_option("Print verdict.json, not the text report.")
@verbose_option
def judge(run_folder: Path, as_json: bool, verbose: bool) -> None:
    """Compute the verdict of a finished or killed run from its folder.

    Ends with the exit code of the verdict.
    """
    from loadchaos.core.progress import on_terminal
    from loadchaos.report.terminal.summary import render
    from loadchaos.run.finalize import conclude

    create_privately()
    verdict = conclude(_run_folder(run_folder), on_terminal())
    color, width = terminal()
    print_result(as_json, verdict.to_json, lambda: render(verdict, run_folder, color=color, width=width, full=verbose))
    sys.exit(verdict.exit_code)


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
def report(run_folder: Path) -> None:
    """Write the reports of a finished or killed run again.

    These are report.html, junit.xml and the incidents.
    """
    from loadchaos.core.progress import on_terminal
    from loadchaos.run.finalize import conclude

    create_privately()
    folder, unmade = _run_folder(run_folder), list[str]()
    conclude(folder, on_terminal(), unmade=unmade)
    if unmade:
        raise LedgerError(
            f"{folder.path}: {'; '.join(unmade)}; make room, make the folder writable, or move the run to one that is"
        )
    for path in (folder.report_html, folder.junit, folder.verdict):
        click.echo(str(path))


@click.command()
@click.argument("run_a", metavar="RUN_A", type=PATH)
@click.argument("run_b", metavar="RUN_B", type=PATH)
@json_option("Print the result as JSON, in seconds and shares.")
@page_option
@option(
    "--fail-if",
    "End with 1 if B is worse than A by more than this: 'ttft_p99 > +10%', 'requests_per_s < -5%', "
    "'failed > +1pp', or worse. Repeatable.",
    "LIMIT",
    multiple=True,
)
def compare(run_a: Path, run_b: Path, as_json: bool, page: Path | None, fail_if: tuple[str, ...]) -> None:
    """Compare two runs: latencies and failure rates.

    Or two repeated loads (`run --repeat`), by the noise between their runs, or two capacity searches. Differences have
    confidence intervals. With --fail-if the exit code is 1 where B is beyond a limit, and 3 where the two cannot be told
    apart.
    """
    from loadchaos.core.progress import on_terminal
    from loadchaos.report.html import compare as c
    from loadchaos.report.html import compare_gate, compare_page
    from loadchaos.report.repeat_result import FILE

    limits = [compare_gate.parse(text) for text in fail_if]
    searches = [(path / "capacity.json").is_file() for path in (run_a, run_b)]
    if any(searches):
        if limits:
            raise OptionError("--fail-if: it takes two runs, not capacity searches")
        for path in (run_a, run_b):
            own_folder.refuse_links(path)
        _compare_searches(run_a, run_b, searches, as_json=as_json, page=page)
        return
    repeats = [(path / FILE).is_file() for path in (run_a, run_b)]
    if any(repeats):
        _compare_repeats(run_a, run_b, repeats, limits, as_json=as_json, page=page)
        return
    for path in (run_a, run_b):
        _run_folder(path)
    found = c.compare(*(c.side(path, on_terminal()) for path in (run_a, run_b)))
    if page is not None:
        write_page(page, compare_page.html(found))
    results = compare_gate.judge(limits, found)
    _end_compare(results, as_json, found.to_json, lambda: compare_page.text(found))


def _compare_repeats(
    a: Path,
    b: Path,
    repeats: Sequence[bool],
    limits: Sequence[DifferenceLimit | None],
    *,
    as_json: bool,
    page: Path | None,
) -> None:
    from loadchaos.campaigns.repeat.session import read
    from loadchaos.report import repeat_compare
    from loadchaos.report.html import compare as c
    from loadchaos.report.html import compare_gate

    if not all(repeats):
        raise OptionError(f"{a if repeats[0] else b} is a repeated load and the other is a run: give two of one kind")
    if page is not None:
        raise OptionError("--html: it takes two runs, not repeated loads; leave the option out")
    compare_gate.refuse_for_repeats(limits)
    for path in (a, b):
        own_folder.refuse_links(path)
    in_a, in_b = read(a), read(b)
    first = c.compare(*(c.side(_first_run(path, found)) for path, found in ((a, in_a), (b, in_b))))
    results = compare_gate.judge_repeats(limits, in_a, in_b, first)
    _end_compare(
        results,
        as_json,
        lambda: repeat_compare.to_json(in_a, in_b, first),
        lambda: repeat_compare.text(in_a, in_b, first),
    )


def _end_compare(
    results: Sequence[GateResult], as_json: bool, to_json: Callable[[], dict[str, object]], text: Callable[[], str]
) -> NoReturn:
    """Print a comparison, the results of --fail-if before it, and end with their exit code."""
    from loadchaos.report.html import compare_gate

    data = {"fail_if": [vars(result) for result in results]} if results else {}
    head = [*compare_gate.lines(results), ""] if results else []
    print_result(as_json, lambda: to_json() | data, lambda: "\n".join([*head, text()]))
    sys.exit(compare_gate.exit_code(results))


def _first_run(path: Path, found: RepeatResult) -> Path:
    """Folder of the first run whose figures count."""
    if (name := next((run.run for run in found.runs if run.run and run.counts), None)) is None:
        raise OptionError(f"{path}: no run of it sent its load as planned; there is nothing to compare")
    if name not in {inner.name for inner in path.iterdir()}:
        raise OptionError(f"{path} has no run {clean(name, 60)}, which repeat.json names; repeat the run")
    return path / name


def _compare_searches(a: Path, b: Path, searches: Sequence[bool], *, as_json: bool, page: Path | None) -> None:
    from loadchaos.campaigns.capacity import files
    from loadchaos.report import capacity_compare

    if not all(searches):
        raise OptionError(
            f"{a if searches[0] else b} is a capacity search and the other is a run: give two of one kind"
        )
    if page is not None:
        raise OptionError("--html: each capacity search has its own report.html; leave the option out")
    first, second = (files.read(path) for path in (a, b))
    print_result(
        as_json,
        lambda: capacity_compare.to_json(first, second),
        lambda: capacity_compare.text(first, second),
    )


@click.command()
@click.argument("folder", type=PATH, default=Path("runs"))
@json_option()
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (default: runs/) with their verdicts.

    The oldest run comes first.
    """
    from loadchaos.report.terminal import runs as r

    found = r.found(folder)
    nothing = f"{folder}: no runs; `loadchaos run PROFILE` makes one"
    print_result(as_json, lambda: found, lambda: r.text(found, folder, terminal_width()) if found else nothing)


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@flag("--openmetrics", "Write openmetrics.txt, to backfill Prometheus or VictoriaMetrics.")
@flag("--csv as_csv", "Write requests.csv, metrics.csv and events.csv.")
@flag("--parquet", "Write the same tables as Parquet.")
@flag("--vllm-bench", "Write vllm_bench.json, with the keys of `vllm bench serve`.")
@option("--to", "Output folder (default: RUN/export).", "FOLDER", type=PATH)
@time_option("--step", "Time between points of --openmetrics.", default="1s", show_default=True)
def export(run_folder: Path, to: Path | None, step: float, **formats: bool) -> None:
    """Export a run as OpenMetrics, CSV, Parquet or JSON of vllm bench.

    Or a capacity search as OpenMetrics. docs/metrics.md describes them.
    """
    from loadchaos.core.progress import on_terminal
    from loadchaos.report.export import export as tables
    from loadchaos.report.export import vllm_bench
    from loadchaos.run.finalize import read_verdict

    if (run_folder / "capacity.json").is_file():
        own_folder.refuse_links(run_folder)
        _export_search(run_folder, to or run_folder / "export", step, **formats)
        return
    if not any(formats.values()):
        known = "--openmetrics, --csv, --parquet, --vllm-bench"
        raise OptionError(f"a format is missing: give {known}, or several of them")
    folder, to, say = _run_folder(run_folder), to or run_folder / "export", on_terminal()
    with writing(to, _TO):
        to.mkdir(parents=True, exist_ok=True)
        if formats["openmetrics"]:
            path = to / "openmetrics.txt"
            with path.open("w", encoding="utf-8") as f:
                tables.openmetrics(folder, f, step, say)
            click.echo(str(path))
        made = tables.write_csv(folder, to, say) if formats["as_csv"] else []
        for path in [*made, *(tables.write_parquet(folder, to, say) if formats["parquet"] else [])]:
            click.echo(str(path))
        if formats["vllm_bench"]:
            figures = vllm_bench.BenchFigures(list(vllm_bench.METRICS), (50.0, 90.0, 95.0, 99.0), detailed=True)
            vllm_bench.save(vllm_bench.result(folder, read_verdict(folder), figures, say), to / "vllm_bench.json")
            click.echo(str(to / "vllm_bench.json"))


def _export_search(folder: Path, to: Path, step: float, **formats: bool) -> None:
    from loadchaos.campaigns.capacity import files
    from loadchaos.report.export import export as tables

    if not formats["openmetrics"] or sum(formats.values()) > 1:
        raise OptionError(
            f"{folder} is a capacity search: give --openmetrics alone; {files.RESULT} and {files.TABLE} are already in it"
        )
    data, path = files.read(folder), to / "openmetrics.txt"
    with writing(to, _TO):
        to.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as f:
            tables.search_openmetrics(data, folder.resolve().name, f, step)
    click.echo(str(path))


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@option("--exporter-port", "Prometheus port (default: no exporter).", type=click.IntRange(0, 65535))
@no_live_option
def follow(run_folder: Path, exporter_port: int | None, no_live: bool) -> None:
    """Watch a run in progress: live view, incidents, /metrics for Prometheus."""
    from loadchaos.run.follower import FollowerOptions
    from loadchaos.run.follower import follow as follow_run

    create_privately()
    sys.exit(follow_run(_run_folder(run_folder), FollowerOptions(exporter_port, live=not no_live)))
