import json
import signal
from pathlib import Path
from typing import Any

import pytest

from loadchaos.cli.environment import name_variables
from loadchaos.cli.resume import called_again, remaining_duration
from loadchaos.cli.run import run
from loadchaos.core import own_folder
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load.registry import full_registry
from loadchaos.load.worker.worker_plan import WorkerPlan
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.run_plan import ResumePoint, RunPlan
from loadchaos.profile.steps import steps
from loadchaos.run.resume import point
from tests.run.conftest import Start
from tests.warm_command import run_command


def steps_of(folder: Path) -> list[int]:
    rows = (r for path in RunFolder(folder).request_files() for r in Tail(path).rows())
    return sorted(r["step"] for r in rows if r["row"] == "begin")


TEXT = {"name": "text", "payload": {"text": {"tokens": 16}}, "output": {"max": 8}}


def plan_of(part: Profile, found: ResumePoint, workers: int) -> RunPlan:
    data = {
        "profile": part.to_json(),
        "seed": 0,
        "workers": workers,
        "folder": "/x",
        "base_url": "http://127.0.0.1:1",
        "resume": to_json(found),
    }
    return from_json(RunPlan, data)


def profile(*load: dict[str, Any]) -> Profile:
    return from_mapping({"name": "p", "traffic": [TEXT], "load": list(load)}, full_registry())


def interrupted(
    folder: Path,
    phase: int,
    steps: range,
    *,
    lasted_s: float = 1.0,
    why: str | None = None,
    worker: int = 0,
    workers: int = 1,
    before: ResumePoint | None = None,
) -> RunFolder:
    """Rows that a worker left of an interrupted run."""
    folder.mkdir(exist_ok=True)
    own_folder.seal(folder)
    left = RunFolder(folder)
    left.plan.write_text(json.dumps({"workers": workers, "resume": to_json(before)}))
    writer = Writer(left.requests(worker), f"locust-{worker}")
    writer.write({"row": "load", "what": "begin", "at_ns": 0})
    writer.write({"row": "phase", "phase": phase, "round": 0, "what": "begin", "at_ns": 1_000_000_000})
    for step in steps:
        for sent in (f"lc-ab-{step}", f"lc-ab-{step}.1"):  # and one pipelined behind it, which is no step
            writer.write({"row": "begin", "id": sent, "phase": phase, "step": step, "at_ns": 1_000_000_000})
    writer.write({"row": "heartbeat", "at_ns": int((1 + lasted_s) * 1e9)})
    if why is not None:
        writer.write({"row": "load", "what": "end", "why": why, "at_ns": int((1 + lasted_s) * 1e9)})
    return left


def test_resume_open_phase_at_its_due_time(tmp_path: Path) -> None:
    found = point(interrupted(tmp_path, 0, range(30)), profile({"rate": "10/s", "for": "10s"}), 0)
    assert (found.phase, found.step, found.behind_s, found.left) == (0, 30, 3.0, 70)


def test_resume_skips_rows_of_wrong_types(tmp_path: Path) -> None:
    left = interrupted(tmp_path, 0, range(30))
    whole, part = left.requests(0).read_text().splitlines(), profile({"rate": "10/s", "for": "10s"})
    for n, change in (
        (1, {"at_ns": "x"}),
        (2, {"phase": {}}),
        (2, {"at_ns": None}),
        (60, {"step": []}),
        (60, {"row": 0}),
    ):
        lines = [*whole[:n], json.dumps({**json.loads(whole[n]), **change}), *whole[n + 1 :]]
        left.requests(0).write_text("\n".join(lines) + "\n")
        assert point(left, part, 0).step == 30
    left.plan.write_text('{"workers": 1e308}')
    with pytest.raises(OptionError, match=r"plan\.json cannot be read"):
        point(left, part, 0)


def test_resume_closed_phase_has_the_rest_of_its_time(tmp_path: Path) -> None:
    found = point(interrupted(tmp_path, 0, range(7), lasted_s=4.0), profile({"users": 2, "for": "10s"}), 0)
    assert (found.phase, found.step, found.behind_s, found.left) == (0, 7, 4.0, None)


def test_resume_starts_the_phase_after_a_complete_one(tmp_path: Path) -> None:
    both = profile({"users": 2, "requests": 5}, {"users": 2, "requests": 9})
    found = point(interrupted(tmp_path, 0, range(5), why="stopped"), both, 0)
    assert (found.phase, found.step, found.left) == (1, 1_000_000_000, 9)


def test_resume_continues_each_worker_after_its_own_last_step(tmp_path: Path) -> None:
    part = profile({"users": 2, "requests": 20})
    interrupted(tmp_path, 0, range(0, 16, 2), workers=2)
    found = point(interrupted(tmp_path, 0, range(1, 8, 2), worker=1, workers=2), part, 0)
    assert (found.step, found.left) == (9, 8)
    sent = {*range(0, 16, 2), *range(1, 8, 2)}
    for workers in (1, 3):
        drivers = [
            WorkerPlan(plan_of(part, found, workers), Facts("http://x", "http://x", "vllm"), n, {})
            for n in range(workers)
        ]
        steps = sorted(s.index for it in drivers for _, steps in it.phases() for s in steps)
        assert steps == sorted(set(range(20)) - sent), "each of the rest once, however many drive it now"


def test_resume_of_a_resumed_run_repeats_no_request(tmp_path: Path) -> None:
    part = profile({"users": 2, "requests": 20})
    interrupted(tmp_path / "a", 0, range(0, 8, 2), workers=2)
    first = point(interrupted(tmp_path / "a", 0, range(1, 4, 2), worker=1, workers=2), part, 0)
    second = point(interrupted(tmp_path / "b", 0, range(5, 9), before=first), part, 0)
    assert (first.step, second.step, second.left) == (5, 9, 11)


def test_resume_twice_has_the_rest_of_the_rest(tmp_path: Path) -> None:
    part = profile({"users": 2, "for": "10s"})
    first = point(interrupted(tmp_path / "a", 0, range(7), lasted_s=4.0), part, 0)
    second = point(interrupted(tmp_path / "b", 0, range(7, 9), lasted_s=3.0, before=first), part, 0)
    assert (second.step, second.behind_s) == (9, 7.0)


def test_resume_skips_steps_of_an_open_phase_that_were_due_long_ago(tmp_path: Path) -> None:
    interrupted(tmp_path, 0, range(0, 80, 2), workers=2)
    found = point(
        interrupted(tmp_path, 0, range(1, 3), worker=1, workers=2), profile({"rate": "10/s", "for": "10s"}), 0
    )
    assert (found.step, found.behind_s) == (29, 2.9), "5 s before the newest, number 78"


@pytest.mark.parametrize(
    ("steps", "why", "error"), [(range(0), None, "sent no request"), (range(5), "done", "the load is complete")]
)
def test_resume_refuses_a_run_with_nothing_left(tmp_path: Path, steps: range, why: str | None, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        point(interrupted(tmp_path, 0, steps, why=why), profile({"users": 2, "requests": 5}), 0)


@pytest.mark.parametrize(
    ("argv", "text", "error"),
    [
        (["p.yaml", "--header", "x=[redacted]"], "name: p", "--header had a secret"),
        (["p.yaml"], "env: {HF_TOKEN: '[redacted]'}", "the profile had a secret"),
    ],
)
def test_resume_asks_for_secrets_that_are_not_recorded(tmp_path: Path, argv: list[str], text: str, error: str) -> None:
    folder = interrupted(tmp_path, 0, range(3))
    folder.profile.write_text(text)
    Writer(folder.events, "run").write({"row": "run", "what": "begin", "argv": ["loadchaos", "run", *argv]})
    with pytest.raises(OptionError, match=error):
        called_again(run.make_context("run", ["--resume", str(tmp_path)]), tmp_path)
    anew = run.make_context("run", ["q.yaml", "--resume", str(tmp_path), "--header", "x=y"])
    options = called_again(anew, tmp_path)
    assert (options["profile"], options["headers"]) == ("q.yaml", ("x=y",))


def test_resume_takes_what_the_plan_depends_on_only_as_it_was(tmp_path: Path) -> None:
    folder = called(tmp_path, "p.yaml", "-u", "4")
    again = run.make_context("run", ["--resume", str(folder), "-u", "4"])
    assert called_again(again, folder)["users"] is None, "the recorded profile has it"
    with pytest.raises(
        OptionError, match="continues a run with its own options: leave out --max-concurrency, or start"
    ):
        called_again(run.make_context("run", ["--resume", str(folder), "-u", "5"]), folder)


def test_resume_takes_a_missing_secret_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_variables(run)
    folder = called(tmp_path, "p.yaml", "--header", "x=[redacted]", "--model", "m")
    monkeypatch.setenv("LOADCHAOS_RUN_HEADER", "x=y")
    monkeypatch.setenv("LOADCHAOS_RUN_MODEL", "other")
    options = called_again(run.make_context("run", ["--resume", str(folder)]), folder)
    assert (options["headers"], options["model"]) == (("x=y",), "m")


def called(folder: Path, *argv: str, **more: object) -> Path:
    """A run that was called so, and was cut off 5 s after its load began."""
    left = interrupted(folder, 0, range(3), lasted_s=4.0)
    left.profile.write_text("name: p")
    row = {"row": "run", "what": "begin", "argv": ["loadchaos", "run", *argv], **more}
    Writer(left.events, "run").write(row)
    return folder


def test_resume_duration_is_the_rest(tmp_path: Path) -> None:
    found = point(RunFolder(called(tmp_path, "p.yaml")), profile({"users": 2, "for": "60s"}), 0)
    anew = run.make_context("run", ["--resume", str(tmp_path)])
    assert found.loaded_s == 5.0
    assert remaining_duration(anew, tmp_path, 25.0, found.loaded_s) == 20.0
    assert remaining_duration(anew, tmp_path, None, found.loaded_s) is None
    with pytest.raises(OptionError, match="used all of its 25 s"):
        remaining_duration(anew, tmp_path, 25.0, 25.1)
    assert (
        remaining_duration(run.make_context("run", ["--resume", str(tmp_path), "-t", "9s"]), tmp_path, 9.0, 5.0) == 9.0
    )


def test_resume_twice_has_the_first_options_and_the_second_duration(tmp_path: Path) -> None:
    first = called(tmp_path / "a", "p.yaml", "-t", "25s", "--target", "http://127.0.0.1:9", "--seed", "3")
    second = called(tmp_path / "b", "--resume", "a", "--seed", "4", resumes=str(first), duration_s=20.0)
    options = called_again(run.make_context("run", ["--resume", str(second)]), second)
    assert (options["target"], options["seed"], options["duration"]) == ("http://127.0.0.1:9", 4, 20.0)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_resume_continues_a_killed_run(start: Start, processes: int) -> None:
    load: list[dict[str, Any]] = [
        {"rate": "10/s", "law": "poisson", "for": "12s", "max_in_flight": 32},
        {"users": 8, "requests": 600},
    ]
    load = load if processes == 1 else load[1:]  # of an open phase two processes are equally far
    run = start("--seed", "7", "--processes", str(processes), load=load)
    run.loaded(40)
    run.signal(signal.SIGKILL)
    run.process.wait()
    run.all_gone(12)
    first = run.folder
    before = steps_of(first)
    done = run_command("run", "--resume", first, "--no-live", cwd=run.home)
    assert done.returncode == 0, done.stderr
    (second,) = [p for p in run.home.glob("runs/*") if p != first]
    after = steps_of(second)
    assert sorted(before + after) == [s.index for s in steps(profile(*load), 7)], "each step of the plan once"
    begin = next(r for r in Tail(second / "events.jsonl").rows() if r["row"] == "run")
    assert (begin["resumes"], begin["seed"]) == (str(first.resolve()), 7)
    assert begin["terms"]["planned_requests"] == len(after)
