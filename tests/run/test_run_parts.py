import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from loadchaos.core import exit_codes
from loadchaos.core.errors import StoppedBySignalError, TargetError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.redact import Redactor
from loadchaos.run.children import Locust
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.run_attacks import RunAttacks
from loadchaos.run.run_errors import RunErrors
from loadchaos.run.run_record import RunRecord


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord(RunFolder(tmp_path), Redactor(), lambda _: None)


def test_run_record_hides_secrets_in_rows(tmp_path: Path) -> None:
    record = RunRecord(RunFolder(tmp_path), Redactor(["hush-hush"]), lambda _: None)
    told: list[Any] = []
    record.listen(told.append)
    rows: list[Any] = [
        {"row": "identity", "at_ns": 1, "named": {"version": "1 hush-hush", "hush-hush": "x"}},
        {"row": "metrics", "at_ns": 1, "replica": "server", "engine": "hush-hush", "values": {"requests_running": 1.0}},
    ]
    record.event(rows[0])
    record.metric(rows[1])
    record.close()
    kept = [record.folder.events.read_text(), record.folder.metrics.read_text()]
    assert "hush-hush" not in f"{told} {kept}"
    assert [text.count("[redacted]") for text in (str(told), *kept)] == [3, 2, 1]


def fail(error: Exception) -> None:
    raise error


def test_run_errors_keep_the_first_error_and_the_traceback_of_a_bug(tmp_path: Path) -> None:
    errors = RunErrors(tmp_path, Redactor(["hush-hush"]))
    assert (errors.exit_reason(), errors.summary(None)) == ({}, None)
    with errors.collect():
        fail(ZeroDivisionError("hush-hush"))
    assert errors.exit_reason()["exit_code"] == exit_codes.INTERNAL_ERROR
    for text in ("first", "second"):
        with errors.collect():
            fail(TargetError(text))
    assert errors.exit_reason() == {"exit_code": TargetError.exit_code, "why": "first"}
    trace = (tmp_path / "loadchaos-error.txt").read_text()
    assert "ZeroDivisionError: [redacted]" in trace
    summary = str(errors.summary("more"))
    assert summary.startswith("first; a bug in loadchaos; please report it")
    assert summary.endswith("; more")


def test_interrupts_shorten_the_timeouts_and_end_a_step() -> None:
    interrupts = Interrupts()
    cancelled: list[bool] = []

    async def step() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(True)

    async def run() -> bool:
        polls: list[int] = []

        def poll() -> None:
            polls.append(1)
            if len(polls) == 2:
                interrupts.receive(signal.SIGINT)

        return await interrupts.wait(step(), poll, lambda: False)

    assert (bool(interrupts), interrupts.timeouts.drain_s) == (False, None)
    assert asyncio.run(run()) is False
    assert cancelled == [True]
    assert (interrupts.first.name, interrupts.exit_code, interrupts.timeouts.drain_s) == ("SIGINT", 130, 1.0)
    interrupts.receive(signal.SIGTERM)
    assert (interrupts.count, interrupts.exit_code, interrupts.timeouts.drain_s) == (2, 130, 0.0)


def test_signals_go_to_the_newest_handler_alone() -> None:
    interrupts = Interrupts()
    seen: list[tuple[str, str]] = []
    with interrupts.handled_by(lambda n: seen.append(("campaign", n.name))):
        with interrupts.handled_by(lambda n: seen.append(("run", n.name))):
            interrupts.receive(signal.SIGHUP)
        interrupts.receive(signal.SIGINT)
    assert seen == [("run", "SIGTERM"), ("campaign", "SIGINT")]
    assert (interrupts.first, interrupts.exit_code, interrupts.count) == (signal.SIGTERM, 143, 2)


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_signal_that_no_step_handles_cancels_the_campaign_in_order(number: signal.Signals, code: int) -> None:
    interrupts, ended = Interrupts(), []
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    async def campaign() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    with pytest.raises(StoppedBySignalError) as stopped:
        interrupts.run(campaign())
    assert (stopped.value.exit_code, ended) == (code, [True])
    assert {n: signal.getsignal(n) for n in before} == before


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
async def test_interrupts_leave_sighup_alone_under_nohup(before: Any) -> None:
    own = signal.signal(signal.SIGHUP, before)
    try:
        with Interrupts().installed():
            found = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, own)
    assert (found is signal.SIG_IGN) == (before is signal.SIG_IGN)


def test_run_attacks_are_undone_once() -> None:
    class Injector:
        stops = 0

        async def stop(self) -> list[str]:
            self.stops += 1
            return ["pause"]

    async def run() -> tuple[list[str], list[str]]:
        attacks.begin_undo()
        return await attacks.undo(), await attacks.undo()

    attacks, injector = RunAttacks(), Injector()
    assert asyncio.run(attacks.undo()) == []
    attacks.prepared(cast("Any", injector))
    assert asyncio.run(run()) == (["pause"], ["pause"])
    assert injector.stops == 1


def test_run_record_passes_rows_to_listeners_except_states(record: RunRecord) -> None:
    rows: list[Any] = []
    record.listen(rows.append)
    record.run("load_begin")
    record.event(
        cast("Any", {"row": "state", "at_ns": 1, "replica": "server", "from": "unknown", "to": "healthy", "why": "x"})
    )
    record.fold({"row": "begin", "step": 3})
    record.close()
    assert [row["row"] for row in rows] == ["run", "begin"]
    assert [row["row"] for row in Tail(record.folder.events).rows()][1:] == ["run", "state"]


@pytest.mark.parametrize(("ended", "says"), [(True, "so loadchaos ended it"), (False, "killed by signal 9")])
def test_load_process_failure_tells_our_end_of_it_from_a_crash(tmp_path: Path, *, ended: bool, says: str) -> None:
    log = tmp_path / "locust.log"
    log.write_text("a table\n")

    async def failure() -> str | None:
        process = Locust(RunFolder(tmp_path), lambda _: None)
        await process.start([sys.executable, "-c", "import time; time.sleep(60)"], {}, log)
        if ended:
            await process.end(0.0)
        else:
            process.kill()
            await process.wait()
        return process.failure()

    text = asyncio.run(failure()) or ""
    assert says in text
    assert ("a table" in text) is not ended
