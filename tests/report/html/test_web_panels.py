import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.html.web_panels import PanelPages
from tests.rows import S, answered, folded


def page(folder: Path, slo: dict[str, float], *more: dict[str, Any], endpoints: Mapping[str, str] | None = None) -> str:
    """Twenty requests, one a second: those of `slow` take 3 s to their first token."""
    fold, pages = LiveFigures(), PanelPages(RunFolder(folder))
    fold.fold({"row": "run", "what": "begin", "at_ns": 0, "terms": {"slo": slo, "endpoints": endpoints or {}}})
    fold.fold({"row": "run", "what": "load_begin", "at_ns": S})
    for n in range(20):
        traffic, due_ns = ("slow" if n % 4 == 0 else "quick"), (n + 1) * S
        took_ns = 3 * S if traffic == "slow" else S // 10
        folded(fold, answered(due_ns, n, took_ns=took_ns, traffic=traffic, first_token_ns=due_ns + took_ns))
    folded(fold, more)
    pages.write(fold.snapshot(23 * S), now=True)
    return (folder / "cockpit" / "server.html").read_text()


def rows(text: str, title: str = "Goodput") -> list[list[str]]:
    table = text[text.index(f"<h2>{title}") :].split("</table>")[0]
    cells = (re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")[2:])
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in cells]


def test_server_tab_shows_goodput_of_all_of_the_last_seconds_and_of_each_traffic(tmp_path: Path) -> None:
    text = page(tmp_path, {"ttft": 2.0})
    assert "Requests that succeed within ttft &lt;= 2.0 s, of those that had to." in text
    assert rows(text) == [
        ["all requests", "75.0 %", "", "15", "20"],
        ["the last 10 s", "75.0 %", "", "6", "8"],
        ["slow", "0.0 %", "", "0", "5"],
        ["quick", "100.0 %", "", "15", "15"],
    ]
    assert 'style="width:75.0%"' in text


def test_server_tab_has_no_goodput_without_limits(tmp_path: Path) -> None:
    assert "Goodput" not in page(tmp_path, {})


def test_server_tab_counts_sessions(tmp_path: Path) -> None:
    session = {"row": "conversation", "id": "lc-a-0", "traffic": "slow", "due_ns": S, "at_ns": 2 * S}
    begin, ended = {**session, "what": "begin"}, {**session, "what": "end", "end": "finished", "turns": 2}
    text = page(tmp_path, {}, begin, ended, {**begin, "id": "lc-a-1"})
    assert rows(text, "Sessions") == [["slow", "1", "0", "0", "0", "1", "2", "0", "0"]]
    assert 'data-head="turns lost">0</td>' in text  # a phone has no row of headings


def test_server_tab_has_a_row_for_each_endpoint(tmp_path: Path) -> None:
    text = page(tmp_path, {}, endpoints={"slow": "chat", "quick": "embeddings"})
    assert [[row[0], *row[1:6]] for row in rows(text, "Endpoints")] == [
        ["chat", "5", "5", "0", "3.0 s", "3.0 s"],
        ["embeddings", "15", "15", "0", "100 ms", "100 ms"],
    ]


def test_server_tab_has_no_rows_of_a_single_endpoint(tmp_path: Path) -> None:
    assert "Endpoints" not in page(tmp_path, {}, endpoints={"slow": "chat", "quick": "chat"})
