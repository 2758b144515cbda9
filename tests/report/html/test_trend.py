import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.latency_percentiles import FEWEST_SAMPLES
from loadchaos.report.html.trend import rate, read
from loadchaos.report.html.trend_page import html, text
from tests.invoking import output_of

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def write_run(home: Path, day: int, **more: Any) -> None:
    """Write one judged run.

    `ttft` is in seconds; `failed` counts requests of `sent`.
    """
    folder = home / f"night-{day:03}"
    folder.mkdir(parents=True)
    sent, failed, deaths = more.get("sent", 1000), more.get("failed", 0), more.get("deaths", 0)
    ttft = more.get("ttft", 0.2)
    verdict = {
        "schema": 1, "profile": more.get("profile", "night"), "exit_code": 0, "exposures": {"requests": sent},
        "verdict": more.get("verdict", "fail" if failed or deaths else "pass"),
        "started": f"2026-{9 + day // 28:02}-{1 + day % 28:02}T02:00:00+00:00",
        "target": {"kind": "embedded", "dialect": "vllm", "version": more.get("version", "0.18.0"), "model": "sim"},
        "outcomes": {"ok": sent - failed - more.get("shed", 0), "stream_error": failed, "shed": more.get("shed", 0)},
        "latency": {"text": {"ttft_s": {"p50": ttft, "p99": ttft * 3, "n": sent}, "void": more.get("void", {})}},
        "failures": [{"id": "encoder_cache_miss", "severity": "engine_death", "attribution": "server", "count": deaths}]
        if deaths else [],
        "generator": {"limited": more.get("limited", False)},
    }  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(verdict))
    plan = {"profile": {"target": {"embedded": {"flags": more.get("flags", {})}}, "load": [{"users": 1}]}}
    (folder / "plan.json").write_text(json.dumps(plan))


def write_runs(home: Path, count: int, seed: int = 0, noise: float = 0.05, **more: Any) -> None:
    rng = random.Random(seed)
    for day in range(count):
        write_run(home, day, ttft=0.2 * rng.lognormvariate(0, noise), **more)


@pytest.mark.parametrize("block", range(5))
def test_trend_of_healthy_runs_raises_no_alarm(tmp_path: Path, block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        write_runs(tmp_path / str(seed), 14, seed)
        found = read(tmp_path / str(seed))
        assert [n.folder for n in found.runs if n.unusual] == []


def test_trend_finds_a_run_that_is_50_percent_slower(home: Path) -> None:
    write_runs(home, 10)
    write_run(home, 10, ttft=0.3)
    last = read(home).runs[-1]
    assert last.unusual == ["text TTFT p50", "text TTFT p99"]
    figure = last.figures["text TTFT p50"]
    assert figure.of_nights == 7
    assert figure.high is not None
    assert 0.2 < figure.high < 0.3


def test_trend_leaves_failed_and_limited_runs_out_of_the_baseline(home: Path) -> None:
    write_runs(home, 5)
    for day in range(5, 10):
        write_run(home, day, ttft=0.9, verdict="fail" if day % 2 else "pass", limited=not day % 2)
    assert read(home).runs[-1].figures["text TTFT p50"].says == "higher"


def test_trend_has_no_baseline_for_the_first_runs(home: Path) -> None:
    write_runs(home, 3)
    found = read(home)
    assert {f.says for n in found.runs for f in n.figures.values()} == {"no baseline"}
    assert "3 needed" in text(found)


def test_trend_skips_latencies_that_mean_nothing(home: Path) -> None:
    write_run(home, 0, void={"ttft_s": "chunks of 1,000 answers carry text in the field `thought`, which is not read"})
    write_run(home, 1, void={"itl_s": "chunks arrive in bursts of 9, as from a proxy that buffers"})
    assert [len(run.figures) for run in read(home).runs] == [0, 2]


def test_trend_skips_quantiles_of_too_few_answers(home: Path) -> None:
    write_run(home, 0, sent=FEWEST_SAMPLES["p50"] - 1)
    write_run(home, 1, sent=FEWEST_SAMPLES["p99"] - 1)
    write_run(home, 2, sent=FEWEST_SAMPLES["p99"])
    assert [list(run.figures) for run in read(home).runs] == [
        [],
        ["text TTFT p50"],
        ["text TTFT p50", "text TTFT p99"],
    ]


@pytest.mark.parametrize(
    ("count", "of", "expected"),
    [
        (0, 61_200, "< 0.0049 % (95 % confidence, 0 in 61,200)"),
        (0, 1, "< 95 % (95 % confidence, 0 in 1)"),
        (0, 0, "no exposure"),
        (3, 61_200, "0.0049 % (3 in 61,200; 95 % interval 0.0016 % to 0.015 %)"),
    ],
)
def test_rate_text_has_its_bounds(count: int, of: int, expected: str) -> None:
    assert rate(count, of).text() == expected


def test_rates_are_pooled_since_the_server_changed(home: Path) -> None:
    write_runs(home, 4, sent=10_000)
    write_run(home, 4, sent=10_000, version="0.19.0")
    write_run(home, 5, sent=10_000, version="0.19.0", deaths=1)
    write_run(home, 6, sent=10_000, version="0.19.0")
    found = read(home)
    assert [n.marks for n in found.runs if n.marks] == [["version: 0.18.0 → 0.19.0"]]
    assert found.changed == found.runs[4].started
    deaths = found.since_change["engine deaths by requests"]
    assert (deaths.count, deaths.of) == (1, 30_000)
    miss = found.since_change["encoder_cache_miss by requests"]
    assert (miss.count, miss.of) == (1, 30_000)


def test_changed_flag_is_a_mark(home: Path) -> None:
    write_run(home, 0, flags={"max_num_seqs": 8})
    write_run(home, 1, flags={"max_num_seqs": 16})
    assert read(home).runs[1].marks == ["--max_num_seqs: 8 → 16"]


def test_trend_finds_more_failures_but_not_a_single_one(home: Path) -> None:
    write_runs(home, 7, sent=1000)
    write_run(home, 7, sent=1000, failed=1)
    write_run(home, 8, sent=1000, failed=30)
    found = read(home)
    assert found.runs[7].unusual == []
    assert found.runs[8].unusual == ["failed requests"]


def test_trend_of_a_run_with_half_its_requests_refused_is_not_as_usual(home: Path) -> None:
    write_runs(home, 8)
    write_run(home, 8, shed=500, verdict="unknown")
    found = read(home)
    assert found.runs[8].unusual == ["refused requests"]
    assert "last run UNKNOWN; higher than in the 7 good runs: refused requests" in text(found)


def test_read_skips_other_profiles_and_broken_runs(home: Path) -> None:
    write_runs(home, 3, profile="other")
    write_run(home, 3)
    (home / "torn").mkdir()
    (home / "torn" / "verdict.json").write_text("{")
    found = read(home)
    assert (found.profile, len(found.runs), found.others) == ("night", 1, ("other",))
    assert len(read(home, "other").runs) == 3
    assert "no judged run of" in text(read(home, "none"))
    assert "no judged run of" in html(read(home, "none"))


def test_trend_page_has_no_script_and_no_request(home: Path) -> None:
    write_runs(home, 8)
    write_run(home, 8, version=HOSTILE, deaths=1)
    page = html(read(home))
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert page.count('class="p ') == 18
    assert page.count('class="mark"') == 2


def test_trend_command_prints_text_and_json_and_writes_a_page(home: Path) -> None:
    write_runs(home, 8)
    printed = output_of("trend", home, "--html", home / "t.html")
    assert "night: 8 runs; last run PASS; latency and failures like the 7 good runs" in printed
    assert "< 0.038 % (95 % confidence, 0 in 8,000)" in printed
    assert (home / "t.html").read_text().startswith("<!doctype html>")
    data = json.loads(output_of("trend", home, "--json"))
    assert data["nights"][-1]["figures"]["text TTFT p50"]["says"] == "as usual"
    output_of("trend", home / "none", code=2)
