"""The text report: verdict first, everything a stranger needs, at any width, safe on a terminal."""

from pathlib import Path
from typing import Any

import pytest

from loadchaos.report.formatting import clean
from loadchaos.report.terminal import summary

Verdict = dict[str, Any]


def test_the_first_line_says_the_verdict_what_broke_and_the_exit_code(verdict: Verdict) -> None:
    first = summary.render(verdict, Path("runs/x"), color=False, width=80).splitlines()[0]
    assert first == "FAIL  mtp_mm  engine death: encoder_cache_miss, and 1 more failure (exit code 1)"


def test_a_run_on_the_embedded_server_says_so_at_once(verdict: Verdict) -> None:
    second = summary.render(verdict, Path("runs/x"), color=False, width=80).splitlines()[1]
    assert "embedded server (a simulation" in second


def test_a_failure_tells_when_what_was_lost_the_proof_the_issue_and_the_remedy(verdict: Verdict) -> None:
    page = summary.render(verdict, Path("runs/x"), color=False, width=200)
    block = page[page.index("1. encoder_cache_miss") : page.index("2. connection_reset")]
    for part in (
        "30.4 s after the run began",
        "76 requests",
        "server.log:101",
        "Encoder cache miss for 9f86d081884c7d65",
        "https://github.com/vllm-project/vllm/issues/38551",
        "0.27.1 or later",
        "server bug (not caused by our attacks)",
        "runs/x/incidents/001-encoder_cache_miss",
    ):
        assert part in block


def test_the_engine_death_comes_before_the_resets_it_caused(verdict: Verdict) -> None:
    page = summary.render(verdict, Path("runs/x"))
    assert page.index("1. encoder_cache_miss") < page.index("2. connection_reset")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_unless_one_word_is(verdict: Verdict, width: int) -> None:
    for line in summary.render(verdict, Path("r"), color=False, width=width).splitlines():
        assert len(line) <= width or max(map(len, line.split())) > width - 16, line


def test_without_color_there_is_no_escape_sequence_even_from_the_server(verdict: Verdict) -> None:
    assert "\x1b" not in summary.render(verdict, Path("r"), color=False)


def test_color_changes_nothing_but_color(verdict: Verdict) -> None:
    import re

    colored = summary.render(verdict, Path("r"), color=True)
    assert "\x1b[32" in colored or "\x1b[31" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == summary.render(verdict, Path("r"), color=False)


def test_a_pass_says_what_it_is_worth(verdict: Verdict) -> None:
    passed = {**verdict, "verdict": "pass", "exit_code": 0, "failures": [], "worth": "Crash rate < 0.5 %"}
    page = summary.render(passed, Path("r"), color=False)
    assert page.startswith("PASS  mtp_mm  660 requests (exit code 0)")
    assert "Crash rate < 0.5 %" in page


@pytest.mark.parametrize(("kinds", "told"), [(5, None), (6, "(1 more kind of"), (8, "(3 more kinds of")])
def test_traffic_that_has_no_column_is_counted(verdict: Verdict, kinds: int, told: str | None) -> None:
    many = {**verdict, "by_traffic": {f"t{n}": {"ok": 1} for n in range(kinds)}}
    page = summary.render(many, Path("r"), color=False)
    assert told in page if told else "more kind" not in page


def test_an_unknown_names_the_check_that_proved_nothing(verdict: Verdict) -> None:
    unknown = {**verdict, "verdict": "unknown", "exit_code": 3, "failures": [], "expectations": []}
    first = summary.render(unknown, Path("r"), color=False, width=120).splitlines()[0]
    assert first == "UNKNOWN  mtp_mm  load delivered: 62 % (expected >= 95 %) (exit code 3)"


def test_a_run_that_never_came_to_its_load_says_what_stopped_it_and_little_else(verdict: Verdict) -> None:
    stopped = {"name": "run", "expected": "completed", "actual": "the server answered 401: set OPENAI_API_KEY",
               "verdict": "unknown"}  # fmt: skip
    page = summary.render({**verdict, "exit_code": 4, "checks": [stopped], "failures": []}, Path("r"), width=120)
    assert page.splitlines()[0].endswith("the server answered 401: set OPENAI_API_KEY (exit code 4)")
    assert "no expectation was tested" in page
    assert "hangs == 0" not in page


def test_an_injected_failure_is_not_blamed_on_the_server(verdict: Verdict) -> None:
    verdict["failures"][1]["attribution"] = "injected"
    page = summary.render(verdict, Path("r"), color=False)
    assert "injected by our own attack, not a server bug" in page
    assert page.index("1. connection_reset") < page.index("2. encoder_cache_miss")


def test_an_empty_verdict_still_renders() -> None:
    assert summary.render({}, Path("r"), color=False).startswith("UNKNOWN")


def test_a_limited_generator_says_that_latencies_mean_nothing(verdict: Verdict) -> None:
    verdict["generator"] = {"limited": True, "lag_p99_s": 2.0}
    page = summary.render(verdict, Path("r"), color=False, width=200)
    assert "loadchaos itself was the limit" in page


def test_clean_takes_escape_sequences_controls_and_turned_text_away() -> None:
    assert clean("a\x1b[31mb\x1b]0;title\x07c\x00\r\nd\u202ee") == "abc de"[:3] + " d e"
