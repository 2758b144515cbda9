import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.html import compare, compare_gate
from tests.invoking import output_of
from tests.report.html.test_compare import a_side


def gate(limit: str, a: compare.Side, b: compare.Side) -> str:
    (result,) = compare_gate.judge([compare_gate.parse(limit)], compare.compare(a, b))
    return result.verdict


RATES = {"requests/s": 10.0, "output tokens/s": 100.0}


@pytest.mark.parametrize(
    ("limit", "b", "verdict"),
    [
        ("ttft_p50 > +10%", {"median_ms": 130}, "fail"),
        ("ttft_p50 > +50%", {"median_ms": 130}, "pass"),
        ("ttft_p50 > +10%", {"median_ms": 70}, "pass"),
        ("ttft_p50 < -10%", {"median_ms": 70}, "fail"),
        ("ttft_p50 > +1%", {"median_ms": 103, "n": 60}, "unknown"),  # beyond the limit, and noise explains it
        ("ttft_p99 > +10%", {"median_ms": 130, "n": 299}, "unknown"),  # too few answers for a p99
        ("e2e_p95 > +10%", {"median_ms": 130}, "fail"),
        ("ttfo_p50 > +10%", {}, "unknown"),  # a figure that no run has
        ("failed > +1pp", {"failed": 200}, "fail"),
        ("failed > +1pp", {"failed": 10}, "pass"),
        ("failed > +0.1pp", {"failed": 3}, "unknown"),
        ("requests_per_s < -5%", {"figures": RATES | {"requests/s": 9.0}}, "fail"),
        ("requests_per_s < -5%", {"figures": RATES}, "pass"),
        ("good_requests_per_s < -5%", {"figures": RATES}, "unknown"),
        ("worse", {"median_ms": 130}, "fail"),
        ("worse", {"failed": 200}, "fail"),
        ("worse", {"median_ms": 70}, "pass"),
        ("worse", {"verdict": "fail"}, "fail"),
        ("worse", {"verdict": "unknown"}, "unknown"),
        ("worse", {"verdict": "unknown", "failed": 200}, "fail"),
        ("worse", {"n": 10}, "unknown"),
        ("worse", {"median_ms": 130, "limited": True}, "unknown"),  # the generator was the limit
        ("worse", {"median_ms": 130, "profile": "another"}, "unknown"),
    ],
)
def test_limit_fails_only_a_difference_that_noise_does_not_explain(limit: str, b: dict[str, Any], verdict: str) -> None:
    n = b.get("n", 1000)
    a = a_side("a", 100, n, figures=RATES)
    assert gate(limit, a, a_side("b", **{"n": n, "seed": 2, **b})) == verdict


@pytest.mark.parametrize(("seed", "sent", "verdict"), [(0, 100, "fail"), (1, 100, "unknown"), (1, 10_000, "fail")])
def test_throughput_of_other_arrivals_fails_beyond_their_chance(seed: int, sent: int, verdict: str) -> None:
    a, b = (
        replace(a_side("x", figures={"requests/s": rate}), seed=of, sent=sent) for rate, of in ((11.9, 0), (10.0, seed))
    )
    assert gate("requests_per_s < -5%", a, b) == verdict


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({"verdict": "unknown"}, {"verdict": "fail"}, "unknown"),
        ({"verdict": "unknown"}, {"verdict": "unknown"}, "pass"),
        ({"verdict": "fail"}, {"verdict": "unknown"}, "pass"),
        ({"server": {"the profile's load": "4/s"}}, {"server": {"the profile's load": "8/s"}}, "unknown"),
        ({"server": {"version": "0.31.0"}}, {"server": {"version": "0.32.0"}}, "pass"),
    ],
)
def test_runs_of_another_load_or_without_a_verdict_are_not_told_apart(
    a: dict[str, Any], b: dict[str, Any], verdict: str
) -> None:
    assert gate("worse", a_side("a", n=1000, **a), a_side("b", n=1000, **b)) == verdict


@pytest.mark.slow
def test_worse_tells_a_step_of_latency_from_noise_in_19_of_20_pairs() -> None:
    pairs = range(20)
    equal = [gate("worse", a_side("a", 100, 600, 2 * i), a_side("b", 100, 600, 2 * i + 1)) for i in pairs]
    slower = [gate("worse", a_side("a", 100, 600, 2 * i), a_side("b", 115, 600, 2 * i + 1)) for i in pairs]
    assert equal.count("fail") <= 1
    assert slower.count("fail") >= 19


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft_p99", "'ttft_p99 > \\+10%'"),
        ("ttft_p98 > +10%", "did you mean ttft_p99"),
        ("quux < -1%", "known are failed"),
        ("ttft_mean > +10%", "unknown figure 'ttft_mean'"),
        ("ttft_p99 < +10%", "> with a rise"),
        ("ttft_p99 > -10%", "> with a rise"),
        ("failed > +1%", "percentage points"),
        ("ttft_p99 > +1pp", "per cent"),
    ],
)
def test_wrong_limit_says_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        compare_gate.parse(text)


def test_compare_ends_with_the_code_of_its_limits(
    make_run: Callable[..., RunFolder], tmp_path: Path, verdict: Verdict
) -> None:
    paths = []
    for name, profile in (("a", "mtp_mm"), ("b", "mtp_mm"), ("c", "other")):
        folder = make_run(tmp_path / name)
        folder.verdict.write_bytes(orjson.dumps(replace(verdict, profile=profile)))
        paths.append(folder.path)
    limits = ("--fail-if", "failed > +1pp", "--fail-if", "worse")
    assert output_of("compare", *paths[:2], *limits).startswith("ok    failed > +1pp: ")
    machine = json.loads(output_of("compare", *paths[1:], *limits, "--json", code=3))
    assert [row["verdict"] for row in machine["fail_if"]] == ["unknown", "unknown"]
    assert "--fail-if" in output_of("compare", *paths[:2], "--fail-if", "ttft > 3", code=2)


def test_flags_that_only_one_log_tells_are_no_change() -> None:
    a, b = (a_side(name, server={"version": "0.18.0", "flags": flags}) for name, flags in (("a", "--tp 1"), ("b", "")))
    found = compare.compare(a, b)
    assert found.changes == []
    assert "b: flags of the server are not known" in found.caveats
