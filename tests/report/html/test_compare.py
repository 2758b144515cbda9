import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.html import compare, compare_page
from tests.invoking import output_of
from tests.rows import MS, answered


def answers(median_ms: float, n: int, seed: int) -> AnswerFigures:
    """Latencies around a median, with a realistic tail."""
    made, rng = AnswerFigures(), random.Random(seed)
    for _ in range(n):
        ttft_ns = round(median_ms * MS * rng.lognormvariate(0, 0.4))
        made.fold(answered(1, 0, took_ns=2 * ttft_ns, traffic="chat")[1])
    return made


def run_of(made: AnswerFigures) -> RunFigures:
    run = RunFigures()
    run.answers = made
    return run


def a_side(name: str, median_ms: float = 100, n: int = 300, seed: int = 1, **changes: Any) -> compare.Side:
    base: dict[str, Any] = {
        "name": name, "verdict": "pass", "target": "vllm 0.18.0", "profile": "p", "seed": 0, "sent": 2000, "failed": 0,
        "failures": {}, "limited": False,
    }  # fmt: skip
    run = changes.pop("run", None) or run_of(answers(median_ms, n, seed))
    return compare.Side(**{**base, "run": run, **changes})


def says(found: compare.Comparison) -> dict[str, str]:
    return {d.what: d.says for d in (*found.latency, *found.rates)}


def test_compare_finds_no_difference_between_equal_runs() -> None:
    found = compare.compare(a_side("a"), a_side("b"))
    assert set(says(found).values()) == {"no clear difference"}
    assert compare_page.headline(found) == "no clear difference"
    assert found.caveats == ()


def test_compare_finds_10_percent_with_its_interval() -> None:
    found = compare.compare(a_side("a", 100, 3000), a_side("b", 110, 3000, seed=2))
    median = next(d for d in found.latency if d.what == "chat TTFT p50")
    assert median.says == "higher"
    assert median.low is not None
    assert median.high is not None
    assert median.low < 0.010 < median.high
    assert "worse in B: chat TTFT p50" in compare_page.headline(found)


def test_bootstrap_interval_has_its_coverage() -> None:
    held, rng = 0, np.random.default_rng(0)
    for seed in range(30):
        a, b = (compare._Sample(answers(100, 300, 2 * seed + x).latency["chat"], "ttft") for x in (0, 1))
        d = compare._latency("p50", a, b, "p50", rng)
        held += d.low is not None and d.high is not None and d.low <= 0 <= d.high
    assert held >= 25  # 95 % of 30 is 28


def session_side(name: str, lost: int, seconds: float) -> compare.Side:
    made, rng = a_side(name), random.Random(name)
    for n in range(200 - lost):
        row: Any = {
            "id": str(n),
            "traffic": "agent",
            "end": "finished",
            "due_ns": 0,
            "at_ns": round(seconds * 1000 * MS * rng.uniform(0.8, 1.2)),
        }
        for what in ("begin", "end"):
            made.run.sessions.on_conversation(row | {"what": what}, timed=True)
    counts = {"sessions": 200, "lost": lost, "cut": 3}
    return replace(made, sessions=counts, figures={"turns lost": 2.0 * lost, "turns cut": 5.0})


def test_compare_shows_lost_and_cut_sessions_and_their_times() -> None:
    found = compare.compare(session_side("a", 2, 10), session_side("b", 40, 12))
    judged = {d.what: d.says for d in found.sessions}
    assert judged["sessions that were lost"] == judged["agent session p50"] == "higher"
    assert judged["sessions that were cut"] == "no clear difference"
    text = compare_page.text(found)
    assert "worse in B: " in text
    assert "sessions that were lost" in compare_page.headline(found)
    assert [line.split() for line in text.splitlines() if line.startswith("  turns lost")] == [
        ["turns", "lost", "4", "80", "+1900.0", "%"]
    ]
    assert "sessions that were lost" in compare_page.html(found)


def test_compare_without_sessions_in_both_has_no_table_of_them() -> None:
    found = compare.compare(a_side("a"), session_side("b", 2, 10))
    assert found.sessions == ()
    assert "Sessions" not in compare_page.text(found)


def test_compare_skips_the_tail_of_few_answers() -> None:
    found = compare.compare(a_side("a", 100, 50), a_side("b", 300, 50))
    assert says(found)["chat TTFT p50"] == "higher"
    assert says(found)["chat TTFT p99"] == "too few"


def test_compare_counts_answers_not_gaps() -> None:
    a, b = a_side("a", 100, 12), a_side("b", 100, 12)
    for side, gap in ((a, 10), (b, 11)):
        side.run.answers.latency["chat"]["itl"].add(gap * MS, 5000)
    assert says(compare.compare(a, b))["chat ITL p99"] == "too few"


def test_compare_finds_more_failures_but_not_a_single_one() -> None:
    a = a_side("a", failed=2, failures={"boom": 2})
    much = says(compare.compare(a, a_side("b", failed=60, failures={"boom": 60, "new": 1})))
    assert much["requests that failed"] == much["boom"] == "higher"
    assert much["new"] == "no clear difference"
    assert says(compare.compare(a, a_side("b", failed=3, failures={"boom": 3})))["boom"] == "no clear difference"


def test_newcombe_interval_matches_the_published_example() -> None:
    """Newcombe 1998, table II, method 10: 56/70 against 48/80.

    The interval is 0.0524 to 0.3339.
    """
    d = compare._share("x", 48, 80, 56, 70)
    assert d.low == pytest.approx(0.0524, abs=1e-4)
    assert d.high == pytest.approx(0.3339, abs=1e-4)


def test_compare_lists_every_caveat() -> None:
    other = a_side("b", sent=200, profile="q", seed=9, target="vllm 0.27.1", incomplete=True, limited=True)
    caveats = " | ".join(compare.compare(a_side("a"), other).caveats)
    for doubt in (
        "the profile differs",
        "generator was the limit",
        "a part of its load was not sent",
        "requests differs",
    ):
        assert doubt in caveats
    assert compare.compare(a_side("a"), a_side("b", verdict="unknown")).caveats == (), "the figures are whole"


def test_equal_loads_of_two_names_are_compared() -> None:
    """A run without a profile has the port of its server in its name."""
    load = {"the profile's load": "[{users: 4}]", "the profile's traffic": "[{name: text}]"}
    a, b = a_side("a", profile="users-4-port-1", server=load), a_side("b", profile="users-4-port-2", server=load)
    assert compare.incomparable(a, b) == []
    other = load | {"the profile's load": "[{users: 8}]"}
    assert compare.incomparable(a, replace(b, server=other)) == [
        "the profile differs: users-4-port-1 and users-4-port-2"
    ]
    assert compare.incomparable(a, replace(b, server={})) != []


def test_compare_begins_with_changed_versions_and_flags() -> None:
    server = {"version": "0.18.0", "--max_num_seqs": "8", "flags": "--tp 1", "model": "m"}
    changed = {**server, "version": "0.27.1", "flags": "--tp 2"}
    found = compare.compare(a_side("a", server=server), a_side("b", server=changed))
    assert compare_page.text(found).splitlines()[2:5] == [
        "changed  version: 0.18.0 → 0.27.1", "changed  flags: --tp 1 → --tp 2", ""
    ]  # fmt: skip
    assert "changed: version: 0.18.0 → 0.27.1" in compare_page.html(found)
    assert found.to_json()["changes"] == found.changes
    assert compare.compare(a_side("a", server=server), a_side("b", server=server)).changes == []


def test_compare_command_prints_text_and_json_and_writes_a_page(
    make_run: Callable[..., RunFolder], tmp_path: Path, verdict: dict[str, Any]
) -> None:
    paths = []
    for name in ("a", "b"):
        folder = make_run(tmp_path / name)
        folder.verdict.write_bytes(orjson.dumps(verdict))
        paths.append(str(folder.path))
    assert "images TTFT p50" in output_of("compare", *paths, "--html", tmp_path / "c.html")
    page = (tmp_path / "c.html").read_text()
    assert "<script" not in page
    assert "images TTFT p50" in page
    machine = json.loads(output_of("compare", *paths, "--json"))
    assert machine["a"]["sent"] == machine["b"]["sent"] > 0
    assert {d["says"] for d in machine["latency"]} <= {"no clear difference", "too few"}
    assert all("encoder_cache_miss" not in d["what"] or d["a"] == d["b"] for d in machine["rates"])


def test_compare_of_a_run_without_verdict_says_what_to_do(run_folder: RunFolder) -> None:
    with pytest.raises(OptionError, match="loadchaos judge"):
        compare.side(run_folder.path)


def test_runs_command_lists_runs_with_and_without_verdict(
    make_run: Callable[..., RunFolder], tmp_path: Path, verdict: dict[str, Any]
) -> None:
    make_run(tmp_path / "killed")
    make_run(tmp_path / "done").verdict.write_bytes(orjson.dumps(verdict))
    (tmp_path / "no run").mkdir()
    (audited := tmp_path / "audit-1" / "equal").mkdir(parents=True)
    (audited / "repeat.json").write_text("{}")
    make_run(audited / "third")
    printed = output_of("runs", tmp_path)
    lines = printed.splitlines()
    assert len(lines) == 4
    assert any(line.startswith("audit-1/equal/third ") for line in lines)
    assert "FAIL" in printed
    assert "encoder_cache_miss" in printed
    assert any("killed" in line and "none yet" in line for line in lines)
    machine = json.loads(output_of("runs", tmp_path, "--json"))
    assert {r["verdict"] for r in machine} == {None, "fail"}
    assert ": no runs;" in output_of("runs", tmp_path / "no run")


def test_compare_shows_goodput_and_throughput() -> None:
    slo: dict[str, Any] = {"slo_s": {"ttft": 1.0}, "due": 1000}
    a = a_side("a", **slo, good=990, figures={"requests/s": 10.0, "output tokens/s": 500.0})
    b = a_side("b", **slo, good=700, figures={"requests/s": 9.0, "drafts accepted": 0.7})
    found = compare.compare(a, b)
    assert says(found)["requests not within slo"] == "higher"
    shown = compare_page.text(found)
    assert "worse in B: requests not within slo" in shown
    assert "requests/s  10  9  -10.0 %" in shown
    assert "output tokens/s" not in shown
    assert "Throughput and efficiency" in compare_page.html(found)
    assert found.to_json()["b"]["good"] == 700


def test_compare_shows_large_figures_with_all_digits_and_shares_in_percent() -> None:
    a = a_side("a", figures={"input tokens/s": 44370.4, "prefix cache hits": 0.5952, "sessions finished": 55.0})
    b = a_side("b", figures={"input tokens/s": 21180.0, "prefix cache hits": 0.5709, "sessions finished": 50.0})
    found = compare.compare(a, b)
    shown = [" ".join(line.split()) for line in compare_page.text(found).splitlines()]
    assert "input tokens/s 44,370 21,180 -52.3 %" in shown
    assert "prefix cache hits 59.5 % 57.1 % -2.4 pp" in shown
    assert "sessions finished 55 50 -9.1 %" in shown
    assert "e+" not in compare_page.html(found)


def test_compare_leaves_goodput_out_where_limits_differ() -> None:
    a, b = (a_side(n, slo_s={"ttft": s}, due=100, good=99) for n, s in (("a", 1.0), ("b", 2.0)))
    found = compare.compare(a, b)
    assert "requests not within slo" not in says(found)
    assert "the slo differs, so goodput is not compared" in found.caveats


def test_compare_reads_figures_of_a_verdict() -> None:
    verdict = {
        "throughput": {"requests_per_s": 5.0, "output_tokens_per_s": None},
        "goodput": {"good_per_s": 4.0},
        "efficiency": {"prefix_hit_rate": 0.5, "joules_per_output_token": None},
    }
    found = compare._figures(Verdict.from_json(verdict))
    assert found == {"requests/s": 5.0, "good requests/s": 4.0, "prefix cache hits": 0.5}


def by_endpoint_side(name: str, median_ms: float, failed: int, endpoints: dict[str, str]) -> compare.Side:
    """Two kinds of traffic with 500 requests each; those of `vectors` have one latency in all runs."""
    made = answers(median_ms, 500, 1)
    made.latency["vectors"] = answers(50, 500, 2).latency["chat"]
    run = run_of(made)
    run.endpoints = endpoints
    sent = {"chat": 500, "vectors": 500}
    return a_side(name, run=run, sent=1000, failed=failed, sent_by=sent, failed_by={"vectors": failed})


def test_compare_shows_failures_of_each_endpoint() -> None:
    endpoints = {"chat": "chat", "vectors": "embeddings"}
    found = compare.compare(by_endpoint_side("a", 100, 0, endpoints), by_endpoint_side("b", 100, 100, endpoints))
    rows = {d.what: d.says for d in found.endpoints}
    assert rows == {
        "chat: requests that failed": "no clear difference",
        "embeddings: requests that failed": "higher",
    }  # latencies of one traffic are not repeated
    assert "vectors (embeddings) TTFT p50" in says(found)
    text, page = compare_page.text(found), compare_page.html(found)
    assert "By endpoint" in text
    assert "embeddings: requests that failed" in page
    assert "worse in B: embeddings: requests that failed" in compare_page.headline(found)


def test_compare_adds_the_traffic_of_an_endpoint() -> None:
    endpoints = {"chat": "chat", "vectors": "chat", "x": "rerank"}
    sides = [by_endpoint_side(name, ms, 0, endpoints) for name, ms in (("a", 100), ("b", 200))]
    for side in sides:
        side.run.answers.latency["x"] = answers(10, 500, 3).latency["chat"]
    sides = [replace(s, sent_by={**s.sent_by, "x": 500}) for s in sides]
    found = {d.what: d for d in compare.compare(*sides).endpoints}
    assert found["chat: TTFT p90"].says == "higher"
    assert found["chat: TTFT p90"].n_a == 1000
    assert not any(what.startswith("rerank: TTFT") for what in found)


def test_compare_of_runs_with_one_endpoint_has_no_rows_by_endpoint() -> None:
    endpoints = {"chat": "chat", "vectors": "chat"}
    found = compare.compare(by_endpoint_side("a", 100, 0, endpoints), by_endpoint_side("b", 100, 0, endpoints))
    assert found.endpoints == ()
    assert "By endpoint" not in compare_page.text(found)


def test_compare_warns_of_traffic_that_was_sent_to_another_endpoint() -> None:
    a = by_endpoint_side("a", 100, 0, {"chat": "chat", "vectors": "embeddings"})
    b = by_endpoint_side("b", 100, 0, {"chat": "responses", "vectors": "embeddings"})
    assert "the endpoint of chat differs: chat and responses" in compare.compare(a, b).caveats


def test_compare_judges_no_latency_that_means_nothing() -> None:
    a, b = a_side("a"), a_side("b", median_ms=200)
    (latency,) = b.run.answers.latency.values()
    latency.unread["thoughts"] = 5
    found = compare.compare(a, b)
    marked = {name for name, said in says(found).items() if said == "void"}
    assert marked and all("TTFT" in name or "ITL" in name or "TPOT" in name for name in marked)
    assert {said for name, said in says(found).items() if "E2E" in name} == {"higher"}
    assert any(c.startswith("b: TTFT means nothing: chunks of 5 answers") for c in found.caveats)
    assert "means nothing" in compare_page.text(found)
