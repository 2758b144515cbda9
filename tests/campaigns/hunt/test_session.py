"""A hunt from begin to end with a server made of rules: files, findings, exit codes, kill and resumption."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.hunt.findings import HuntFinding, Reproduction, collect
from loadchaos.campaigns.hunt.journal import WORKLOADS, HuntSettings, Journal, WorkloadResult, WorkloadRow
from loadchaos.campaigns.hunt.session import HuntSession
from loadchaos.campaigns.hunt.slot import ProbedSlot, WorkloadOrder
from loadchaos.campaigns.hunt.workers import SlotLostError, SlotProcess
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.typed_json import from_json
from tests.campaigns.hunt.conftest import FACTS, failure, result

Answer = Callable[[int], Mapping[str, Any]]


class RuleRunner(SlotProcess):
    """WorkloadRunner that answers by the number of the workload."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.orders: list[WorkloadOrder] = []
        self.stopped = False

    async def probe(self) -> ProbedSlot:
        self._answer(0)
        return ProbedSlot(facts=FACTS, models=("a",), asked={"reads": 20, "generations": 3})

    async def run(self, order: WorkloadOrder) -> WorkloadResult:
        self.orders.append(order)
        await asyncio.sleep(0)
        run = Path(order.folder) / "hunt-1"
        run.mkdir(parents=True, exist_ok=True)  # of a workload that was in flight
        (run / "events.jsonl").write_text("{}\n")
        return from_json(WorkloadResult, {**self._answer(int(Path(order.folder).name)), "run": str(run)})

    def interrupt(self) -> None:
        pass

    async def stop(self) -> None:
        self.stopped = True


class Reproducing(Reproduction):
    """Notes what it was asked to reproduce."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.stopped = False

    async def run(self, findings: Sequence[HuntFinding], budget_s: float) -> None:
        assert budget_s >= 0
        self.asked = [f.key for f in findings]

    def stop(self) -> None:
        self.stopped = True


def hunt(
    folder: Path, answer: Answer, *, parallel: int = 1, **settings: Any
) -> tuple[int, list[str], list[RuleRunner]]:
    """Run a hunt; returns its exit code, its lines and its runners."""
    folder.mkdir(exist_ok=True)
    lines: list[str] = []
    runners = [RuleRunner(answer) for _ in range(parallel)]
    given = HuntSettings(**{"seed": 1, "budget_s": 1e6, **settings})
    campaign = Campaign(folder, lines.append)
    session = HuntSession(given, campaign, runners, Reproducing())
    return campaign.interrupts.run(session.run()), lines, runners


def until(most: int, answer: Answer) -> Answer:
    """Answer, and end the hunt with a finding of its own after `most` workloads."""
    return lambda n: result(failures=(failure("the_end"),)) if n == most else answer(n)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / WORKLOADS).read_bytes().splitlines()[1:]]


def test_finding_gets_a_folder_and_exit_code_1(tmp_path: Path) -> None:
    code, lines, runners = hunt(
        tmp_path, lambda n: result(f"a:{n}", failures=(failure(),) if n == 3 else ()), findings=1
    )
    assert code == 1
    assert len(rows(tmp_path)) == 3
    kept = tmp_path / "findings" / "01-engine_died"
    assert (kept / "run" / "events.jsonl").exists()
    found = json.loads((kept / "finding.json").read_text())
    assert (found["workload"], found["after_requests"], found["failure"]["frame"]) == (3, 69, "f.py g")
    assert list((tmp_path / "runs").iterdir()) == [], "runs without a finding are removed"
    assert sorted(p.name for p in (tmp_path / "corpus").iterdir()) == ["00001.yaml", "00002.yaml", "00003.yaml"]
    assert any("NEW FINDING: engine_died" in line for line in lines)
    assert any(line.startswith("FOUND 1: engine_died in f.py g") for line in lines)
    assert "engine_died" in (tmp_path / "report.html").read_text()
    assert runners[0].stopped


def test_nothing_found_is_0_with_what_it_is_worth(tmp_path: Path) -> None:
    code, lines, _ = hunt(tmp_path, lambda n: _ended(n, 20, result(f"a:{n}")), budget_s=1e6)
    assert code == 3, "the server that is lost in the end proves nothing more"
    worth = next(line for line in lines if "workloads (" in line)
    assert worth.startswith("20 workloads (20 proved something), 640 requests")
    assert "fails with p < 0.139 (95 %)" in worth
    code, lines, _ = hunt(tmp_path / "b", lambda n: result("a:1"), budget_s=0.05)
    assert code == 0
    assert lines[-1] == "NOTHING FOUND"


def test_questions_and_requests_that_identify_the_server_are_told(tmp_path: Path) -> None:
    asked = {"before": 29, "beside": 5, "last": 1, "discovery": 2, "reads": 60}
    _, lines, _ = hunt(
        tmp_path, lambda n: _ended(n, 2, result(f"a:{n}", questions=35 if n == 1 else 0, asked=asked if n == 1 else {}))
    )
    assert lines[1].startswith("workload 1 (drawn): 32 requests (and 35 questions, 2 to identify the server), ")
    assert lines[2].startswith("workload 2 (drawn): 32 requests, ")
    first_row = {"n": 1, "at_s": 1.0, "questions": 3, "asked": {"discovery": 1}}
    last_row = {"n": 2, "at_s": 2.0, "questions": 35, "asked": asked, "failures": [failure()]}
    [found] = collect([from_json(WorkloadRow, first_row), from_json(WorkloadRow, last_row)], tmp_path)
    assert found.after_others == 4 + 37
    assert "first after 5 requests and 41 beside the load)" in found.describe()
    settings = json.loads((tmp_path / "hunt.json").read_text())
    first = settings["identified_with"]["generations"]
    worth = next(line for line in lines if "workloads (" in line)
    assert f"64 requests (and 35 questions, {2 + first} to identify the server), " in worth


def _ended(n: int, most: int, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if n > most:
        raise SlotLostError("gone")
    return answer


def test_workloads_that_prove_nothing_are_no_pass(tmp_path: Path) -> None:
    code, lines, _ = hunt(tmp_path, lambda _: result("a:1", proved=False))
    assert code == 3
    assert len(rows(tmp_path)) == 5, "it ends after five in a row"
    assert lines[-1] == "UNKNOWN: too few workloads proved anything"


def test_hunt_with_few_proofs_is_unknown(tmp_path: Path) -> None:
    for proofs, expected in ((2, 3), (1, 0)):
        folder = tmp_path / str(proofs)
        proved = [n % 3 != 0 if proofs == 1 else n % 3 == 0 for n in range(200)]
        code, lines, _ = hunt(folder, lambda n, p=proved: result("a:1", proved=p[n]), budget_s=0.3)  # type: ignore[misc]
        assert code == expected, lines[-1]


def test_server_that_starts_no_more_ends_the_hunt(tmp_path: Path) -> None:
    def answer(n: int) -> Mapping[str, Any]:
        if n > 4:
            raise LoadchaosError("the server never became healthy")
        return result(f"a:{n}")

    code, lines, _ = hunt(tmp_path, answer)
    assert code == 3
    assert "the hunt ended early: the server never became healthy" in lines


def test_known_failure_is_counted_and_not_kept_again(tmp_path: Path) -> None:
    code, lines, _ = hunt(
        tmp_path, until(6, lambda n: result(f"a:{n}", failures=(failure(),) if n in (2, 4) else ())), findings=2
    )
    assert code == 1
    assert sum("NEW FINDING" in line for line in lines) == 2
    assert any("known: engine_died" in line for line in lines)
    findings = collect(Journal(tmp_path).rows, tmp_path)
    assert [(f.key, f.workloads) for f in findings] == [("engine_died|f.py g", (2, 4)), ("the_end|f.py g", (6,))]


def test_killed_hunt_continues_and_loses_only_what_was_in_flight(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    hunt(whole, until(12, lambda n: result(f"a:{n % 7}")), findings=1)
    hunt(cut, lambda n: _ended(n, 6, result(f"a:{n % 7}")))
    with (cut / WORKLOADS).open("ab") as f:
        f.write(b'{"n":7,"torn')  # SIGKILL inside a write
    before = rows_of_whole_lines(cut)
    assert [r["n"] for r in before] == [1, 2, 3, 4, 5, 6]
    code, lines, runners = hunt(cut, until(12, lambda n: result(f"a:{n % 7}")), findings=1)
    assert code == 1
    assert "continuing after 6 workloads" in lines
    numbers = [r.n for r in Journal(cut).rows]
    assert numbers == list(range(1, 13))
    assert [r.workload for r in Journal(cut).rows] == [r.workload for r in Journal(whole).rows]
    assert Journal(cut).rows[-1].at_s >= before[-1]["at_s"], "the time before counts"
    assert Path(runners[0].orders[0].folder).name == "00007"


def rows_of_whole_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / WORKLOADS).read_bytes().split(b"\n")[1:-1]]


def test_several_servers_share_one_corpus(tmp_path: Path) -> None:
    code, _, runners = hunt(tmp_path, until(20, lambda n: result(f"a:{n}")), parallel=3, findings=1)
    assert code == 1
    numbers = [int(Path(o.folder).name) for r in runners for o in r.orders]
    assert len(numbers) == len(set(numbers)) >= 20
    assert all(len(r.orders) >= 5 for r in runners)
    assert all(r.stopped for r in runners)


def test_interrupt_ends_in_order_and_tells_130(tmp_path: Path) -> None:
    def answer(n: int) -> Mapping[str, Any]:
        if n == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return result(f"a:{n}", stopped=n > 4)

    code, lines, _ = hunt(tmp_path, answer)
    assert code == 130
    assert any("interrupted" in line for line in lines)
    assert len(rows(tmp_path)) in (3, 4)
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("found_in", "start_s", "workloads"), [(50, 0.0, 70), (90, 0.0, 90), (5, 50.0, 60), (5, 100.0, 50)]
)
def test_budget_keeps_time_for_what_was_found(
    tmp_path: Path, found_in: int, start_s: float, workloads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("loadchaos.campaigns.campaign.time.monotonic", lambda: clock[0])

    def answer(n: int) -> Mapping[str, Any]:
        clock[0] += 10 if n else start_s
        return result(f"a:{n}", failures=(failure(),) if n == found_in else ())

    hunt(tmp_path, answer, budget_s=1000.0)
    assert len(rows(tmp_path)) == workloads, "30 % of the budget are kept, or eight starts of the server, at most half"
