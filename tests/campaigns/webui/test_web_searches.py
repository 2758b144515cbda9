import json
import os
from pathlib import Path
from typing import Any

from loadchaos.campaigns.webui.web_searches import TAB, WebSearches
from loadchaos.core.ledger.reader import Tail
from loadchaos.run.web_session import WebUiProcess, WebUiSettings
from tests.report.made_up_search import search_data

URL = "http://127.0.0.1:8000"


def ui_of(folder: Path) -> WebUiProcess:
    folder.mkdir()
    return WebUiProcess(folder, WebUiSettings("127.0.0.1", 8089, "small", "", URL, 4))


def keep(out: Path, name: str, **more: Any) -> Path:
    file = out / name / "capacity.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(search_data(**more)))
    return file


def announced(ui: WebUiProcess) -> list[tuple[str, str]]:
    rows = Tail(ui.home / "session.jsonl").rows()
    return [(Path(r["folder"]).name, r["about"]) for r in rows if r["row"] == "session" and r["what"] == "search"]


def test_tab_without_a_search_has_the_command_of_one(tmp_path: Path) -> None:
    ui = ui_of(tmp_path / "ui")
    WebSearches(tmp_path / "runs", ui).update()
    assert f"loadchaos capacity PROFILE --target {URL} --slo" in (ui.home / TAB).read_text()
    ui.close()


def test_tab_shows_the_newest_search_of_the_server_and_links_the_others(tmp_path: Path) -> None:
    ui, out = ui_of(tmp_path / "ui"), tmp_path / "runs"
    keep(out, "capacity-1", target=f"{URL}/v1")
    keep(out, "capacity-2", target="http://other:1")
    searches = WebSearches(out, ui)
    searches.update()
    page = (ui.home / TAB).read_text()
    assert "this load meets the goal, and 12 requests/s does not" in page
    assert page.index('href="./loadchaos/searches/capacity-1/report.html"') < page.index("Curves")
    assert 'href="./loadchaos/searches/capacity-2/report.html"' in page[page.index("Other searches") :]
    assert "UTC</a>" in page
    answer = "capacity 10 requests/s (9.7 to 12.4)"
    assert announced(ui) == [("capacity-1", answer), ("capacity-2", answer)]
    searches.update()
    assert len(announced(ui)) == 2, "a search that did not change was announced again"
    ui.close()


def test_tab_follows_a_search_that_runs(tmp_path: Path) -> None:
    ui, out = ui_of(tmp_path / "ui"), tmp_path / "runs"
    nothing = {**search_data()["answer"], "low": None, "high": None, "interval": [None, None], "known": False}
    file = keep(
        out, "capacity-1", ended=False, verdict=None, steps=[], answer=nothing, knee=None, saturation={}, limit={}
    )
    searches = WebSearches(out, ui)
    searches.update()
    assert "the search is not finished" in (ui.home / TAB).read_text()
    keep(out, "capacity-1")
    os.utime(file, ns=(1, 1))  # the clock of the files may be coarse
    searches.update()
    assert "this load meets the goal" in (ui.home / TAB).read_text()
    assert [about for _, about in announced(ui)] == [
        "capacity search: not finished",
        "capacity 10 requests/s (9.7 to 12.4)",
    ]
    ui.close()


def test_broken_search_is_left_out(tmp_path: Path) -> None:
    ui, out = ui_of(tmp_path / "ui"), tmp_path / "runs"
    keep(out, "capacity-1").write_text("{")
    keep(out, "capacity-2")
    WebSearches(out, ui).update()
    assert [name for name, _ in announced(ui)] == ["capacity-2"]
    assert "capacity-1" not in (ui.home / TAB).read_text()
    ui.close()
