import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.verdict.model import CheckResult, Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.model import Terms
from loadchaos.report import headline, performance
from loadchaos.report.formatting import clean
from loadchaos.report.terminal import summary
from loadchaos.run.finalize import conclude
from tests.golden.archive import unpack
from tests.report.made_up_run import BY_ENDPOINT, make_verdict, with_failure


def test_summary_begins_with_verdict_failure_and_exit_code(verdict: Verdict) -> None:
    first = summary.render(verdict, Path("runs/x"), color=False, width=80).splitlines()[0]
    assert first == "FAIL  mtp_mm  engine death: encoder_cache_miss, and 1 more failure (exit code 1)"


def test_summary_says_how_a_failure_of_the_server_is_reproduced(verdict: Verdict) -> None:
    command = "loadchaos minimise runs/x"
    assert command in summary.render(verdict, Path("runs/x"), color=False, width=80)
    for n in range(2):
        verdict = with_failure(verdict, n, attribution="self-inflicted")
    assert command not in summary.render(verdict, Path("runs/x"), color=False, width=80)


def test_summary_of_a_failing_run_has_verdict_cause_target_load_and_figures_before_its_failures(
    verdict: Verdict,
) -> None:
    page = summary.render(verdict, Path("runs/x"), color=False, width=160)
    worst = next(f for f in verdict.failures if f.id == "encoder_cache_miss")
    first, *others = page[: page.index("1. encoder_cache_miss")].splitlines()
    assert first.startswith("FAIL  mtp_mm  engine death: encoder_cache_miss")
    assert others[0].startswith(f"  cause          {worst.title}")
    labels = [line[:17].strip() for line in others if line[2:3].strip()]
    assert labels == [
        "cause", "target", "offered", "requests/s", "TTFT p50", "ITL p50", "in flight", "refused"
    ]  # fmt: skip
    assert "embedded server (a simulation" in page


@pytest.mark.parametrize(
    ("ledger", "load"),
    [
        ("small", ("5 requests/s (Poisson arrivals) until 60 requests, at most 256 in flight; prompt: 64 tokens of text; "
         "output: exactly 32 tokens")),
        ("profile-smoke", ("2 users in a closed loop for 5 s; then 2 requests/s (Poisson arrivals) for 25 s, at most 32 in "
         "flight; traffic: text, exact, images")),
    ],
)  # fmt: skip
def test_summary_of_a_pass_fits_25_lines(
    ledger: str, load: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack(ledger, tmp_path)
    verdict = conclude(RunFolder(tmp_path / ledger))
    monkeypatch.setattr(headline, "terms_of", lambda _: Terms(profile=ledger, load=load, planned_s=30.0))
    monkeypatch.chdir(tmp_path)
    lines = summary.render(verdict, Path(ledger), width=100).splitlines()
    assert verdict.verdict == "pass"
    assert len(lines) <= 25, "\n".join(lines)
    assert [line.split()[0] for line in lines[1:3]] == ["target", "asked"]
    assert any(re.fullmatch(r"  checks +\d expectations met, \d+ checks passed", line) for line in lines)
    assert not any("  ok  " in line for line in lines if "requests  ok  " not in line)
    assert len(summary.render(verdict, Path(ledger), width=100, full=True).splitlines()) > len(lines) + 20


def test_summary_of_a_failure_has_time_loss_evidence_issue_and_remedy(verdict: Verdict) -> None:
    page = summary.render(verdict, Path("runs/x"), color=False, width=200)
    block = page[page.index("1. encoder_cache_miss") : page.index("2. connection_reset")]
    for part in (
        "30.4 s after the load began",
        "76 requests",
        "server.log:101",
        "Encoder cache miss for 9f86d081884c7d65",
        "https://github.com/vllm-project/vllm/issues/38551",
        "0.27.1 or later",
        "server bug; ",
        "runs/x/incidents/001-encoder_cache_miss",
    ):
        assert part in block


@pytest.mark.parametrize("width", [60, 80, 120])
def test_summary_lines_fit_the_terminal(verdict: Verdict, width: int) -> None:
    for line in summary.render(verdict, Path("r"), color=False, width=width).splitlines():
        assert len(line) <= width or max(map(len, line.split())) > width - 16, line


def test_summary_text_is_equal_with_color(verdict: Verdict) -> None:
    colored = summary.render(verdict, Path("r"), color=True)
    assert "\x1b[32" in colored or "\x1b[31" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == summary.render(verdict, Path("r"), color=False)


def test_summary_of_a_pass_shows_statistical_strength(verdict: Verdict) -> None:
    passed = replace(verdict, verdict="pass", exit_code=0, failures=(), worth="Crash rate < 0.5 %")
    page = summary.render(passed, Path("r"), color=False)
    assert page.startswith("PASS  mtp_mm  660 requests: 580 ok, 78 connection resets, 2 unfinished (exit")
    assert "Crash rate < 0.5 %" in page


@pytest.mark.parametrize(("kinds", "line"), [(5, None), (6, "(1 more kind of"), (8, "(3 more kinds of")])
def test_summary_counts_traffic_without_column(verdict: Verdict, kinds: int, line: str | None) -> None:
    many = replace(verdict, by_traffic={f"t{n}": {"ok": 1} for n in range(kinds)})
    page = summary.render(many, Path("r"), color=False)
    assert line in page if line else "more kind" not in page


def test_summary_of_unknown_names_the_check(verdict: Verdict) -> None:
    unknown = replace(verdict, verdict="unknown", exit_code=3, failures=(), expectations=())
    first = summary.render(unknown, Path("r"), color=False, width=120).splitlines()[0]
    assert first == "UNKNOWN  mtp_mm  load delivered: 62 % (expected >= 95 %) (exit code 3)"


def test_summary_of_a_run_without_load_says_why(verdict: Verdict) -> None:
    stopped = CheckResult("run", "completed", "the server answered 401: set OPENAI_API_KEY", "unknown")
    page = summary.render(replace(verdict, exit_code=4, checks=(stopped,), failures=()), Path("r"), width=120)
    assert page.splitlines()[0].endswith("the server answered 401: set OPENAI_API_KEY (exit code 4)")
    assert "no expectation was tested" in page
    assert not [words for words in ("hangs == 0", "strength", "details", "run again") if words in page], (
        "a mistake is short"
    )


def test_summary_attributes_injected_failures_to_the_attack(verdict: Verdict) -> None:
    verdict = with_failure(verdict, 1, attribution="injected")
    page = summary.render(verdict, Path("r"), color=False)
    assert "our own attack, not a server bug; it injected this" in page
    assert page.index("1. connection_reset") < page.index("2. encoder_cache_miss")


def test_summary_of_an_empty_verdict() -> None:
    assert summary.render(Verdict.from_json({}), Path("r"), color=False).startswith("UNKNOWN")


def test_summary_of_a_limited_generator_warns_about_latencies() -> None:
    verdict = make_verdict(generator={"limited": True, "lag_p99_s": 2.0})
    page = summary.render(verdict, Path("r"), color=False, width=200)
    assert "loadchaos itself was the limit" in page


def test_clean_removes_escape_sequences_and_control_characters() -> None:
    assert clean("a\x1b[31mb\x1b]0;title\x07c\x00\r\nd\u202ee") == "abc de"[:3] + " d e"


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (1, ["1.0 s", "–", "–", "–", "–", "9.0 s"]), (20, ["1.0 s", "2.0 s", "–", "–", "–", "9.0 s"]),
        (299, ["1.0 s", "2.0 s", "3.0 s", "4.0 s", "–", "9.0 s"]),
        (300, ["1.0 s", "2.0 s", "3.0 s", "4.0 s", "5.0 s", "9.0 s"]),
    ],
)  # fmt: skip
def test_percentiles_of_too_few_samples_are_a_dash(n: int, shown: list[str]) -> None:
    times = {"mean": 1.0, "p50": 2.0, "p90": 3.0, "p95": 4.0, "p99": 5.0, "max": 9.0, "n": n}
    none = {"p50": None, "p99": None, "n": 0}
    verdict = make_verdict(latency={"t": {"ttft_s": none, "itl_s": none, "e2e_s": times}}, latency_all=None)
    assert performance.latency_rows(verdict) == [["t", "E2E", *shown, str(n)]]


def test_summary_has_a_line_for_each_endpoint() -> None:
    lines = summary.render(make_verdict(by_endpoint=BY_ENDPOINT), Path("r"), color=False, width=80).splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[:1] == ["endpoint"])
    assert [line.split() for line in lines[at : at + 3]] == [
        ["endpoint", "requests", "ok", "TTFT", "p50", "p99", "ITL", "p50", "p99", "E2E", "p50", "p99"],
        ["chat", "100", "90", "100", "ms", "200", "ms", "10.0", "ms", "20.0", "ms", "1.0", "s", "2.0", "s"],
        ["embeddings", "50", "50", "–", "–", "–", "–", "50.0", "ms", "60.0", "ms"],
    ]
    assert max(map(len, lines[at : at + 3])) <= 80


def test_summary_lists_only_files_that_are_there(verdict: Verdict, tmp_path: Path) -> None:
    """On a full disk verdict.json cannot be written, and `loadchaos judge` writes none."""
    assert "verdict.json" not in summary.render(verdict, tmp_path, full=True)
    (tmp_path / "verdict.json").write_text("{}")
    assert "verdict.json" in summary.render(verdict, tmp_path, full=True)


def test_full_summary_counts_finish_reasons() -> None:
    labels = {"chat": {"finish_reason": {"length": 4, "stop": 2}}, "text": {"finish_reason": {"stop": 3}}}
    verdict = make_verdict(answer_labels=labels, by_traffic={"chat": {"ok": 6}, "text": {"ok": 3}})
    rows = [line.split() for line in summary.render(verdict, Path("r"), full=True).splitlines()]
    assert [r for r in rows if "stop" in r or "answers" in r] == [
        ["label", "value", "answers"],
        ["finish", "reason", "stop", "5"],
    ]
    assert ["finish", "reason", "length", "4"] in rows


@pytest.mark.parametrize(
    ("steady", "told"),
    [
        ({}, ""),
        ({"requests_per_s": 5.0}, "5 requests/s, TTFT p50 100 ms p99 200 ms from 2.0 s to 12.0 s, without"),
        ({"ttft_s": {"p50": 0.1, "p99": 0.15, "n": 300}}, "4 requests/s, TTFT p50 100 ms p99 150 ms from 2.0 s"),
        ({"ttft_s": {"p50": 0.08, "p99": 0.15, "n": 40}}, "4 requests/s, TTFT p50 80.0 ms from 2.0 s"),
        ({"ttft_s": {"p50": None, "p99": None, "n": 0}, "requests_per_s": 5.0}, "5 requests/s, E2E p50 1.0 s p99 2.0"),
    ],
)
def test_summary_tells_a_steady_state_whose_throughput_or_latency_differs(steady: dict[str, Any], told: str) -> None:
    latency = BY_ENDPOINT["chat"]["latency"]
    found: Any = {
        "from_s": 2.0, "seconds": 10.0, "requests": 40, "requests_per_s": 4.0, "in_flight": 4.0,
        "ttft_s": latency["ttft_s"], "e2e_s": latency["e2e_s"], **steady,
    }  # fmt: skip
    throughput = {"seconds": 15.0, "requests": 60, "requests_per_s": 4.0}
    verdict = make_verdict(steady=found, throughput=throughput, latency_all=latency)
    text = headline.steady_text(verdict)
    assert (text[: len(told)], bool(text)) == (told, bool(told))
    assert headline.steady_text(verdict, full=True)


def test_pass_shows_the_figure_beside_each_limit_that_was_asked(verdict: Verdict) -> None:
    limits = (
        CheckResult("ttft_p99", "<= 2s", "1.31 s (90 % interval 1.2 s to 1.4 s, n = 400)", "pass"),
        CheckResult("chat.goodput", ">= 90%", "98.00%, 98 of 100 requests that had to succeed", "pass"),
        CheckResult("engine_deaths", "== 0", "0", "pass"),
        CheckResult("ok_share", ">= 95%", "100.00%, 400 of 400 requests", "pass"),  # asked by default
    )
    page = summary.render(
        replace(verdict, verdict="pass", failures=(), expectations=limits, checks=()), Path("r"), width=160
    )
    assert "  checks         4 expectations met (ttft_p99 <= 2s: 1.31 s; chat.goodput >= 90%: 98.00 %)\n" in page
