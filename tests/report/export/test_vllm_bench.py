from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.report.export.vllm_bench import METRICS, BenchFigures, file_name, result, text
from tests.invoking import output_of

VERDICT: dict[str, Any] = {
    "verdict": "fail",
    "target": {"dialect": "vllm", "model": "org/tiny"},
    "outcomes": {"ok": 70, "reset": 10},
    "throughput": {
        "seconds": 4.0, "requests": 70, "input_tokens": 700, "output_tokens": 140, "requests_per_s": 17.5,
        "input_tokens_per_s": 175.0, "output_tokens_per_s": 35.0,
    },
    "goodput": {"good_per_s": 12.5},
}  # fmt: skip


@pytest.fixture
def run(make_run: Callable[..., RunFolder], tmp_path: Path) -> RunFolder:
    folder = make_run(tmp_path / "run", seconds=6, death_s=4)
    folder.profile.write_text("name: x\ntraffic: [{name: t}]\nload: [{rate: 20/s, law: poisson, max_in_flight: 64}]\n")
    return folder


def test_vllm_bench_figures_are_those_of_the_rows(run: RunFolder) -> None:
    found: dict[str, Any] = result(
        run, Verdict.from_json(VERDICT), BenchFigures(list(METRICS), (25.0, 99.0), detailed=True)
    )
    ends: list[Any] = [r for r in Reader(run).new(final=True) if r["row"] == "end"]
    answered = [r for r in ends if r["outcome"] == "ok"]
    ttft_ms = [(r["first_token_ns"] - r["due_ns"]) / 1e6 for r in answered]
    e2el_ms = [(r["last_byte_ns"] - r["due_ns"]) / 1e6 for r in answered]
    tpot_ms = [(r["last_byte_ns"] - r["first_token_ns"]) / 20 / 1e6 for r in answered]
    for name, values in (("ttft", ttft_ms), ("e2el", e2el_ms), ("tpot", tpot_ms)):
        assert found[f"mean_{name}_ms"] == pytest.approx(np.mean(values), rel=0.01)
        assert found[f"std_{name}_ms"] == pytest.approx(np.std(values), rel=0.05)
        for key, q in (("median", 50), ("p25", 25), ("p99", 99)):
            assert found[f"{key}_{name}_ms"] == pytest.approx(np.percentile(values, q, method="inverted_cdf"), rel=0.01)
    assert found["mean_itl_ms"] == pytest.approx(np.mean(tpot_ms), rel=0.01)
    assert len(found["ttfts"]) == len(found["errors"]) == len(ends)
    assert sum(1 for e in found["errors"] if not e) == len(answered) < len(ends)
    assert found["start_times"][0] == 0


def test_vllm_bench_result_has_load_totals_and_concurrency(run: RunFolder) -> None:
    found: dict[str, Any] = result(run, Verdict.from_json(VERDICT), BenchFigures())
    ends: list[Any] = [r for r in Reader(run).new(final=True) if r["row"] == "end"]
    most = max(sum(r["sent_ns"] <= at["sent_ns"] < r["at_ns"] for r in ends) for at in ends)
    assert found["max_concurrent_requests"] == most > 1
    assert (found["request_rate"], found["max_concurrency"], found["burstiness"]) == (20, 64, 1)
    answered = sum(r["outcome"] == "ok" for r in ends)
    assert (found["completed"], found["request_goodput"]) == (answered, 12.5)
    assert found["num_prompts"] == found["completed"] + found["failed"] >= len(ends)
    assert (found["total_token_throughput"], found["output_throughput"]) == (210, 35)
    assert file_name(found) == f"chat-20qps-concurrency64-tiny-{found['date']}.json"
    assert "  Total token throughput (tok/s):    210.00" in text(found, BenchFigures())


def test_vllm_bench_result_leaves_the_warm_up_out(run: RunFolder) -> None:
    path = run.events
    rows = path.read_text().replace('"terms":{', '"terms":{"warm_up":{"seconds":2.0},')
    path.write_text(rows)
    whole: dict[str, Any] = result(run, Verdict.from_json(VERDICT), BenchFigures(["e2el"]))
    ends: list[Any] = [r for r in Reader(run).new(final=True) if r["row"] == "end"]
    first = min(r["due_ns"] for r in ends)
    late = [r for r in ends if r["due_ns"] >= first + 2_000_000_000]
    assert whole["completed"] == sum(r["outcome"] == "ok" for r in late) > 0
    assert whole["mean_e2el_ms"] == pytest.approx(
        np.mean([(r["last_byte_ns"] - r["due_ns"]) / 1e6 for r in late if r["outcome"] == "ok"]), rel=0.01
    )


def test_vllm_bench_tokens_are_unknown_without_usage(run: RunFolder) -> None:
    throughput = {
        **VERDICT["throughput"],
        "input_tokens": None,
        "input_tokens_per_s": None,
        "output_tokens_per_s": None,
    }
    found: dict[str, Any] = result(run, Verdict.from_json({**VERDICT, "throughput": throughput}), BenchFigures())
    assert found["total_token_throughput"] is found["output_throughput"] is None


@pytest.mark.parametrize(
    ("metrics", "percentiles", "wrong"),
    [
        ("ttft,latency", None, "--percentile-metrics latency"),
        (None, "50,x", "--metric-percentiles 50,x"),
        (None, "0", "0:"),
    ],
)
def test_percentile_options_are_checked(metrics: str | None, percentiles: str | None, wrong: str) -> None:
    assert BenchFigures.parse("e2el, ttft", "50,99.9") == BenchFigures(["ttft", "e2el"], [50.0, 99.9])
    with pytest.raises(OptionError, match=wrong):
        BenchFigures.parse(metrics, percentiles)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--result-dir", "x"], "--result-dir has no effect without --save-result"),
        (["--save-result", "--metadata", "x"], "--metadata 'x': KEY=VALUE was expected"),
        (["--percentile-metrics", "x"], "--percentile-metrics x: ttft, tpot, itl, e2el were expected"),
    ],
)
def test_result_options_are_checked_before_anything_is_sent(words: list[str], told: str) -> None:
    assert told in output_of("run", "smoke", "--embedded", *words, code=2)


def test_vllm_bench_result_does_not_know_the_load_of_others(run: RunFolder) -> None:
    run.events.write_text(run.events.read_text().replace('"terms":{', '"terms":{"watched":"command",'))
    found: dict[str, Any] = result(run, Verdict.from_json(VERDICT), BenchFigures())
    assert (found["request_rate"], found["max_concurrency"]) == (None, None)
