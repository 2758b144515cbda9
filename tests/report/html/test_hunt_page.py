from typing import Any

from loadchaos.report.html import hunt_page


def data(**more: Any) -> dict[str, Any]:
    workload = {"load": {"users": 4}, "traffic": [{"tokens": "32..128", "abort": {"before": "body"}}]}
    row = {
        "n": 1, "change": "gene", "parent": 3, "at_s": 60.0, "requests": 1200, "questions": 1041,
        "seconds": 9.4, "news": ["a", "b"],
        "proved": True, "why": "", "failures": [{"id": "<b>engine</b>"}], "workload": workload,
    }  # fmt: skip
    entry = {"n": 1, "news": 2, "chosen": 0, "energy": 1.5, "workload": workload, "known_failure": False}
    settings = {
        "seed": 7,
        "budget_s": 7200,
        "launch": "serve --x '<script>'",
        "server": {"dialect": "vllm", "version": "1"},
    }
    finding = {
        "number": 1, "folder": "findings/01-x", "repro": "findings/01-x/m/repro", "text": "<i>text</i>", "at_s": 60.0,
        "workload": 1, "failure": {"id": "<b>engine</b>", "line": "Error: <x>", "incident": "001-x"},
    }  # fmt: skip
    return {
        "settings": settings, "rows": [row], "entries": [entry], "findings": [finding], "worth": "1 workloads",
        "features": 2, **more,
    }  # fmt: skip


def test_page_shows_findings_chart_and_corpus_escaped() -> None:
    page = hunt_page.render(data())
    assert "Hunt on vllm 1: 1 finding<" in page
    assert "&lt;b&gt;engine&lt;/b&gt;" in page
    for foreign in ("<b>engine", "<script", "<i>text", "Error: <x>"):
        assert foreign not in page
    assert 'href="findings/01-x/m/repro/README.md"' in page
    assert 'stroke="#c0232f"' in page, "the mark of the finding"
    assert "users 4 [tokens 32..128, abort {&#34;before&#34;: &#34;body&#34;}]" in page
    assert "2 h" in page
    assert "gene of 3" in page
    assert "<td>1,200</td><td>1,041</td>" in page


def test_page_of_a_hunt_without_a_workload() -> None:
    page = hunt_page.render(data(rows=[], entries=[], findings=[], settings={}))
    assert "Nothing found so far" in page
    assert "No workload has ended yet" in page
