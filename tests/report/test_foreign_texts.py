"""Texts that a server provides run in no page and control no terminal, whatever they are."""

import dataclasses
import json
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.cli.common import print_json
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.report.formatting import printable
from loadchaos.report.html import capacity_page, compare, compare_page, hunt_page, suite_page, trend_page
from loadchaos.report.html import page as report_page
from loadchaos.report.html.trend import read as read_trend
from loadchaos.report.html.web_panels import PanelPages
from loadchaos.report.suite_result import SuiteResult
from tests.http_server import Asked, Handler, answering, serving
from tests.invoking import output_of
from tests.load.webui.browser import Browser, program
from tests.report.html.test_hunt_page import data as hunt_data
from tests.report.made_up_run import make_verdict
from tests.report.made_up_search import search_data
from tests.rows import S, answered, folded
from tests.run.conftest import SMALL
from tests.warm_command import run_command

HOSTILE = (
    "javascript:hit(1)//'\"></script></textarea></style></title><script>hit(2)</script><img src=x onerror=hit(3)>"
    "<a href=javascript:hit(4)>x</a>{{ 7*7 }}\x1b[31m\x1b]0;title\x07\x1b]8;;http://evil.example\x1b\\\x9b2J\r\b\u202eabc\u2066\u200f\u061c\u2028"
)
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_KEPT = {"started", "ended", "began", "schema", "status", "state", "verdict", "who", "severity", "attribution", "kind"}
"""Keys whose values are loadchaos' own words or times."""


def spoiled(value: Any, key: str = "") -> Any:
    """JSON data with that text at the begin of each string, and of names that a server or a profile gives."""
    if isinstance(value, dict):
        return {(HOSTILE + k if key in {"by_traffic", "latency"} else k): spoiled(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [spoiled(v, key) for v in value]
    return HOSTILE + value if isinstance(value, str) and key not in _KEPT else value


def spoiled_rows(folder: RunFolder) -> RunFolder:
    """The run with that text in what its server said: answers, signs, log, facts, configuration."""
    said = {
        "error",
        "text",
        "finish_reason",
        "request_id",
        "signs",
        "replica",
        "flags",
        "settings",
        "system",
        "model",
        "id",
    }
    for file in (folder.events, folder.metrics, *folder.request_files()):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            for name in said & row.keys():
                if not (name == "id" and "step" in row):
                    row[name] = spoiled(row[name])
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {
        "dialect": "vllm",
        "version": HOSTILE,
        "model": HOSTILE,
        "image_tokens": {HOSTILE: 1},
        "sources": {"a": HOSTILE},
    }
    folder.facts.write_text(json.dumps(facts))
    lines = folder.server_log.read_bytes()
    folder.server_log.write_bytes(lines + HOSTILE.replace("\r", "").encode() + b"\n")
    return folder


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts = 0
        self.bad: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in {"img", "iframe", "object", "embed", "base", "form", "link"}:
            self.bad.append(tag)
        for name, value in attrs:
            scheme = (value or "").strip().lower().startswith(("javascript:", "data:", "//"))
            if name.startswith("on") or (name in {"href", "src"} and scheme):
                self.bad.append(f"{tag} {name}={value}")


def controls(text: str) -> set[str]:
    """Characters that a terminal may obey, or that turn the direction of text."""
    return {c for c in text if (unicodedata.category(c) in {"Cc", "Zl", "Zp"} and c != "\n") or c in _BIDI}


def web_panels(home: Path) -> dict[str, str]:
    """The pages of the web UI's tabs, of a run whose server, attacks and failures have that text everywhere."""
    home.mkdir()
    fold, panels = LiveFigures(), PanelPages(RunFolder(home))
    offer = dict.fromkeys(("kind", "name", "title", "about", "needs"), HOSTILE)
    state = {"row": "state", "replica": HOSTILE, "engine": None, "from": "healthy", "to": "dead", "signs": [HOSTILE]}
    attack = {"row": "attack", "attack": HOSTILE, "replica": HOSTILE, "n": 1, "kind": "admin", "effects": [HOSTILE]}
    said: list[Any] = [
        {"row": "run", "what": "begin", "at_ns": 0, "terms": {"profile": HOSTILE}, "profile": HOSTILE},
        {"row": "facts", "at_ns": 1, "facts": {"dialect": "vllm", "version": HOSTILE, "model": HOSTILE}},
        {"row": "offers", "at_ns": 1, "refused": HOSTILE, "offers": [offer]},
        {"row": "run", "what": "load_begin", "at_ns": S},
        {**state, "at_ns": 2 * S},
        {**attack, "what": "begin", "at_ns": 2 * S},
        {**attack, "what": "end", "at_ns": 3 * S, "ok": False, "error": HOSTILE, "why": HOSTILE},
        {"row": "command", "at_ns": 3 * S, "what": "attack", "n": 1, "ok": False, "text": HOSTILE, **offer},
    ]
    for row in (*said, *answered(4 * S, 0, outcome="http_error", error=HOSTILE, traffic=HOSTILE)):
        folded(fold, [row])
        panels.fold(row)
    failures = Verdict.from_json(spoiled(make_verdict().to_json())).failures
    panels.write(dataclasses.replace(fold.snapshot(5 * S), failures=failures), now=True)
    return {f"panel {page.stem}": page.read_text() for page in sorted((home / "cockpit").glob("*.html"))}


@pytest.fixture
def pages(run_folder: RunFolder, tmp_path: Path) -> dict[str, str]:
    """Every page, from data that a server has spoiled."""
    verdict = Verdict.from_json(spoiled(make_verdict().to_json()))
    folder = spoiled_rows(run_folder)
    series = folded(Series(), Reader(folder).new(final=True))
    output_of("report", folder.path)
    runs = tmp_path / "runs"
    (runs / "night").mkdir(parents=True)
    (runs / "night" / "verdict.json").write_text(json.dumps(to_json(verdict)))
    side = dataclasses.replace(compare.side(folder.path), name=HOSTILE, target=HOSTILE, profile=HOSTILE)
    suite = {"schema": 1, "target": HOSTILE, "server": {"dialect": HOSTILE, "version": HOSTILE}, "started": "", "profiles": [
        {"name": HOSTILE, "about": HOSTILE, "state": "finished", "why": [HOSTILE], "run": HOSTILE, "exit_code": 1,
         "verdict": "fail", "failures": [{"id": HOSTILE, "title": HOSTILE}], "worth": HOSTILE, "unknown": [HOSTILE],
         "broken": [HOSTILE], "error": HOSTILE}
    ]}  # fmt: skip
    search = spoiled(search_data())
    panels = web_panels(tmp_path / "panels")
    return {
        **panels,
        "verdict": report_page.render(verdict, series, folder.path),
        "report": folder.report_html.read_text(),
        "trend": trend_page.html(read_trend(runs)),
        "compare": compare_page.html(compare.compare(side, side)),
        "suite": suite_page.render(from_json(SuiteResult, suite)),
        "hunt": hunt_page.render(spoiled(hunt_data())),
        "capacity": capacity_page.render(from_json(CapacityResult, search)),
    }


def test_pages_have_no_tag_and_no_link_of_a_server(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        found = _Tags(page)
        assert not found.bad, name
        assert found.scripts in (0, 2), name
        assert "hit(1)" in page or name == "panel charts", f"{name} shows nothing of it"
        assert controls(page) <= {"\t"}, name


@pytest.mark.slow
def test_browser_runs_nothing_of_a_server(pages: dict[str, str], tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    browser = Browser(tmp_path)
    try:
        browser.ask("Page.addScriptToEvaluateOnNewDocument", source="window.hits = []; window.hit = n => hits.push(n)")
        for name, page in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(page)
            browser.requests.clear()
            browser.open(file.as_uri())
            browser.js("document.querySelectorAll('a').forEach(a => { a.target = '_self'; })")
            assert browser.js("document.querySelectorAll('a[href^=\"javascript:\"]').length") == 0
            assert browser.js("window.hits") == [], name
            assert not [url for url in browser.requests if not url.startswith("file:")], name
    finally:
        browser.close()


@pytest.fixture
def server() -> Iterator[str]:
    def reply(asked: Asked) -> tuple[int, object]:
        if asked.method == "GET" and asked.path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": HOSTILE, "object": "model", "owned_by": HOSTILE}]}
        return 400 if asked.method == "POST" else 200, {"error": {"message": HOSTILE}, "version": HOSTILE}

    with answering(reply) as url:
        yield url


def test_commands_print_no_control_character_of_a_server(run_folder: RunFolder, server: str, tmp_path: Path) -> None:
    folder = spoiled_rows(run_folder).path
    (tmp_path / "server.log").write_text(f"ERROR {HOSTILE}\nRuntimeError: CUDA error: {HOSTILE}\n".replace("\r", ""))
    printed = {
        "judge": output_of("judge", folder, code=1),
        "judge --json": output_of("judge", folder, "--json", code=1),
        "report": output_of("report", folder),
        "compare": output_of("compare", folder, folder),
        "runs": output_of("runs", tmp_path),
        "trend": output_of("trend", tmp_path),
        "classify": output_of("classify", tmp_path / "server.log", code=1),
        "probe": output_of("probe", server),
        "probe --json": output_of("probe", server, "--json"),
    }
    for name, text in printed.items():
        assert not controls(text), name


@pytest.mark.slow
@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "answers"])
def test_run_and_replay_print_no_control_character_of_a_server(refuses: bool, tmp_path: Path) -> None:
    """The log says that text, too, and each answer, header and id of the server."""

    class Hostile(Handler):
        def reply(self, asked: Asked) -> None:
            said = json.dumps(HOSTILE)[1:-1]
            if asked.method == "GET" and asked.path == "/v1/models":
                self.answer(200, {"object": "list", "data": [{"id": HOSTILE, "object": "model", "owned_by": HOSTILE}]})
            elif asked.method == "GET" or (refuses or len(asked.content) % 3 == 0):
                status = 200 if asked.method == "GET" else 500
                self.answer(
                    status, {"error": {"message": HOSTILE}, "version": HOSTILE}, {"Server": said, "x-request-id": said}
                )
            else:
                choice = {"index": 0, "message": {"role": "assistant", "content": HOSTILE}, "finish_reason": HOSTILE}
                self.answer(200, {"id": HOSTILE, "model": HOSTILE, "choices": [choice]}, {"x-request-id": said})

    lines = f"ERROR {HOSTILE}\nRuntimeError: CUDA error: {HOSTILE}\n".replace("\r", "")
    (tmp_path / "small.yaml").write_text(json.dumps({**SMALL, "target": {}}))
    with serving(Hostile) as url:
        follow = "cmd:while :; do cat lines; sleep 0.2; done"
        (tmp_path / "lines").write_text(lines)
        words = ("--target", url, "--server-log", follow, "--no-live", "--exporter-port", "0")
        ran = run_command("run", "small.yaml", *words, cwd=tmp_path)
        runs = list(tmp_path.glob("runs/*"))
        again = [
            run_command("replay", run, "--target", url, "--times", "1", "--any-death", cwd=tmp_path) for run in runs
        ]
    for done in (ran, *again):
        assert not controls(done.stdout + done.stderr)
        assert "Traceback" not in done.stderr
    assert "hit(" in ran.stdout + ran.stderr
    for page in tmp_path.glob("runs/*/incidents/*/incident.md"):
        assert not controls(page.read_text())


def test_printable_keeps_lines_indents_and_own_colours() -> None:
    assert printable("  a\n\x1b[1mb\x1b[0m\x1b]0;x\x07 \u202ec") == "  a\nb  c"
    assert printable("  a\n\x1b[1mb\x1b[0m \x1b[2Jc", color=True) == "  a\n\x1b[1mb\x1b[0m c"


def test_json_keeps_its_values_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": HOSTILE})
    text = capsys.readouterr().out
    assert not controls(text)
    assert json.loads(text) == {"a": HOSTILE}
