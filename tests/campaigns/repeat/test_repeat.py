"""`loadchaos run --repeat`: real runs, intervals between made-up ones, and the comparison of two repeated loads."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.repeat.session import RepeatSession, parse, read
from loadchaos.core import resources
from loadchaos.core.errors import OptionError
from loadchaos.core.histogram import bucket, bucket_middle
from loadchaos.core.typed_json import to_json
from loadchaos.load import registry
from loadchaos.profile.profile import load
from loadchaos.report.html import compare, compare_gate
from loadchaos.report.repeat_compare import differences, is_worse, text
from loadchaos.report.repeat_result import LATENCIES, RepeatedRun, RepeatResult, figures_of
from loadchaos.report.terminal.repeat import render
from loadchaos.run.options import Options
from tests.invoking import output_of
from tests.report.html.test_compare import a_side
from tests.report.made_up_run import make_verdict


def repeated(seed: int, *, ttft_s: float = 0.1, failed: float = 0.0, runs: int = 5, **more: Any) -> RepeatResult:
    """Runs whose figures vary by 5 %, each around the same mean."""
    draw = random.Random(seed)

    def around(mean: float) -> float:
        return mean * draw.gauss(1, 0.05)

    made = tuple(
        RepeatedRun(
            run=f"run-{n}",
            seed=n,
            exit_code=0,
            figures={
                "requests_per_s": around(20), "ttft_p50": around(ttft_s), "ttft_p99": around(3 * ttft_s),
                "itl_p50": around(0.01), "itl_p99": around(0.02), "failed": failed,
            },
        )
        for n in range(runs)
    )  # fmt: skip
    known: dict[str, Any] = {"profile": "p", "asked": "5", "exit_code": 0, **more}
    return RepeatResult(schema=1, runs=made, **known)


def restarted(made: RepeatResult, *servers: dict[str, str]) -> RepeatResult:
    """The same runs, each of the server that has these facts."""
    return replace(made, runs=tuple(replace(r, server=s) for r, s in zip(made.runs, servers, strict=True)))


def told_apart(a: RepeatResult, b: RepeatResult) -> set[str]:
    return {name for name, d in differences(a, b).items() if d.says in ("higher", "lower")}


def gate(limit: str, a: RepeatResult, b: RepeatResult) -> str:
    first = compare.compare(a_side("a", 100, 1000), a_side("b", 100, 1000))
    (result,) = compare_gate.judge_repeats([compare_gate.parse(limit)], a, b, first)
    return result.verdict


def test_a_step_in_latency_is_told_apart_and_equal_servers_are_not() -> None:
    slower = [told_apart(repeated(seed), repeated(seed + 1000, ttft_s=0.125)) for seed in range(20)]
    equal = [told_apart(repeated(seed), repeated(seed + 1000)) for seed in range(20)]
    assert sum({"ttft_p50", "ttft_p99"} <= found for found in slower) >= 19
    assert sum(not found for found in equal) >= 19


@pytest.mark.parametrize(
    ("limit", "b", "verdict"),
    [
        ("ttft_p50 > +10%", {"ttft_s": 0.14}, "fail"),
        ("ttft_p50 > +60%", {"ttft_s": 0.14}, "pass"),
        ("ttft_p50 > +1%", {"ttft_s": 0.103}, "unknown"),  # beyond the limit, and noise explains it
        ("ttft_p50 > +10%", {"ttft_s": 0.14, "runs": 2}, "unknown"),
        ("requests_per_s < -20%", {}, "pass"),
        ("output_tokens_per_s < -5%", {}, "unknown"),  # no run has it
        ("failed > +1pp", {"failed": 0.05}, "fail"),
        ("worse", {"ttft_s": 0.14}, "fail"),
        ("worse", {"ttft_s": 0.07}, "pass"),
        ("worse", {"exit_code": 1}, "fail"),
        ("worse", {"runs": 1}, "unknown"),
        ("worse", {"exit_code": 130}, "unknown"),
    ],
)
def test_limit_fails_only_a_difference_that_noise_between_runs_does_not_explain(
    limit: str, b: dict[str, Any], verdict: str
) -> None:
    assert gate(limit, repeated(1), repeated(2, **b)) == verdict


FACTS = {"version": "0.32.0", "model": "m", "max_num_seqs": "256", "kind": "external"}


@pytest.mark.parametrize(
    ("later", "change"),
    [
        ({"max_num_seqs": "4"}, "max_num_seqs: 256 → 4 (run-2)"),
        ({"version": "0.33.0"}, "version: 0.32.0 → 0.33.0 (run-2)"),
        ({"model": "n"}, "model: m → n (run-2)"),
        ({}, ""),
        ({"max_num_seqs": ""}, ""),  # not known is no change
        ({"kind": "launched", "capacity_tokens": "9"}, ""),
    ],
)
def test_load_whose_server_changed_between_its_runs_is_not_compared(later: dict[str, str], change: str) -> None:
    before = {**FACTS, "capacity_tokens": "8"} | ({"kind": "launched"} if later.get("kind") else {})
    b = restarted(repeated(2, ttft_s=0.14), before, before, *[before | later] * 3)
    a = restarted(repeated(1), *[FACTS] * 5)
    assert b.changes() == ([change] if change else [])
    first = compare.compare(a_side("a", 100, 1000), a_side("b", 100, 1000))
    for ab, letter in (((a, b), "B"), ((b, a), "A")):
        lines = text(*ab, first).splitlines()
        assert ("better" in "".join(lines) or "worse" in "".join(lines)) is not bool(change)
        if change:
            assert lines[3:5] == [
                "not compared: a load whose server changed has no figures of one server",
                f"  ! the server changed between the runs of {letter}: {change}",
            ]
        verdicts = [
            r.verdict for r in compare_gate.judge_repeats([compare_gate.parse("ttft_p50 > +10%"), None], *ab, first)
        ]
        assert verdicts == (["unknown"] * 2 if change else ["fail" if letter == "B" else "pass"] * 2)


def test_repeated_load_whose_server_changed_says_so() -> None:
    page = render(restarted(repeated(1, runs=2), FACTS, FACTS | {"max_num_seqs": "4"}), Path("runs/x"))
    assert "not one server: max_num_seqs: 256 → 4 (run-1)" in page


@pytest.mark.parametrize(("seqs", "code"), [("256", 0), ("4", 3)])
def test_repeated_load_whose_server_changed_is_no_pass(seqs: str, code: int, tmp_path: Path) -> None:
    profile = load(resources.profiles()["smoke"], registry.full_registry())
    session = RepeatSession(Campaign(tmp_path, print), profile, Options(), parse("2"))
    session.result = restarted(repeated(1, runs=2), FACTS, FACTS | {"max_num_seqs": seqs})
    assert session.end().exit_code == code
    assert read(tmp_path).changes() == ([f"max_num_seqs: 256 → {seqs} (run-1)"] if code else [])


def test_limit_on_a_figure_that_repeats_do_not_keep_is_a_mistake_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "repeat.json").write_text("{")
    words = ("compare", tmp_path, tmp_path, "--fail-if")
    assert "repeated loads have no tpot_p50; they have requests_per_s," in output_of(*words, "tpot_p50 > +10%", code=2)
    assert "repeated loads have no" not in output_of(*words, "ttft_p50 > +10%", code=2)


def test_lower_rate_is_worse_and_lower_latency_better() -> None:
    found = differences(repeated(1), repeated(2, ttft_s=0.05))
    assert not is_worse("ttft_p50", found["ttft_p50"])
    assert is_worse("requests_per_s", found["ttft_p50"])


def test_equal_servers_differ_seldom_where_the_noise_is_below_the_step_of_a_histogram() -> None:
    """Without the width of the buckets, more than 5 % of such comparisons of three runs find one."""
    draw = random.Random(1)

    def made(means_ns: list[float]) -> RepeatResult:
        found = repeated(draw.randrange(10**6), runs=3)
        figures = [
            {
                str(name): bucket_middle(bucket(draw.gauss(mean, mean / 128))) / 1e9
                for name, mean in zip(LATENCIES, means_ns, strict=True)
            }
            for _ in range(3)
        ]
        return replace(found, runs=tuple(replace(r, figures=f) for r, f in zip(found.runs, figures, strict=True)))

    wrong = 0
    for _ in range(400):
        means_ns = [draw.uniform(1e7, 2e7) for _ in LATENCIES]
        wrong += bool(told_apart(made(means_ns), made(means_ns)))
    assert wrong <= 0.05 * 400


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"figures": {"ttft_p50": 1e308}}, "has figures that no run can have"),
        ({"figures": {"ttft_p50": -1}}, "has figures that no run can have"),
        ({"run": "/etc"}, "has no run /etc, which"),
        ({"run": ".."}, "has no run .., which"),
        ({"run": "a" * 5000}, "has no run aaa"),
        ({"exit_code": 99}, "no run of it sent its load as planned"),
    ],
)
def test_edited_file_is_a_mistake(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    data = to_json(repeated(1))
    data["runs"] = [run | change for run in data["runs"]]
    (tmp_path / "repeat.json").write_text(json.dumps(data))
    assert said in output_of("compare", tmp_path, tmp_path, code=2)


def test_interrupted_run_is_no_error() -> None:
    made = repeated(1, runs=2, exit_code=130)
    cut = replace(made.runs[1], exit_code=130, figures={})
    page = render(replace(made, runs=(made.runs[0], cut)), Path("runs/x"))
    assert "INTERRUPTED  2 runs of p: 1 pass, 1 interrupted" in page
    assert re.search(r"interrupted +runs/x/run-1", page)


def test_runs_that_prove_nothing_are_left_out_of_the_figures() -> None:
    made = repeated(1, runs=3)
    lost = RepeatedRun(run="lost", seed=9, exit_code=3, why="load delivered: 3 of 9", figures={})
    result = RepeatResult(**{**vars(made), "runs": (*made.runs, lost)})
    assert min(result.values("requests_per_s")) > 10
    page = render(result, Path("runs/x"))
    assert "figures: 3 runs whose load was sent as planned" in page
    assert re.search(r"unknown +runs/x/lost: load delivered: 3 of 9", page)


@pytest.mark.parametrize(
    ("check", "counts"), [("load_delivered", False), ("run", False), ("same_server", False), ("degeneration", True)]
)
def test_only_a_load_that_was_not_the_planned_one_has_no_figures(check: str, counts: bool) -> None:
    unknown = {"name": check, "expected": "x", "actual": "y", "verdict": "unknown"}
    verdict = make_verdict(verdict="unknown", exit_code=3, checks=[unknown])
    assert bool(figures_of(verdict)) is counts


@pytest.mark.parametrize("wrong", ["1", "0", "-3", "many", "1001", "２", "until=5", "until=0%", "until=100%"])
def test_wrong_number_of_runs_is_a_mistake(wrong: str) -> None:
    with pytest.raises(OptionError, match="a number of runs from 2 to 1000, or until=5% was expected"):
        parse(wrong)


@pytest.mark.parametrize("option", [("--web",), ("--save-result",), ("--ci", "github")])
def test_option_of_a_single_run_is_refused(option: tuple[str, ...], tmp_path: Path) -> None:
    words = ("run", "smoke", "--embedded", "--repeat", "2", "--out", tmp_path, *option)
    assert f"--repeat: {option[0]} is of a single run" in output_of(*words, code=2)
    assert list(tmp_path.iterdir()) == []


def test_server_that_cannot_be_tested_is_asked_once(tmp_path: Path) -> None:
    words = (
        "run",
        "smoke",
        "--target",
        "http://127.0.0.1:1/?key=hidden",
        "--repeat",
        "3",
        "--wait-ready",
        "1s",
        "--out",
        tmp_path,
    )
    page = output_of(*words, code=4)
    [file] = tmp_path.glob("repeat-*/repeat.json")
    assert len(json.loads(file.read_text())["runs"]) == 1
    assert "hidden" not in file.read_text()
    assert re.search(r"error +\S+/smoke-\S+: http://127.0.0.1:1 was not healthy within 1 s", page)


@pytest.mark.slow
def test_two_real_runs_have_intervals_and_are_compared(tmp_path: Path) -> None:
    load = ("--rate", "40", "--num-prompts", "40", "--random-input-len", "16", "--random-output-len", "4")
    words = ("run", "--embedded", *load, "--repeat", "2", "--no-questions", "--no-live", "--exporter-port", "0")
    page = output_of(*words, "--out", tmp_path)
    [folder] = tmp_path.glob("repeat-*")
    found = read(folder)
    assert [run.exit_code for run in found.runs] == [0, 0]
    assert [run.seed for run in found.runs] == [0, 1]
    assert "PASS  2 runs of" in page
    assert found.runs[0].server["max_num_seqs"] == found.runs[1].server["max_num_seqs"]
    assert found.changes() == []
    assert re.search(r"requests/s +\d", page)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert "too few runs to compare: 3 of each are needed" in output_of("compare", folder, copy)
    data = json.loads(output_of("compare", folder, copy, "--json", "--fail-if", "worse", code=3))
    assert data["between_runs"]["requests_per_s"]["says"] == "too few"
    assert data["fail_if"][0]["verdict"] == "unknown"
    assert "give two of one kind" in output_of("compare", folder, folder / str(found.runs[0].run), code=2)


def test_comparison_shows_what_changed_and_what_is_worse() -> None:
    first = compare.compare(*(a_side(n, 100, 1000, server={"max_num_seqs": v}) for n, v in (("a", "256"), ("b", "4"))))
    lines = text(repeated(1), repeated(2, ttft_s=0.14), first).splitlines()
    assert lines[0].startswith("A  5 runs of p: pass")
    assert lines[2] == "changed  max_num_seqs: 256 → 4"
    assert lines[4] == "worse in B: TTFT p50, TTFT p99"
