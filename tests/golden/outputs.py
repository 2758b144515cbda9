"""Everything that loadchaos computes from a finished run, as JSON that a reviewer can read.

Times of the machine do not enter: the ledger has them. Long lists and texts are stored as count, SHA-256 and head.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import html.parser
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.judge import Judge
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.capacity import files
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.typed_json import to_json
from loadchaos.report import capacity_compare
from loadchaos.report.export import export, github, vllm_bench
from loadchaos.report.html import capacity_page, compare, compare_page, trend, trend_page
from loadchaos.report.metrics.exporter import LiveCollector
from loadchaos.report.terminal import capacity, runs, summary
from loadchaos.report.terminal.live import View, draw
from loadchaos.run import rebuild
from loadchaos.run.finalize import conclude
from tests.golden.archive import unpack

Outputs = dict[str, Any]

WIDTH = 100
_MOST_ITEMS, _MOST_CHARACTERS = 40, 600
_FEW_ITEMS, _MOST_OF_A_LIST = 8, 8000
_HEAD = 3
_LAST_INCIDENT = "004"
"""Later incidents are stored as hashes."""
_SMALL = ("small", "small-seed-2", "small-seed-3", "small-slow")
_OTHERS = ("answers-503", "killed-engine", "profile-smoke", "profile-mtp_mm-bug", "interrupted-load", "killed-tool")


# -- one ledger ----------------------------------------------------------------------------------------------------


def of_ledger(name: str) -> Outputs:
    with _folder(name) as home:
        folder = home / name
        parts = _of_search(folder) if (folder / files.RESULT).exists() else _of_run(RunFolder(folder))
        return {what: _short(_tried(make)) for what, make in parts.items()}


def _of_run(folder: RunFolder) -> Mapping[str, Callable[[], Any]]:
    verdict = conclude(folder)
    live = functools.cache(lambda: _Live(folder))
    return {
        "verdict": lambda: json.loads(folder.verdict.read_bytes()),
        "junit": lambda: folder.junit.read_text().splitlines(),
        "incidents": lambda: _incidents(folder),
        "report": lambda: _page(folder.report_html.read_text()),
        "terminal": lambda: Whole(summary.render(verdict, folder.path, width=WIDTH)),
        "github": lambda: Whole(github.summary(verdict, folder.path)),
        "annotations": lambda: Whole("\n".join(github.annotate(verdict, "profile.yaml"))),
        "metrics": lambda: live().metrics(),
        "live": lambda: live().lines(),
        "screen": lambda: live().screen(),
        "openmetrics": lambda: _families(_text(lambda out: export.openmetrics(folder, out)), 0),
        "csv": lambda: {path.name: _columns(path) for path in export.write_csv(folder, folder.path / "export")},
        "parquet": lambda: {
            path.name: _parquet_rows(path) for path in export.write_parquet(folder, folder.path / "pq")
        },
        "vllm_bench": lambda: _bench(folder, verdict),
    }


def _of_search(folder: Path) -> Mapping[str, Callable[[], Any]]:
    result = files.read(folder)
    return {
        "page": lambda: _page(capacity_page.render(result)),
        "terminal": lambda: Whole(capacity.render(result, folder, width=WIDTH)),
        "table": lambda: files.table(result).splitlines(),
        "openmetrics": lambda: _families(_text(lambda out: export.search_openmetrics(result, folder.name, out)), 0),
        "compare": lambda: [capacity_compare.to_json(result, result), Whole(capacity_compare.text(result, result))],
    }


class _Live:
    """The follower's figures at the end of the run."""

    def __init__(self, folder: RunFolder) -> None:
        self._name, judge, reader = folder.path.name, Judge(), Reader(folder, fits_its_kind)
        self._live = LiveFigures(judge.figures)
        for row in reader.new(final=True):
            judge.fold(row)
            self._live.fold(row)
        judge.verdict(bad_rows=reader.bad_rows)
        for finding in judge.findings():
            self._live.fold(finding)
        self._live.name_incidents(judge.incidents)
        self._live.count_failures(judge.failures())
        self._live.finish()

    def metrics(self) -> Any:
        registry = CollectorRegistry()
        registry.register(LiveCollector(self._live, self._name))
        return _families(generate_latest(registry).decode())

    def lines(self) -> Whole:
        out = io.StringIO()
        View(out, plain=True).close(self._live.snapshot())
        return Whole(out.getvalue())

    def screen(self) -> Whole:
        console = Console(file=io.StringIO(), width=WIDTH, height=40, force_terminal=False, no_color=True)
        with console.capture() as found:
            console.print(draw(self._live.snapshot()))
        return Whole(found.get())


def _incidents(folder: RunFolder) -> Outputs:
    found: Outputs = {}
    for path in sorted(p for p in folder.incidents.rglob("*") if p.is_file()):
        data, name = path.read_bytes(), str(path.relative_to(folder.incidents))
        if path.parent.name == rebuild.FOLDER or name > _LAST_INCIDENT:
            found[name] = {"bytes": len(data), "sha256": _sha(data)}
        elif path.suffix == ".json":
            found[name] = json.loads(data)
        else:
            found[name] = data.decode().splitlines()
    return found


def _bench(folder: RunFolder, verdict: Verdict) -> Any:
    figures = vllm_bench.BenchFigures(list(vllm_bench.METRICS), (50.0, 90.0, 95.0, 99.0), detailed=True)
    return {**vllm_bench.result(folder, verdict, figures), "date": "now"}


# -- several ledgers -----------------------------------------------------------------------------------------------


def _compared(*names: str) -> Any:
    with _folder(*names) as home:
        for name in names:
            conclude(RunFolder(home / name))
        found = compare.compare(*(compare.side(home / name) for name in names))
        page = compare_page.html(found)
        return _short({"json": found.to_json(), "text": Whole(compare_page.text(found)), "page": _page(page)})


def _listed() -> Any:
    with _folder(*_SMALL, *_OTHERS) as home:
        for name in (*_SMALL, *_OTHERS[:-1]):  # the last one has no verdict yet
            conclude(RunFolder(home / name))
        found, past = runs.found(home), trend.read(home, "small")
        texts = {"runs text": Whole(runs.text(found, home, WIDTH)), "trend text": Whole(trend_page.text(past))}
        page = _page(trend_page.html(past))
        return _short({"runs": to_json(found), "trend": past.to_json(), "trend page": page, **texts})


GROUPS: Mapping[str, Callable[[], Any]] = {
    "compare-seeds": lambda: _compared("small", "small-seed-2"),
    "compare-slower": lambda: _compared("small", "small-slow"),
    "compare-bug": lambda: _compared("profile-mtp_mm", "profile-mtp_mm-bug"),
    "compare-endpoints": lambda: _compared("endpoint-chat", "endpoint-completions"),
    "compare-errors": lambda: _compared("small", "answers-503"),
    "runs-and-trend": _listed,
}
"""Outputs of several ledgers together."""


def outputs(name: str) -> Outputs:
    """Outputs of a ledger or group, in the form of its expected file."""
    made = _tried(GROUPS.get(name, lambda: of_ledger(name)))
    found: Outputs = json.loads(json.dumps(made))
    return found


# -- forms ---------------------------------------------------------------------------------------------------------


class Whole(str):
    """Text that is stored line by line, however long it is."""


def _short(value: Any) -> Any:
    """Replace what is long by its count, SHA-256 and head, and the folder of this process by a fixed one."""
    if isinstance(value, str):
        text = value.replace(str(Path.cwd()), "/golden")
        lines = text.splitlines()
        return lines if isinstance(value, Whole) else _digest(lines) if len(text) > _MOST_CHARACTERS else text
    if isinstance(value, Mapping):
        return {str(key): _short(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        many = len(value) > _MOST_ITEMS or (len(value) > _FEW_ITEMS and len(json.dumps(value)) > _MOST_OF_A_LIST)
        return _digest(value) if many else [_short(part) for part in value]
    return value


def _digest(values: Sequence[Any]) -> Outputs:
    text = json.dumps(json.loads(json.dumps(values)), sort_keys=True).replace(str(Path.cwd()), "/golden")
    return {
        "count": len(values),
        "sha256": _sha(text.encode()),
        "head": [_short(v[:200] if isinstance(v, str) else v) for v in values[:_HEAD]],
    }


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _families(text: str, most: int = 12) -> Any:
    """Lines of a Prometheus page or OpenMetrics file by family; of more than `most` only their number and hash."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# "):
            name = line.split()[2] if len(line.split()) > 2 else "end"
        found.setdefault(name, []).append(line)
    return {
        name: lines[2:] if len(lines) <= most else f"{len(lines)} lines, {_sha(chr(10).join(lines).encode())}"
        for name, lines in found.items()
    }


def _columns(path: Path) -> Any:
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    return {
        "rows": len(rows),
        **{name: _sha("\n".join(row[i] for row in rows).encode()) for i, name in enumerate(head)},
    }


def _parquet_rows(path: Path) -> Any:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as db:
        return db.execute("select count(*) from read_parquet(?)", [str(path)]).fetchall()[0][0]


class _Texts(html.parser.HTMLParser):
    """Text of a page by its headings, and the JSON of its charts."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: dict[str, list[str]] = {"": []}
        self.data: list[str] = []
        self.markup: list[str] = []
        self._tag, self._kind, self._section = "", "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag, self._kind = tag, dict(attrs).get("type") or ""
        if tag != "meta":  # has the hash of the script
            self.markup.append(f"{tag} {attrs}")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in {"script", "style"}:
            self.data += [data] if self._kind == "application/json" else []
        elif text := " ".join(data.split()):
            if self._tag in {"h1", "h2"}:
                self._section = text
            self.sections.setdefault(self._section, []).append(text)


def _page(page: str) -> Any:
    texts = _Texts()
    texts.feed(page)
    return {"text": texts.sections, "data": [json.loads(data) for data in texts.data], "markup": _digest(texts.markup)}


def _text(write: Callable[[io.StringIO], object]) -> str:
    out = io.StringIO()
    write(out)
    return out.getvalue()


def _tried(make: Callable[[], Any]) -> Any:
    """An output that cannot be made has its error as value."""
    try:
        return make()
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


@contextlib.contextmanager
def _folder(*names: str) -> Any:
    """A folder `runs` with these ledgers, as a relative path: no output depends on where it is."""
    with tempfile.TemporaryDirectory(prefix="golden-") as work, contextlib.chdir(work):
        for name in names:
            unpack(name, Path("runs"))
        yield Path("runs")
