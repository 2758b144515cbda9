import contextlib
import csv
import io
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.report.export.export import openmetrics, write_csv, write_parquet
from tests.invoking import output_of
from tests.report.made_up_run import counted_by_hand
from tests.waiting import until


def text_of(folder: RunFolder, step_s: float = 1.0) -> str:
    out = io.StringIO()
    openmetrics(folder, out, step_s)
    return out.getvalue()


def test_openmetrics_passes_the_strict_parser(make_run: Callable[..., RunFolder], tmp_path: Path) -> None:
    """Parse each page by itself.

    prometheus_client drops all but the first sample of a group as duplicates.
    """
    lines = text_of(make_run(tmp_path / "short", seconds=6, death_s=4)).splitlines()
    moments = {line.rsplit(" ", 1)[1] for line in lines if not line.startswith("#")}
    assert len(moments) > 5
    for at in moments:
        then = [line for line in lines if line.startswith("#") or line.endswith(f" {at}")]
        page = strictly("\n".join(then) + "\n")  # type: ignore[no-untyped-call]  # prometheus_client has no types there
        parsed = {family.name: family.type for family in page}
        assert parsed["loadchaos_ttft_seconds"] == "histogram"


LINE = re.compile(r"(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+) (?P<at>\d+\.\d+)")


def points(text: str, name: str) -> list[tuple[dict[str, str], float, float]]:
    """Labels, value and Unix time of all points of one series."""
    assert text.endswith("# EOF\n")
    found = [m for m in map(LINE.fullmatch, text.splitlines()) if m and m["name"] == name]
    return [(dict(re.findall(r'(\w+)="([^"]*)"', m["labels"])), float(m["value"]), float(m["at"])) for m in found]


def test_openmetrics_counters_end_at_the_ledger_totals(run_folder: RunFolder) -> None:
    last: dict[tuple[str, str], float] = {}
    for labels, value, _ in points(text_of(run_folder), "loadchaos_requests_total"):
        last[labels["traffic"], labels["outcome"]] = value
        assert labels["run"] == run_folder.path.name
    assert {k: v for k, v in last.items() if v} == counted_by_hand(run_folder)


def test_openmetrics_points_are_a_step_apart(run_folder: RunFolder) -> None:
    each, fifth = ([at for _, _, at in points(text_of(run_folder, s), "loadchaos_users")] for s in (1, 5))
    assert len(each) == pytest.approx(43, abs=2)
    assert {round(b - a, 3) for a, b in pairwise(fifth)} == {5}
    header = next(r for r in Reader(run_folder).new() if r["row"] == "header" and r["file"] == "events.jsonl")
    assert each[0] == pytest.approx((header["utc_ns"] - header["mono_ns"]) / 1e9 + 4999, abs=2)


def test_openmetrics_takes_failures_from_the_verdict(run_folder: RunFolder) -> None:
    assert "\nloadchaos_failures_total{" not in text_of(run_folder)
    failure = {"id": "boom", "severity": "hang", "attribution": "server", "count": 3, "incidents": ["001-boom"],
               "known": [{"issue": "vllm-project/vllm#38551"}]}  # fmt: skip
    run_folder.verdict.write_bytes(orjson.dumps({"failures": [failure]}))
    text = text_of(run_folder)
    line = next(x for x in text.splitlines() if x.startswith("loadchaos_failures_total"))
    assert 'id="boom"' in line
    assert " 3.0 " in line
    (incident,) = points(text, "loadchaos_incident_open")
    assert incident[0]["incident"] == "001"
    assert incident[0]["issue"] == "vllm-project/vllm/issues/38551"


def test_openmetrics_becomes_prometheus_blocks_with_every_sample(
    run_folder: RunFolder, tmp_path: Path, prometheus_program: Callable[[str], Path]
) -> None:
    text = tmp_path / "run.om"
    with text.open("w") as f:
        n = openmetrics(run_folder, f)
    promtool = [str(prometheus_program("promtool")), "tsdb"]
    made = subprocess.run(
        [*promtool, "create-blocks-from", "openmetrics", str(text), str(tmp_path / "data")],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    # Runs may lie on both sides of a block's border: two blocks, then.
    blocks = [x.split() for x in made.stdout.splitlines() if x.startswith("01")]
    assert sum(int(x[-4]) for x in blocks) == n


def test_victoriametrics_imports_every_sample(
    run_folder: RunFolder, tmp_path: Path, prometheus_program: Callable[[str], Path]
) -> None:
    text = io.StringIO()
    n = openmetrics(run_folder, text)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
    argv = [str(prometheus_program("victoria-metrics")), f"-httpListenAddr={url.removeprefix('http://')}"]
    process = subprocess.Popen(
        [*argv, f"-storageDataPath={tmp_path / 'data'}", "-retentionPeriod=12"], stderr=subprocess.DEVNULL
    )
    try:
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:

            def asked(path: str) -> str:
                assert process.poll() is None, "it has ended"
                with contextlib.suppress(httpx.TransportError):
                    return client.get(path).text
                return ""

            until(lambda: asked("/health") == "OK", "the start of VictoriaMetrics")
            answer = client.post(
                "/api/v1/import/prometheus", content=text.getvalue().encode()
            )  # as docs/metrics.md says it
            assert answer.status_code == 204, answer.text
            client.get("/internal/force_flush")  # what is new is found some seconds later otherwise
            query = f'/api/v1/export?match[]={{run="{run_folder.path.name}"}}'

            def kept() -> int:
                return sum(len(orjson.loads(line)["values"]) for line in asked(query).splitlines())

            until(lambda: kept() == n, "every sample")
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_have_every_request_once(run_folder: RunFolder, tmp_path: Path, kind: str) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    if kind == "csv":
        requests, metrics, events = write_csv(run_folder, tmp_path)
        with requests.open(newline="") as f:
            for row in csv.DictReader(f):
                counts[row["traffic"], row["outcome"]] += int(row["count"])
        assert len(events.read_text().splitlines()) > 10
        assert "kv_usage_ratio" in metrics.read_text()
    else:
        import duckdb

        requests, metrics, _ = write_parquet(run_folder, tmp_path)
        db = duckdb.connect()
        select = f"select traffic, outcome, sum(count)::int from '{requests}' group by all"
        counts.update({(t, o): n for t, o, n in db.execute(select).fetchall()})
        ttft = db.execute(f"select max(ttft_s), count(error) from '{requests}' where outcome = 'ok'").fetchone()
        assert ttft is not None
        assert 0 < ttft[0] < 1
        assert ttft[1] == 0
        assert db.execute(f"select count(*) from '{metrics}'").fetchone() == (150,)
    assert counts == counted_by_hand(run_folder)


def test_tables_escape_hostile_text(run_folder: RunFolder, tmp_path: Path, hostile: str) -> None:
    requests = write_csv(run_folder, tmp_path)[0]
    with requests.open(newline="") as f:
        errors = {row["error"] for row in csv.DictReader(f) if row["outcome"] == "reset"}
    assert errors == {hostile}


def test_export_command_needs_a_format_and_prints_the_paths(run_folder: RunFolder) -> None:
    run = str(run_folder.path)
    assert "--openmetrics" in output_of("export", run, code=2)
    printed = output_of("export", run, "--openmetrics", "--csv", "--parquet", "--step", "10s")
    paths = [Path(line) for line in printed.split()]
    assert len(paths) == 7
    assert all(p.is_file() for p in paths)


def test_export_of_a_run_without_header_is_an_option_error(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(OptionError, match="no header"):
        write_csv(RunFolder(tmp_path), tmp_path / "out")
