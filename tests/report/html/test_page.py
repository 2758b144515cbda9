import re
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from loadchaos.analysis.figures.series import POINTS, Series
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.model import Row
from loadchaos.report import headline
from loadchaos.report.html import page as html
from loadchaos.report.html import uplot_data
from loadchaos.report.html.charts import picture
from loadchaos.report.terminal.summary import render as render_summary
from tests.report.made_up_run import BY_ENDPOINT, make_verdict
from tests.rows import S, folded, metrics_row


def series_of(folder: RunFolder) -> Series:
    return folded(Series(), Reader(folder).new(final=True))


class Page(HTMLParser):
    """Parsed page: all tags with attributes, and the text outside of style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(run_folder: RunFolder, verdict: Verdict) -> Page:
    path = html.write(run_folder, verdict, series_of(run_folder))
    assert path == run_folder.report_html
    return Page(path.read_text())


def test_page_shows_verdict_first_then_failures(page: Page) -> None:
    text = " ".join(page.text.split())
    parts = ("FAIL", "offered", "requests/s", "failed", "Failures", "encoder_cache_miss engine death", "did not pass")
    places = [text.index(part) for part in (*parts, "Timeline", "checks that passed", "Reproduce this run")]
    assert places == sorted(places)
    assert "embedded server, a simulation inside loadchaos without planted bugs" in text


def test_page_shows_the_headline_figures_of_the_summary(page: Page, run_folder: RunFolder, verdict: Verdict) -> None:
    text = " ".join(page.text.split())
    shown = render_summary(verdict, run_folder.path, width=140)
    for figure in (figure for pair in headline.rows(verdict) for figure in pair):
        assert f"{figure.label} {figure.value} {figure.more}".strip() in text
        assert re.search(rf"{re.escape(figure.label)} +{re.escape(figure.value)}", shown)


@pytest.mark.parametrize(
    ("words", "shown"), [(["--defect", "kv_leak"], "with planted bugs: kv_leak."), ([], "without planted bugs.")]
)
def test_page_names_planted_bugs_where_there_are_some(
    verdict: Verdict, tmp_path: Path, words: list[str], shown: str
) -> None:
    series = Series()
    series.fold({"row": "launch", "at_ns": 1, "what": "start", "replica": "server", "command": ["server", *words]})
    assert shown in " ".join(re.sub("<[^>]+>", "", html.render(verdict, series, tmp_path)).split())


def test_page_sends_no_request(page: Page) -> None:
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts == [{"id": "numbers", "type": "application/json"}, {}], (
        "numbers and our own, which stand in the page"
    )
    for tag, attrs in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "form", "base"}, (tag, attrs)
        assert not {"src", "srcset", "onload", "onerror", "onclick"} & set(attrs)
        if tag != "a":
            assert "href" not in attrs
    assert "Permission is hereby granted" in page.text, "uPlot goes with its licence"
    policy = [a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == [f"default-src 'none'; style-src 'unsafe-inline'; script-src '{uplot_data.script()[1]}'"]


def test_page_links_only_to_issues_and_the_run_folder(page: Page) -> None:
    links = {a["href"] for t, a in page.tags if t == "a"}
    assert links == {
        "https://github.com/vllm-project/vllm/issues/38551",
        "incidents/001-encoder_cache_miss/incident.md",
    }


def test_charts_show_the_death(page: Page) -> None:
    shapes = [a for t, a in page.tags if t == "path"]
    assert len(shapes) >= 8
    assert all(a["d"] for a in shapes)
    bars = [a.get("class") for t, a in page.tags if t == "span"]
    assert [b for b in bars if "state-" in str(b)] == ["bar state-healthy", "bar state-dead"]
    assert bars.count("bar attack") == 7
    charts = len([a for a in shapes if "state-dead" in str(a["class"])])
    assert charts == len([t for t, _ in page.tags if t == "svg"]) - 6, "the death is shaded behind each chart"
    (attacks,) = {a["d"] for a in shapes if a["class"] == "shade attack"}
    assert str(attacks).count("M") == 7
    assert any("mark" in str(a.get("class")).split() for _, a in page.tags)


def test_page_shows_settings_and_machine_of_the_server(run_folder: RunFolder, verdict: Verdict) -> None:
    series = series_of(run_folder)
    configuration = {
        "flags": "{'model': 'sim'}",
        "settings": {"max_num_seqs": 1280, "prefix_caching": True},
        "system": {"GPU": "H200"},
    }
    series.fold({"row": "configuration", "at_ns": 5000 * S, **configuration})
    text = " ".join(Page(html.render(verdict, series, run_folder.path)).text.split())
    assert "settingsmax num seqs 1,280; prefix caching yes flags{'model': 'sim'} GPUH200" in text


def test_page_of_a_run_without_rows(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert "nothing was recorded" in html.write(folder, Verdict.from_json({}), Series()).read_text()


def test_page_contains_the_log_excerpt(run_folder: RunFolder, verdict: Verdict) -> None:
    home = run_folder.incidents / "001-encoder_cache_miss"
    home.mkdir(parents=True)
    (home / "server.log.excerpt").write_text("# server.log, lines 1 to 2\nboom </pre><script>x</script>\n")
    made = Page(html.render(verdict, series_of(run_folder), run_folder.path))
    assert "boom </pre><script>x</script>" in made.text
    assert [t for t, _ in made.tags].count("script") == 2


# -- the series behind the charts ----------------------------------------------------------------------------------


def test_series_counts_every_request_once(run_folder: RunFolder) -> None:
    points = series_of(run_folder).points()
    total: dict[str, int] = {}
    for _, bucket in points:
        for outcome, n in bucket.outcomes.items() if bucket else ():
            total[outcome] = total.get(outcome, 0) + n
    rows = [r for r in Reader(run_folder).new(final=True) if r["row"] == "end"]
    assert total["ok"] + total["reset"] == len(rows)


def test_series_of_a_day_has_few_points_and_all_counts() -> None:
    series = Series()
    for second in range(0, 86_400, 5):
        series.fold({"row": "end", "at_ns": (1000 + second) * S, "due_ns": (1000 + second) * S, "outcome": "ok"})
    points = series.points()
    assert len(points) <= POINTS
    assert sum(b.outcomes["ok"] for _, b in points if b) == 86_400 / 5
    assert points[1][0] - points[0][0] == series.width_s


def test_chart_keeps_gaps() -> None:
    series = Series()
    for second in (0, 1, 2, 10, 11):
        series.fold(metrics_row(second, kv_usage_ratio=0.5))
    chart = next(c for c in picture(series).charts if c.title == "KV cache in use")
    assert chart.lines[0].path.count("M") == 2


def test_chart_of_a_wide_range_is_logarithmic() -> None:
    series = Series()
    for second, ms in enumerate([50] * 50 + [30_000] * 2):
        at = second * S
        series.fold({"row": "end", "at_ns": at, "due_ns": at, "first_token_ns": at + ms * 1_000_000, "outcome": "ok"})
    chart = next(c for c in picture(series).charts if c.title.startswith("Time to first token"))
    assert "logarithmic" in chart.title
    assert [t.label for t in chart.ticks][-1] == "100 s"


def test_script_data_equals_the_drawn_values() -> None:
    series = Series()
    series.fold({"row": "header", "file": "events.jsonl", "mono_ns": 0, "utc_ns": 1_700_000_000 * S})
    for second in (0, 1, 2, 5):
        series.fold(metrics_row(second, kv_usage_ratio=second / 10))
    series.fold({"row": "state", "at_ns": 3 * S, "replica": "a", "to": "</script><!--", "signs": []})
    text = uplot_data.numbers(picture(series), series.origin_utc_s)
    assert "<" not in text
    data = orjson.loads(text)
    (kv,) = [c for c in data["charts"] if c["unit"] == "%"]
    assert (kv["top"], kv["curves"][0]["values"]) == (1, [0, 0.1, 0.2, None, None, 0.5])
    assert (data["start"], data["width"], data["points"], data["utc"]) == (0, 1, 6, 1_700_000_000)
    assert data["shades"] == [{"css": "state-</script><!--", "spans": [[3, 5]]}]


def test_page_of_a_day_is_under_5_mb(run_folder: RunFolder, verdict: Verdict) -> None:
    series = Series()
    rows: list[Row] = [r for r in Reader(run_folder).new(final=True) if r["row"] not in ("run", "header")]
    for i in range(0, 86_400, 32):  # something of everything in each point
        for row in rows[i % 40 :: 300]:
            series.fold({**row, "at_ns": row["at_ns"] + i * S})
    assert len(series.points()) > 2600
    assert 100_000 < len(html.render(verdict, series, run_folder.path)) < 5_000_000


def test_chart_paths_contain_only_numbers(run_folder: RunFolder) -> None:
    for chart in picture(series_of(run_folder)).charts:
        for line in chart.lines:
            assert re.fullmatch(r"[MLhz0-9., -]+", line.path), line.path[:80]


def test_monitoring_gaps_have_a_lane_each() -> None:
    series = Series()
    series.fold({"row": "end", "at_ns": 9 * S, "due_ns": 1, "outcome": "ok"})
    for source in ("scrape", "probe", "other"):
        series.fold({"row": "gap", "at_ns": 5 * S, "source": source, "seconds": 2.0, "why": "x"})
    assert [lane.label for lane in picture(series).lanes] == ["no metrics", "no probes", "not monitored"]


def test_charts_count_from_the_first_request_as_the_verdict_does() -> None:
    series = Series()
    for row in (
        {"row": "run", "what": "load_begin", "at_ns": 1_000_000_000},
        {"row": "begin", "at_ns": 3_000_000_000},
        {"row": "begin", "at_ns": 2_500_000_000},  # of another worker
        {"row": "state", "replica": "a", "from": "healthy", "to": "dead", "at_ns": 22_500_000_000},
    ):
        series.fold(row)
    (dead,) = [span for span in series.spans() if span.name == "dead"]
    assert dead.from_s == 20.0, "first_seen_s and at_s of the verdict count from the first request"


def test_page_has_a_row_for_each_of_several_endpoints(run_folder: RunFolder, verdict: Verdict) -> None:
    series = series_of(run_folder)
    assert "By endpoint" not in html.render(verdict, series, run_folder.path)
    text = html.render(make_verdict(by_endpoint=BY_ENDPOINT), series, run_folder.path)
    table = text[text.index("By endpoint") :].split("</table>")[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
    assert cells == [
        ["chat", "a, b", "100", "90", "100 ms", "200 ms", "10.0 ms", "20.0 ms", "1.0 s", "2.0 s", "10 timeouts"],
        ["embeddings", "c", "50", "50", "–", "–", "–", "–", "50.0 ms", "60.0 ms", ""],
    ]
