"""A run in GitHub Actions: annotations and a summary that say what broke, and nothing of the server's becomes a command."""

import re
from pathlib import Path
from typing import Any

import pytest

from loadchaos.report.export import github

Verdict = dict[str, Any]


def test_each_failure_and_broken_expectation_is_one_line_worst_first(verdict: Verdict) -> None:
    lines = github.annotate(verdict, "profiles/mtp_mm.yaml")
    assert lines[0].startswith(
        "::error file=profiles/mtp_mm.yaml,line=1,title=loadchaos%3A encoder_cache_miss (engine death)::"
    )
    assert "vllm/issues/38551" in lines[0]
    assert any("engine_deaths" in x and x.startswith("::error") for x in lines)
    assert any("load delivered" in x and x.startswith("::warning") for x in lines)
    assert all("\n" not in x and re.match(r"::(error|warning) [^:]*::", x) for x in lines)


def test_an_accepted_failure_is_a_warning(verdict: Verdict) -> None:
    verdict["failures"] = [{**verdict["failures"][1], "accepted": True}]
    assert github.annotate(verdict, "p.yaml")[0].startswith("::warning ")


def test_a_log_line_that_looks_like_a_command_is_none() -> None:
    first, *middle, last = github.fenced("x\n::add-mask::secret\ny").splitlines()
    token = first.removeprefix("::stop-commands::")
    assert first != token
    assert last == f"::{token}::"
    assert middle == ["x", "::add-mask::secret", "y"]
    assert github.fenced("x") != github.fenced("x"), "a server must not be able to guess it"


def test_the_summary_is_appended_and_tells_what_a_person_asks(
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


def test_hostile_text_in_the_summary_stays_text(verdict: Verdict, tmp_path: Path) -> None:
    for failure in verdict["failures"]:
        failure["title"] = "<img src=x> [a](http://evil.example) @somebody | `x`"
        failure["evidence"]["text"] = "a ``` b <script>"
    text = github.summary(verdict, tmp_path)
    assert "<img" not in text
    assert not re.search(r"(?<!\\)\]\(", text), "a link"
    assert "@somebody" not in text
    outside_of_code = re.sub(r"(`+) .*? \1(?!`)", "", text)
    assert "<script" not in outside_of_code
