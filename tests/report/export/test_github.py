import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.report.export import github
from tests.report.made_up_run import BY_ENDPOINT, make_verdict, with_failure


def test_annotations_are_one_line_each_worst_first(verdict: Verdict) -> None:
    lines = github.annotate(verdict, "profiles/mtp_mm.yaml")
    assert lines[0].startswith(
        "::error file=profiles/mtp_mm.yaml,line=1,title=loadchaos%3A encoder_cache_miss (engine death)::"
    )
    assert "vllm/issues/38551" in lines[0]
    assert any("engine_deaths" in x and x.startswith("::error") for x in lines)
    assert any("load delivered" in x and x.startswith("::warning") for x in lines)
    assert all("\n" not in x and re.match(r"::(error|warning) [^:]*::", x) for x in lines)


def test_accepted_failure_is_a_warning(verdict: Verdict) -> None:
    accepted = with_failure(verdict, 1, accepted=True).failures[1]
    verdict = replace(verdict, failures=(accepted,))
    assert github.annotate(verdict, "p.yaml")[0].startswith("::warning ")


def test_log_line_like_a_command_is_fenced() -> None:
    first, *middle, last = github.fenced("x\n::add-mask::secret\ny").splitlines()
    token = first.removeprefix("::stop-commands::")
    assert first != token
    assert last == f"::{token}::"
    assert middle == ["x", "::add-mask::secret", "y"]
    assert github.fenced("x") != github.fenced("x"), "a server must not be able to guess it"


def test_summary_is_appended_with_failures_rules_and_latency(
    verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert not github.summarise(verdict, tmp_path)
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert github.summarise(verdict, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n## :x: FAIL mtp\\_mm")
    for part in (
        "### encoder\\_cache\\_miss (engine death)",
        "| images |",
        "1 engine death in 386 exposures",
        "**FAIL**",
    ):
        assert part in text, part


def test_summary_has_a_row_for_each_endpoint_of_several(verdict: Verdict, tmp_path: Path) -> None:
    assert "| endpoint |" not in github.summary(verdict, tmp_path)
    text = github.summary(make_verdict(by_endpoint=BY_ENDPOINT), tmp_path)
    assert "| endpoint | traffic | requests | ok | TTFT p50 | TTFT p99 | ITL p50 |" in text
    assert "| chat | a, b | 100 | 90 | 100 ms | 200 ms | 10.0 ms | 20.0 ms | 1.0 s | 2.0 s | 10 timeouts |" in text
    assert "| embeddings | c | 50 | 50 |" in text


def test_summary_escapes_hostile_text(verdict: Verdict, tmp_path: Path) -> None:
    evidence = {"source": "server.log", "line": 1, "text": "a ``` b <script>"}
    for n in range(2):
        title = "<img src=x> [a](http://evil.example) @somebody | `x`"
        verdict = with_failure(verdict, n, title=title, evidence=evidence)
    text = github.summary(verdict, tmp_path)
    assert "<img" not in text
    assert not re.search(r"(?<!\\)\]\(", text), "a link"
    assert "@somebody" not in text
    outside_of_code = re.sub(r"(`+) .*? \1(?!`)", "", text)
    assert "<script" not in outside_of_code
