import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dashboards.generator.dashboards import DASHBOARDS, text
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.writer import Writer
from loadchaos.report.export.export import openmetrics, search_openmetrics
from loadchaos.report.metrics import metric_table
from loadchaos.run.ports import free_port
from tests.http_server import answering
from tests.report.made_up_run import T0, all_rows, make_verdict
from tests.report.made_up_search import BEGAN_S, STEP_S, search_result
from tests.rows import S

ROOT = Path(__file__).parents[3]
EXPORTERS = {"dcgm": "4.2", "node": "1.8"}
Json = dict[str, Any]


def everything(name: str) -> list[Json]:
    """All rows and panels, also folded panels."""
    return [each for p in DASHBOARDS[name]()["panels"] for each in [p, *p.get("panels", ())]]


def panels(name: str) -> list[Json]:
    return [p for p in everything(name) if p["type"] != "row"]


OF_RUNS = [name for name in DASHBOARDS if name != "capacity"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_file_is_current(name: str) -> None:
    assert (ROOT / "dashboards" / f"{name}.json").read_text() == text(name), "stale: make dashboards"


def through_grafanas_types(board: Json) -> Json:
    """Decode and encode a dashboard with the types of Grafana's SDK."""
    with warnings.catch_warnings():
        # It calls the classic dashboard deprecated; Grafana 10 and 11 know no other.
        warnings.simplefilter("ignore", DeprecationWarning)
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.models.dashboard import Dashboard
    back: Json = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    return back


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_passes_through_grafana_types_unchanged(name: str) -> None:
    """The types of Grafana drop unknown keys, so the result must be equal."""
    ours = DASHBOARDS[name]()
    assert missing(ours, through_grafanas_types(ours)) == []


def missing(ours: object, back: object, path: str = "") -> list[str]:
    if isinstance(ours, dict) and isinstance(back, dict):
        return [m for k in ours for m in (missing(ours[k], back[k], f"{path}.{k}") if k in back else [f"{path}.{k}"])]
    if isinstance(ours, list) and isinstance(back, list) and len(ours) == len(back):
        return [m for i, o in enumerate(ours) for m in missing(o, back[i], f"{path}[{i}]")]
    return [] if ours == back else [f"{path}: {ours!r} became {back!r}"]


def test_dashboard_with_a_wrong_key_is_detected() -> None:
    wrong = {**DASHBOARDS["run"](), "refesh": "5s"}
    assert missing(wrong, through_grafanas_types(wrong)) == [".refesh"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_description_unit_and_position(name: str) -> None:
    seen = [p["id"] for p in everything(name)]
    assert len(seen) == len(set(seen))
    for panel in panels(name):
        assert len(panel["description"]) > 5, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            # A rate over a fixed window is empty at another scrape interval than ours.
            assert not re.search(r"rate\([^\[]*\[\d", target["expr"]), target["expr"]


def test_dashboard_queries_use_existing_metrics() -> None:
    files = [text(name) for name in DASHBOARDS] + [p.read_text() for p in (ROOT / "dashboards").glob("*.yaml")]
    asked = {m for t in files for m in re.findall(r"(?<!run:)\bloadchaos_[a-z0-9_]+", t)}
    table = (*metric_table.METRICS, *metric_table.CAPACITY)
    known = {s.sample for s in table} | {metric_table.server_sample(n) for n in metric_table.SERVER}
    parts = {f"{s.sample}_{x}" for s in table if s.kind in {"histogram", "summary"} for x in ("bucket", "sum", "count")}
    whole_families = {"loadchaos_arrivals_"}  # in a description
    assert asked - known - parts - whole_families == set()


# -- a real Prometheus and a real run with a death in it -------------------------------------------------------------


class Prometheus:
    """Debian's Prometheus on a folder; `ask` is its HTTP API.

    It scrapes one port each second, or none.
    """

    def __init__(self, program: Path, folder: Path, scraped: int | None = None) -> None:
        self.port = free_port()
        config = folder / "prometheus.yml"
        job = f"{{job_name: loadchaos, static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]}}" if scraped else ""
        config.write_text(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nscrape_configs: [{job}]\n")
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", "--query.lookback-delta=5s",
             f"--web.listen-address=127.0.0.1:{self.port}", "--enable-feature=exemplar-storage"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        until = time.monotonic() + 60
        while True:
            try:
                # Ready is not yet scraping: its discovery takes up to 5 s, in which a short run would be over.
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/targets", timeout=2) as answer:
                    if json.load(answer)["data"]["activeTargets"] or scraped is None:
                        return
            except OSError:
                pass
            assert time.monotonic() < until, "Prometheus did not start"
            time.sleep(0.05)

    def ask(self, what: str, **parameters: object) -> list[Json]:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{parameters}: {e.read().decode()}") from None
        return list(data["result"] if isinstance(data, dict) else data)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()


@pytest.fixture(scope="module")
def machines() -> Iterator[list[str]]:
    """Options of a run with captured pages of dcgm- and node-exporter."""
    pages = {
        f"/{kind}": (ROOT / f"tests/server/monitor/pages/{kind}_{v}.txt").read_bytes() for kind, v in EXPORTERS.items()
    }

    pages["/dcgm"] += b'DCGM_EXP_XID_ERRORS_COUNT{gpu="1",xid="31",window_size_in_ms="300000"} 1\n'  # counted if asked
    with answering(lambda asked: (200, pages[asked.path])) as url:
        yield [f"watch.{kind}=[{url}/{kind}]" for kind in EXPORTERS]


@pytest.fixture(scope="module")
def scraped(
    tmp_path_factory: pytest.TempPathFactory, prometheus_program: Callable[[str], Path], machines: list[str]
) -> Iterator[tuple[Prometheus, float, float]]:
    """Prometheus that scraped a run of mtp_mm, with the time of the run.

    The engine dies in that run.
    """
    program, folder, port = prometheus_program("prometheus"), tmp_path_factory.mktemp("prometheus"), free_port()
    prometheus = Prometheus(program, folder, port)
    try:
        began = time.time()
        run = subprocess.run(
            [sys.executable, "-m", "loadchaos", "run", "mtp_mm", "--no-live", "--out", str(folder / "runs"),
             "--goodput", "ttft:60000",
             "--exporter-port", str(port), "--embedded",
             "--set", "load=[{users: 6, for: 6s}, {users: 80, requests: 400}]",  # healthy for some scrapes, then not
             *(x for option in machines for x in ("--set", option))],
            capture_output=True, text=True, timeout=100, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        assert run.returncode == 1, run.stdout + run.stderr
        yield prometheus, began, time.time()
    finally:
        prometheus.close()


def filled(expr: str, seconds: float) -> str:
    """Query an expression as Grafana does."""
    values = {"$__rate_interval": "4s", "$__range": f"{int(seconds) + 1}s", "$__interval": "1s", "$run": ".*",
              "$traffic": ".*", "$server": ".*"}  # fmt: skip
    for name, value in values.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


def finite(series: list[Json]) -> int:
    values = [v for s in series for _, v in (s.get("values") or [s["value"]])]
    return sum(math.isfinite(float(v)) for v in values)


@pytest.fixture
def backfilled(tmp_path: Path, prometheus_program: Callable[[str], Path]) -> Iterator[tuple[Prometheus, float, float]]:
    """Prometheus with a made-up run that has data for every panel."""
    run, text_file = RunFolder(tmp_path / "run"), tmp_path / "run.om"
    run.path.mkdir()
    for name, rows in told_everything().items():
        writer = Writer(run.path / name, "test")
        for row in rows:
            writer.write(row)
        writer.close()
    run.verdict.write_text(json.dumps(make_verdict().to_json()))
    with text_file.open("w") as f:
        openmetrics(run, f)
    argv = [str(prometheus_program("promtool")), "tsdb", "create-blocks-from", "openmetrics", str(text_file)]
    subprocess.run([*argv, str(tmp_path / "data")], check=True, capture_output=True, timeout=60)
    times = [float(x.rsplit(" ", 1)[1]) for x in text_file.read_text().splitlines() if x.startswith("loadchaos_users")]
    prometheus = Prometheus(prometheus_program("prometheus"), tmp_path)
    yield prometheus, min(times), max(times)
    prometheus.close()


def sessions() -> list[Json]:
    """Sessions of the traffic `text`: two begin in each second, every fifth is lost."""
    rows: list[Json] = []
    for n in range(60):
        at_ns, lost = T0 + n * S // 2, n % 5 == 0
        base = {"row": "conversation", "id": f"s-{n}", "traffic": "text", "step": n, "phase": 0, "due_ns": at_ns,
                "planned_turns": 3}  # fmt: skip
        end = {"what": "end", "end": "lost" if lost else "finished", "why": "reset" if lost else "", "turns": 2,
               "turns_lost": int(lost), "tool_calls": 1, "bad_calls": 0, "at_ns": at_ns + 2 * S}  # fmt: skip
        rows += [{**base, "what": "begin", "at_ns": at_ns}, {**base, **end}]
    return rows


def told_everything() -> dict[str, list[Json]]:
    files = all_rows()
    device = {"gpu_memory_used_bytes": 7e10, "gpu_memory_free_bytes": 1e10, "gpu_utilisation_ratio": 0.9, "gpu_power_w": 500,
              "gpu_temperature_c": 54, "gpu_xids_total": 1, "gpu_xid_last": 31}  # fmt: skip
    host = {"host_memory_available_bytes": 4e11, "host_memory_total_bytes": 5e11, "host_oom_kills_total": 1}
    process = {"replica": "a", "pid": 7, "role": "engine_core", "what": "sample", "state": "S", "cpu_s": 1, "name": "x"}
    metrics: list[Json] = []
    for n, row in enumerate(files["metrics.jsonl"]):
        row["values"] = dict.fromkeys(metric_table.SERVER, 3.0 * n + 1) | row["values"]
        common = {"row": "device", "at_ns": row["at_ns"], "host": "h"}
        metrics += [row, {**common, "device": "gpu0", "values": device}, {**common, "device": "host", "values": host}]
        files["events.jsonl"].append({"row": "process", "at_ns": row["at_ns"], **process, "rss_bytes": 10**9 + n})
    files["events.jsonl"].sort(key=lambda r: r["at_ns"])
    begin = files["events.jsonl"][0]
    begin["terms"] = {**begin["terms"], "endpoints": {"images": "chat", "text": "completions"}}
    files["requests-0.jsonl"] = sorted([*files["requests-0.jsonl"], *sessions()], key=lambda r: r["at_ns"])
    return {**files, "metrics.jsonl": metrics}


def empty(names: Sequence[str], prometheus: Prometheus, began: float, ended: float) -> list[str]:
    """Queries of all panels of these dashboards that give no finite point."""
    found = []
    for target in (target for name in names for panel in panels(name) for target in panel["targets"]):
        query = filled(target["expr"], ended - began)
        what: Json = {"time": ended} if target["instant"] else {"start": began, "end": ended, "step": 1}
        if not finite(prometheus.ask("query" if target["instant"] else "query_range", query=query, **what)):
            found.append(query)
    return found


def test_panels_are_not_empty_for_a_full_run(backfilled: tuple[Prometheus, float, float]) -> None:
    assert empty(OF_RUNS, *backfilled) == []


def test_capacity_panels_are_not_empty_for_a_full_search(
    tmp_path: Path, prometheus_program: Callable[[str], Path]
) -> None:
    text_file = tmp_path / "search.om"
    with text_file.open("w") as f:
        search_openmetrics(search_result(), "capacity-1", f)
    argv = [str(prometheus_program("promtool")), "tsdb", "create-blocks-from", "openmetrics", str(text_file)]
    subprocess.run([*argv, str(tmp_path / "data")], check=True, capture_output=True, timeout=60)
    prometheus = Prometheus(prometheus_program("prometheus"), tmp_path)
    try:
        ended = BEGAN_S + 4 * STEP_S + 5
        found = empty(["capacity"], prometheus, BEGAN_S, ended)
        assert [q for q in found if "current_goodput" not in q] == []  # of the step in progress: only while it runs
        [curve] = [p for p in panels("capacity") if p["title"] == "Goodput"]
        joined = prometheus.ask("query", query=filled(curve["targets"][1]["expr"], 100), time=ended)
        assert {s["metric"]["load"]: float(s["value"][1]) for s in joined} == {
            "4": 1,
            "10": 0.999,
            "12": 0.9,
            "16": 0.4,
        }
    finally:
        prometheus.close()


@pytest.mark.slow
def test_panels_variables_annotations_and_legends_have_values_of_a_scraped_run(
    scraped: tuple[Prometheus, float, float],
) -> None:
    prometheus, began, ended = scraped
    assert [query for query in empty(OF_RUNS, *scraped) if "session" not in query] == []
    for name in OF_RUNS:
        board = DASHBOARDS[name]()
        for variable in board["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            values = prometheus.ask(
                f"label/{label}/values", **{"match[]": filled(metric, 1), "start": began, "end": ended}
            )
            assert values, variable["name"]
        for mark in board["annotations"]["list"]:
            assert finite(
                prometheus.ask("query_range", query=filled(mark["expr"], 1), start=began, end=ended, step=1)
            ), mark
        for panel in panels(name):
            for target in panel["targets"]:
                series = prometheus.ask(
                    "query_range", query=filled(target["expr"], ended - began), start=began, end=ended, step=1
                )
                if "session" in target["expr"]:
                    continue  # this run has no sessions
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    assert all(label in s["metric"] for s in series), f"{panel['title']}: no label {label}"


@pytest.mark.slow
def test_death_at_the_end_of_a_run_is_scraped(scraped: tuple[Prometheus, float, float]) -> None:
    prometheus, began, ended = scraped
    dead = prometheus.ask(
        "query_range", query='loadchaos_server_state{state="dead"} == 1', start=began, end=ended, step=1
    )
    assert finite(dead)
    died = prometheus.ask(
        "query_range", query='loadchaos_failures_total{id="encoder_cache_miss"}', start=began, end=ended, step=1
    )
    assert finite(died)
    exemplars = prometheus.ask("query_exemplars", query="loadchaos_e2e_seconds_bucket", start=began, end=ended)
    assert any("request_id" in e["labels"] for x in exemplars for e in x["exemplars"])
