import json
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.core.typed_json import from_json
from loadchaos.report.capacity_compare import caveats, judgement
from tests.invoking import output_of


def search(
    low: float, high: float | None, *, at_least: bool = False, known: bool = True, goal: float = 0.99
) -> dict[str, Any]:
    answer = {"known": known, "low": low, "high": high, "interval": [low, high], "at_least": at_least, "narrow": True,
              "why": "the budget is spent", "client_limit": None}  # fmt: skip
    return {"schema": 1, "by": "rate", "goal": goal, "slo_s": {"ttft": 2.0}, "target": "http://127.0.0.1:1", "ended": True,
            "ended_by": "", "server": {"dialect": "vllm", "version": "0.32.0"}, "answer": answer, "knee": None,
            "saturation": {}, "limit": {}, "steps": [], "failures": [], "started": "",
            "seconds": 1, "wanted": {"profile": "chat"}}  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (search(10, 11), search(12, 13), "higher"),
        (search(12, 13), search(10, 11), "lower"),
        (search(10, 12), search(11, 13), "no clear difference"),
        (search(10, 11, at_least=True), search(20, 21), "no clear difference"),
        (search(10, 11), search(20, None, at_least=True), "higher"),
        (search(10, 11), search(20, 21, known=False), "unknown"),
        (search(10, 11), search(20, 21, goal=0.9), "not comparable"),
        (search(10, 11), search(20, 21) | {"by": "concurrency"}, "not comparable"),
    ],
)
def test_capacities_differ_where_their_intervals_do_not_overlap(a: Any, b: Any, found: str) -> None:
    assert judgement(from_json(CapacityResult, a), from_json(CapacityResult, b)) == found


def test_compare_command_takes_two_searches_and_no_run(tmp_path: Path) -> None:
    for name, data in (("a", search(10, 11)), ("b", search(12, 13, goal=0.9))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "capacity.json").write_text(json.dumps(data))
    (tmp_path / "run").mkdir()
    a, b, run = (str(tmp_path / name) for name in ("a", "b", "run"))
    printed = output_of("compare", a, b)
    assert printed.startswith(
        "not comparable: the two searches answer different questions\n  ! the goal differs: goodput"
    )
    assert "capacity 12 requests/s (12 to 13): this load meets the goal, and 13 requests/s does not" in printed
    assert json.loads(output_of("compare", a, b, "--json"))["b_is"] == "not comparable"
    mixed = output_of("compare", run, b, code=2)
    assert "is a capacity search and the other is a run: give two of one kind" in mixed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "capacity.json cannot be read"),
        ('{"schema": 99}', "schema 1 was expected in capacity.json"),
        ('{"schema": 1}', "capacity.json has no target"),
    ],
)
def test_compare_names_the_folder_of_a_broken_search(tmp_path: Path, text: str, why: str) -> None:
    for name, content in (("a", json.dumps(search(10, 11))), ("b", text)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "capacity.json").write_text(content)
    printed = output_of("compare", tmp_path / "a", tmp_path / "b", code=2)
    assert f"{tmp_path / 'b'}: {why}" in printed
    assert "--resume" not in printed


def test_compare_says_that_the_traffic_differs() -> None:
    a, b = search(10, 11), search(12, 13)
    a["phase"], b["phase"] = ({"number": n, "of": 2, "traffic": [name]} for n, name in ((0, "edges"), (1, "text")))
    b["wanted"] = {"profile": "chat", "overrides": ["traffic.0.weight=2"]}
    found = caveats(from_json(CapacityResult, a), from_json(CapacityResult, b))
    assert found == ["--set differs: nothing and traffic.0.weight=2", "the traffic differs: edges and text"]
