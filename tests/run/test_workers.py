"""Remote workers: run --master with real `loadchaos worker` processes."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.run.conftest import Row, Start, StartWorker

HOUR = 3_600_000_000_000


def with_a_clock_of_its_own(hours: int) -> tuple[str, ...]:
    """Prefix for a time namespace with another clock, where permitted."""
    unshare = shutil.which("unshare")
    argv = (unshare or "unshare", "-T", "--monotonic", str(hours * 3600))
    if unshare is None or subprocess.run([*argv, "true"], capture_output=True, check=False).returncode:
        return ()
    return argv


def test_workers_share_the_load_and_the_run_has_all_their_rows(
    start: Start, worker: StartWorker, unused_port: int
) -> None:
    ahead = with_a_clock_of_its_own(3)
    workers = [worker(unused_port), worker(unused_port, *ahead)]
    run = start("--master", "--expect-workers", "2", "--master-bind-port", str(unused_port))
    assert run.ends(100) == 0, run.output
    assert [w.process.wait(60) for w in workers] == [0, 0], [w.output for w in workers]
    assert run.verdict()["outcomes"] == {"ok": 20}
    for it in workers:
        assert it.rows().read_bytes() == (run.folder / it.rows().name).read_bytes()
    steps = [{r["step"] for r in run.rows(f"requests-{n}.jsonl", row="begin")} for n in (0, 1)]
    assert steps == [set(range(0, 20, 2)), set(range(1, 20, 2))]
    begin_ns, end_ns = (run.rows(row="run", what=w)[0]["at_ns"] for w in ("load_begin", "load_end"))
    assert all(begin_ns - 10**9 < r["at_ns"] < end_ns for r in run.rows("requests-*.jsonl", row="begin"))
    offsets = sorted(abs(r["offset_ns"]) for r in run.rows("requests-*.jsonl", row="clock"))
    assert offsets[0] < 10**9
    assert not ahead or abs(offsets[1] - 3 * HOUR) < 10**9


@pytest.mark.slow
def test_worker_of_another_version_is_refused(
    start: Start, worker: StartWorker, unused_port: int, tmp_path: Path
) -> None:
    old = tmp_path / "old" / "loadchaos"
    shutil.copytree(Path(__file__).parents[2] / "loadchaos", old, ignore=shutil.ignore_patterns("__pycache__"))
    init = old / "core" / "version.py"
    init.write_text(re.sub(r'__version__ = ".*"', '__version__ = "0.0.9"', init.read_text()))
    run = start("--master", "--expect-workers", "1", "--master-bind-port", str(unused_port))
    stranger = worker(unused_port, env={"PYTHONPATH": str(old.parent)})
    assert stranger.process.wait(60) == 2, stranger.output
    assert re.search(r"refused: the master runs loadchaos \S+, this worker loadchaos 0\.0\.9", stranger.output)
    worker(unused_port)
    assert run.ends() == 0, run.output
    assert "was refused" in run.check("workers")["actual"]


@pytest.mark.slow
def test_worker_killed_loses_its_last_second_and_its_share(start: Start, worker: StartWorker, unused_port: int) -> None:
    workers = [worker(unused_port) for _ in range(3)]
    load = [{"rate": "30/s", "law": "constant", "for": "12s", "max_in_flight": 64}]
    run = start("--master", "--expect-workers", "3", "--master-bind-port", str(unused_port), load=load)
    run.wait_for("requests-1.jsonl", 30, row="end")
    victim = next(w for w in workers if w.rows().name == "requests-1.jsonl")
    os.kill(victim.load_process(), signal.SIGKILL)
    assert run.ends(100) == 3
    assert run.verdict()["verdict"] == "unknown"
    assert sum(run.verdict()["outcomes"].values()) == 360
    assert run.verdict()["outcomes"]["missed"] > 0
    for it in workers:
        kept, own = (run.folder / it.rows().name).read_bytes(), it.rows().read_bytes()
        assert own.startswith(kept)
        lost = [json.loads(line)["at_ns"] for line in own[len(kept) :].splitlines()]
        assert (it is victim) or not lost
        assert not lost or max(lost) - min(lost) < 2 * 10**9
    assert "was lost" in run.check("workers")["actual"]


@pytest.mark.slow
def test_worker_stopped_is_lost_and_returns_with_all_rows(start: Start, worker: StartWorker, unused_port: int) -> None:
    workers = [worker(unused_port) for _ in range(2)]
    load = [{"rate": "20/s", "law": "constant", "for": "20s", "max_in_flight": 64}]
    run = start("--master", "--expect-workers", "2", "--master-bind-port", str(unused_port), load=load)
    run.wait_for("requests-0.jsonl", 20, row="end")
    victim = next(w for w in workers if w.rows().name == "requests-0.jsonl").load_process()
    os.kill(victim, signal.SIGSTOP)
    run.wait_for("requests-master.jsonl", what="lost")
    os.kill(victim, signal.SIGCONT)
    assert run.ends(100) in (0, 1, 3)
    assert run.rows("requests-master.jsonl", what="back")
    for it in workers:
        assert it.rows().read_bytes() == (run.folder / it.rows().name).read_bytes()
    outcomes = run.verdict()["outcomes"]
    assert sum(outcomes.values()) == 400
    assert not run.rows("requests-master.jsonl", row="missed")


@pytest.mark.slow
def test_workers_end_when_their_master_is_killed(
    start: Start, worker: StartWorker, unused_port: int, for_long: Row
) -> None:
    it = worker(unused_port)
    run = start("--master", "--expect-workers", "1", "--master-bind-port", str(unused_port), **for_long)
    run.loaded()
    run.signal(signal.SIGKILL, "locust")
    assert run.ends(100) == 3
    assert run.verdict()["verdict"] == "unknown"
    assert it.process.wait(60) == 3
    assert "no message from the master" in it.output
    last = json.loads(it.rows().read_bytes().splitlines()[-1])
    assert (last["row"], last["what"]) == ("load", "end")


@pytest.mark.slow
def test_ctrl_c_ends_the_load_of_all_workers_in_order(
    start: Start, worker: StartWorker, unused_port: int, for_long: Row
) -> None:
    workers = [worker(unused_port) for _ in range(2)]
    run = start("--master", "--expect-workers", "2", "--master-bind-port", str(unused_port), **for_long)
    run.loaded()
    run.signal(signal.SIGINT)
    assert run.ends() == 130
    assert [w.process.wait(60) for w in workers] == [0, 0], [w.output for w in workers]
    for it in workers:
        assert it.rows().read_bytes() == (run.folder / it.rows().name).read_bytes()


@pytest.mark.slow
def test_api_key_must_be_set_on_each_worker(start: Start, worker: StartWorker, unused_port: int) -> None:
    env = {"THE_KEY": "sk-very-secret"}
    args = ("--master", "--expect-workers", "1", "--master-bind-port", str(unused_port), "--wait-workers", "4s")
    run = start(*args, "--api-key-env", "THE_KEY", env=env)
    without = worker(unused_port)
    assert without.process.wait(60) == 2
    assert "THE_KEY, but that variable is not set here" in without.output
    run.ends()
    refused = start(*args, "--header", "X-Token=hush-hush")
    assert refused.process.wait(60) == 2
    assert "the value would be sent to the workers unencrypted" in refused.output
