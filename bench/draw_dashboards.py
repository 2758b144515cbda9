"""Draw the Grafana dashboards over finished runs, for a look at them.

Usage: python -m bench.draw_dashboards FOLDER RUN...

It loads the runs into Prometheus, asks every panel's queries, and draws the 24-column grid as SVG: Soak over all
runs, Capacity over the last capacity search, the others over the last run. It writes NAME.html and, with a Chromium,
NAME.png. It is not Grafana: it shows whether a panel has data, not how Grafana would draw it.
"""

from __future__ import annotations

import html
import json
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from dashboards.generator.dashboards import DASHBOARDS
from loadchaos.campaigns.capacity import files
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.export.export import openmetrics, search_openmetrics
from tests.report import prometheus_programs

Json = dict[str, Any]
COLORS = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642", "#cca300")


Span = tuple[float, float]


def is_search(folder: Path) -> bool:
    return (folder / files.RESULT).is_file()


def backfilled(runs: list[Path], data: Path) -> list[Span]:
    """Write blocks of all runs under `data`; return begin and end of each."""
    if prometheus_programs.find("promtool") is None and (trouble := prometheus_programs.fetch()):
        sys.exit(trouble)
    promtool, spans = prometheus_programs.find("promtool"), list[Span]()
    for run in runs:
        text = data.parent / f"{run.name}.om"
        with text.open("w") as f:
            if is_search(run):
                search_openmetrics(files.read(run), run.name, f)
            else:
                openmetrics(RunFolder(run), f)
        always = "loadchaos_capacity_running" if is_search(run) else "loadchaos_users"
        times = [float(x.rsplit(" ", 1)[1]) for x in text.read_text().splitlines() if x.startswith(always)]
        spans.append((min(times), max(times)))
        argv = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
        subprocess.run(argv, check=True, capture_output=True)
    return spans


def ask(port: int, **parameters: object) -> list[Json]:
    """Query Prometheus: query_range, or query if `time` is given."""
    what = "query" if "time" in parameters else "query_range"
    url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])


def filled(text: str, span_s: float) -> str:
    for name, value in {
        "$__rate_interval": "5s",
        "$__range": f"{int(span_s) + 2}s",
        "$__interval": "1s",
        "$run": ".*",
        "$traffic": ".*",
        "$server": ".*",
    }.items():
        text = text.replace(name, value)
    return text


def legend(target: Json, metric: dict[str, str]) -> str:
    text = target["legendFormat"]
    for k, v in metric.items():
        text = text.replace("{{" + k + "}}", v)
    return str(text)


def chart(panel: Json, series: list[tuple[str, list[tuple[float, float]]]], began: float, ended: float) -> str:
    """Draw lines, stacked areas or state bars.

    A gap of more than two steps stays a gap; a single point is a dot.
    """
    width, height = panel["gridPos"]["w"] * 50 - 20, panel["gridPos"]["h"] * 30 - 60
    top = max((v for _, points in series for _, v in points), default=1) or 1
    parts, rows, gap = [], len(series), 2 * max(1, (ended - began) // 400)
    gap = 1e6 if panel["type"] == "trend" else gap
    for n, (name, points) in enumerate(series):
        color, path, last = COLORS[n % len(COLORS)], "", -1e9
        for i, (at, v) in enumerate(points):
            x = (at - began) / (ended - began) * width
            y = height - v / top * height
            if panel["type"] in {"state-timeline", "heatmap"}:
                h, share = height / rows, v / top
                y0 = (rows - 1 - n) * h if panel["type"] == "heatmap" else n * h
                fill = color if panel["type"] == "state-timeline" else f"rgba(220,90,0,{share**0.5:.2f})"
                parts.append(
                    f'<rect x="{x:.1f}" y="{y0:.1f}" width="{width / (ended - began):.1f}" height="{h:.1f}" fill="{fill}"/>'
                )
            else:
                begins, ends = at - last > gap, i + 1 == len(points) or points[i + 1][0] - at > gap
                path += f"{'M' if begins else 'L'}{x:.1f} {y:.1f}" + ("h0" if begins and ends else "")
                last = at
        if path:
            dots = ' stroke-linecap="round"'
            parts.append(f'<path d="{path}" stroke="{color}" fill="none" stroke-width="2"{dots}/>')
        if panel["type"] != "heatmap":
            words = html.escape(name[-34:])
            parts.append(f'<text x="{width - 190}" y="{12 + n * 12}" font-size="10" fill="{color}">{words}</text>')
    parts.append(f'<text x="2" y="10" font-size="10">{top:.4g}</text>')
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def drawn(panel: Json, port: int, began: float, ended: float) -> str:
    """Draw one panel as HTML."""
    series: list[tuple[str, list[tuple[float, float]]]] = []
    results: list[list[Json]] = []
    for target in panel["targets"]:
        expr = filled(target["expr"], ended - began)
        if panel["type"] == "timeseries" or panel["type"] in {"heatmap", "state-timeline"}:
            result = ask(port, query=expr, start=began, end=ended, step=max(1, (ended - began) // 400))
        else:
            result = ask(port, query=expr, time=ended)
        results.append(result)
        if panel["type"] == "heatmap":
            result.sort(key=lambda s: float(s["metric"]["le"]))
        for s in result:
            values = [(float(t), float(v)) for t, v in (s.get("values") or [s["value"]])]
            series.append((legend(target, s["metric"]), [(t, v) for t, v in values if math.isfinite(v)]))
    if panel["type"] == "trend":
        return curves(panel, results)
    if panel["type"] == "heatmap":
        before: dict[float, float] = {}
        for i, (name, points) in enumerate(series):
            series[i] = name, [(t, max(0.0, v - before.get(t, 0))) for t, v in points]
            before.update(points)
    if panel["type"] in {"timeseries", "heatmap", "state-timeline"}:
        return chart(panel, series, began, ended)
    if panel["type"] == "table":
        return table(panel, results)
    rows = (
        f"<div>{html.escape(n)} <b>{p[-1][1]:.6g}</b></div>" if p else f"<div>{html.escape(n)} -</div>"
        for n, p in series
    )
    return "".join(rows) or "<i>nothing</i>"


def curves(panel: Json, results: list[list[Json]]) -> str:
    """Draw curves over the values of the first query, joined by `load`."""
    x, *columns = ({s["metric"]["load"]: float(s["value"][1]) for s in result} for result in results)
    names = list(panel["transformations"][1]["options"]["renameByName"].values())[1:]
    series = [(n, sorted((x[k], v) for k, v in c.items() if k in x)) for n, c in zip(names, columns, strict=True) if c]
    return chart(panel, series, min(x.values()) * 0.9, max(x.values()) * 1.1)


def table(panel: Json, results: list[list[Json]]) -> str:
    """Join the queries' rows by common labels, like Grafana's `merge`."""
    organised = next(t["options"] for t in panel["transformations"] if t["id"] == "organize")
    key = next(iter(organised["indexByName"]))
    rows: dict[str, dict[str, str]] = {}
    for letter, result in zip("ABCDEFGHIJKL", results, strict=False):
        column = f"Value #{letter}" if len(results) > 1 else "Value"
        for s in result:
            row = rows.setdefault(s["metric"].get(key, ""), {key: s["metric"].get(key, "")})
            row.update(s["metric"])
            if column not in organised["excludeByName"]:
                row[organised["renameByName"].get(column, column)] = f"{float(s['value'][1]):.4g}"
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    head = "".join(f"<th>{html.escape(n)}</th>" for n in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(r.get(n, ''))}</td>" for n in names) + "</tr>" for r in rows.values()
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def main() -> None:
    folder, runs = Path(sys.argv[1]), [Path(x) for x in sys.argv[2:]]
    folder.mkdir(parents=True, exist_ok=True)
    program = prometheus_programs.find("prometheus")
    with tempfile.TemporaryDirectory() as work, socket.socket() as s:
        data = Path(work) / "data"
        spans = list(zip(runs, backfilled(runs, data), strict=True))
        of_runs = [span for run, span in spans if not is_search(run)]
        of_searches = [span for run, span in spans if is_search(run)]
        span_of = dict.fromkeys([name for name in DASHBOARDS if name != "capacity"], of_runs[-1]) if of_runs else {}
        if of_runs:
            span_of["soak"] = (min(of_runs)[0], max(e for _, e in of_runs))
        if of_searches:
            span_of["capacity"] = of_searches[-1]
        (Path(work) / "p.yml").write_text("{}\n")
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        argv = [str(program), f"--config.file={work}/p.yml", f"--storage.tsdb.path={data}", "--query.lookback-delta=5s",
                f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y"]  # fmt: skip
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_ready(port)
            for name in span_of:
                written(folder / f"{name}.html", *page(name, port, *span_of[name]))
        finally:
            process.terminate()
            process.wait()


def written(path: Path, text: str, height: int) -> None:
    style = "body{font:12px sans-serif;width:1220px}td,th{padding:2px 12px 2px 0;text-align:left}"
    path.write_text(f'<meta charset="utf-8"><style>{style}</style>{text}')
    if chromium := next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            argv = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={home}",
                    f"--window-size=1240,{height}", f"--screenshot={path.with_suffix('.png')}"]  # fmt: skip
            subprocess.run([*argv, path.absolute().as_uri()], check=True, capture_output=True, timeout=60)


def wait_until_ready(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("Prometheus did not start")


def page(name: str, port: int, began: float, ended: float) -> tuple[str, int]:
    """Draw one dashboard as HTML, and return its height in pixels."""
    board, parts = DASHBOARDS[name](), list[str]()
    panels = [each for p in board["panels"] for each in [p, *p.get("panels", ())]]
    for panel in panels:
        at = panel["gridPos"]
        box = f"position:absolute;left:{at['x'] * 50}px;top:{at['y'] * 30}px;"
        box += f"width:{at['w'] * 50 - 8}px;height:{at['h'] * 30 - 8}px"
        inner = "" if panel["type"] == "row" else drawn(panel, port, began, ended)
        frame = "" if panel["type"] == "row" else "border:1px solid #ccc;"
        parts.append(f'<div style="{box};{frame}overflow:hidden"><b>{html.escape(panel["title"])}</b>{inner}</div>')
    bottom = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) * 30
    head = f"<h1>{html.escape(board['title'])}</h1>"
    return f'{head}<div style="position:relative;height:{bottom}px">{"".join(parts)}</div>', bottom + 90


if __name__ == "__main__":
    main()
