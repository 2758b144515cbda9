import asyncio
import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader, Tail
from loadchaos.core.ledger.writer import Writer
from loadchaos.report.html import page as html
from loadchaos.run import finalize, follower
from loadchaos.run.finalize import conclude
from loadchaos.run.follower import FindingsFile, FollowerOptions, follow
from loadchaos.run.follower_thread import FollowerThread
from tests.report.made_up_run import write_run
from tests.waiting import until, until_async

Start = Callable[..., subprocess.Popen[Any]]
COMMAND = [sys.executable, "-m", "loadchaos.run.follower"]


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """Made-up run of 40 s in which the server dies at 30 s."""
    return write_run(tmp_path / "run")


def findings(folder: RunFolder) -> list[dict[str, Any]]:
    return [{**row} for row in Tail(folder.findings).rows() if row["row"] != "header"]


class Growing:
    """Growing run: rows of a finished one, written step by step."""

    def __init__(self, source: RunFolder, folder: RunFolder) -> None:
        folder.path.mkdir()
        self.folder = folder
        self.rows: list[dict[str, Any]] = [{**row} for row in Reader(source).new(final=True)]
        self._writers: dict[str, Writer] = {}
        self._log = source.server_log.read_bytes().splitlines(keepends=True)
        self._offset = 0

    def write(self, share: float) -> None:
        """Write the next rows, up to this share of all."""
        upto = round(len(self.rows) * share)
        todo, self.rows[:upto] = self.rows[:upto], [{"done": True}] * upto
        for row in (r for r in todo if "done" not in r and r["row"] != "header"):
            if row["row"] == "log":
                self._line(row)
                continue
            name = row["file"]
            if name not in self._writers:
                self._writers[name] = Writer(self.folder.path / name, "test")
            self._writers[name].write({k: v for k, v in row.items() if k != "file"})

    def _line(self, row: dict[str, Any]) -> None:
        if "index" not in self._writers:
            self._writers["index"] = Writer(self.folder.server_index, "test")
        line = self._log[row["line"] - 1]
        index = {
            "row": "lines",
            "at_ns": row["at_ns"],
            "offset": self._offset,
            "bytes": len(line),
            "source": "server.log",
        }
        self._writers["index"].write(index)
        with self.folder.server_log.open("ab") as log:
            log.write(line)
        self._offset += len(line)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


@pytest.fixture
def growing(run_folder: RunFolder, tmp_path: Path) -> Iterator[Growing]:
    run = Growing(run_folder, RunFolder(tmp_path / "growing"))
    yield run
    run.close()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start_follower(folder: RunFolder, *options: str, **kwargs: Any) -> subprocess.Popen[bytes]:
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        started.append(subprocess.Popen([*COMMAND, str(folder.path), *options], **{**streams, **kwargs}))
        return started[-1]

    yield start_follower
    for process in started:
        process.kill()
        process.wait()


def test_follower_reads_a_finished_run_and_ends(run_folder: RunFolder) -> None:
    stream = io.StringIO()
    assert follow(run_folder, FollowerOptions(stream=stream)) == 0
    assert "engine death: encoder_cache_miss" in stream.getvalue()
    assert [p.name for p in run_folder.incidents.iterdir()] == ["001-encoder_cache_miss"]
    found = findings(run_folder)
    assert {r["id"] for r in found if r["row"] == "failure"} == {"encoder_cache_miss"}
    assert [r["what"] for r in found if r["row"] == "incident"] == ["open", "close"]
    last = [r for r in found if r["row"] == "failure"][-1]
    assert last["final"] and last["lost_requests"] == 78


def test_follower_adds_nothing_the_second_time(run_folder: RunFolder) -> None:
    follow(run_folder, FollowerOptions(live=False))
    before = findings(run_folder)
    follow(run_folder, FollowerOptions(live=False))
    assert findings(run_folder) == before
    assert len(list(run_folder.incidents.iterdir())) == 1


@pytest.mark.slow
def test_follower_of_a_growing_run_equals_the_ledger(growing: Growing, start: Start) -> None:
    growing.write(0.3)
    process = start(growing.folder, "--exporter-port", "0", "--no-live")

    def port() -> int | None:
        rows = findings(growing.folder) if growing.folder.findings.exists() else []
        return next((r["port"] for r in rows if r["row"] == "exporter"), None)

    def total() -> int:
        page = urllib.request.urlopen(f"http://127.0.0.1:{until(port)}/metrics", timeout=10).read().decode()
        lines = [line for line in page.splitlines() if line.startswith("loadchaos_requests_total{")]
        return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines))

    def in_ledger() -> int:
        counts = Counter[str]()
        for row in Tail(growing.folder.requests(0)).rows():
            counts[row["row"]] += row["count"] if row["row"] == "missed" else 1
        return counts["end"] + counts["missed"]

    until(lambda: total() == in_ledger())
    growing.write(0.95)
    until(lambda: total() == in_ledger())
    until(
        lambda: growing.folder.incidents.is_dir() and any(growing.folder.incidents.glob("001-encoder_cache_miss/*.md"))
    )
    assert process.poll() is None
    growing.write(1.0)
    assert process.wait(60) == 0


@pytest.mark.slow
def test_follower_writes_nothing_twice_after_a_kill(growing: Growing, start: Start) -> None:
    growing.write(0.93)
    first = start(growing.folder, "--no-live")
    until(lambda: growing.folder.findings.exists() and any(r["row"] == "incident" for r in findings(growing.folder)))
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start(growing.folder, "--no-live")
    growing.write(1.0)
    assert second.wait(30) == 0
    rows = [r for r in findings(growing.folder) if r["row"] == "incident"]
    assert Counter((r["n"], r["what"]) for r in rows) == {(1, "open"): 1, (1, "close"): 1}
    assert [p.name for p in growing.folder.incidents.iterdir()] == ["001-encoder_cache_miss"]


def test_follower_writes_only_if_it_is_the_only_one(run_folder: RunFolder) -> None:
    holder = FindingsFile(run_folder)
    try:
        stream = io.StringIO()
        follow(run_folder, FollowerOptions(stream=stream))
        assert "engine death" in stream.getvalue()
        assert findings(run_folder) == []
        assert not run_folder.incidents.exists()
    finally:
        holder.close()
    follow(run_folder, FollowerOptions(live=False))
    assert findings(run_folder)


def test_follower_ends_in_order_on_sigterm(growing: Growing, start: Start) -> None:
    growing.write(0.5)
    process = start(growing.folder, "--no-live")
    until(lambda: growing.folder.findings.exists() and growing.folder.findings.read_bytes())
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_follower_ends_when_the_writer_is_gone(growing: Growing, start: Start) -> None:
    growing.write(0.5)
    growing.close()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lines = growing.folder.events.read_bytes().splitlines(keepends=True)
    header = {**orjson.loads(lines[0]), "pid": dead.pid}
    growing.folder.events.write_bytes(b"".join([orjson.dumps(header) + b"\n", *lines[1:]]))
    assert start(growing.folder, "--no-live").wait(30) == 0
    growing._writers.clear()


def test_follower_continues_without_metrics_if_the_port_is_in_use(
    run_folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert follow(run_folder, FollowerOptions(exporter_port=taken.getsockname()[1], live=False)) == 0
    assert "--exporter-port" in capsys.readouterr().err
    assert any(r["row"] == "failure" for r in findings(run_folder))


def test_follower_is_not_blocked_by_a_stopped_terminal(run_folder: RunFolder, start: Start) -> None:
    leader, terminal = pty.openpty()
    try:
        # Nobody reads the leader, and its buffer is full: the first write to the terminal blocks.
        os.set_blocking(terminal, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(terminal, b"x" * 4096)
        os.set_blocking(terminal, True)
        process = start(run_folder, stderr=terminal, env={**os.environ, "TERM": "xterm"})
        assert process.wait(60) == 0
        assert any(r["row"] == "failure" for r in findings(run_folder))
    finally:
        os.close(terminal)
        os.close(leader)


def test_follower_refuses_a_missing_folder(start: Start, tmp_path: Path) -> None:
    process = start(RunFolder(tmp_path / "none"), stderr=subprocess.PIPE)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"is not a folder" in output


# -- the verdict at the end ----------------------------------------------------------------------------------------


def test_conclude_writes_all_files_and_returns_the_verdict(run_folder: RunFolder) -> None:
    verdict = conclude(run_folder)
    assert verdict.verdict == "fail"
    assert json.loads(run_folder.verdict.read_text()) == verdict.to_json()
    assert verdict.notes == ()
    assert run_folder.report_html.exists() and run_folder.junit.exists()
    home = run_folder.path / "incidents" / str(verdict.failures[0].incident)
    assert {p.name for p in home.iterdir()} == {"incident.json", "incident.md", "server.log.excerpt"}


def test_conclude_twice_gives_the_same_files(run_folder: RunFolder) -> None:
    def files() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in run_folder.path.rglob("*") if p.is_file()}

    conclude(run_folder)
    before = files()
    conclude(run_folder)
    assert files() == before


def test_verdict_names_the_incidents_of_the_follower(run_folder: RunFolder) -> None:
    follow(run_folder, FollowerOptions(live=False))
    verdict = conclude(run_folder)
    assert {p.name for p in run_folder.incidents.iterdir()} == {i.folder for i in verdict.incidents}


def test_conclude_of_a_killed_run_is_not_a_pass(growing: Growing) -> None:
    growing.write(0.4)
    verdict = conclude(growing.folder)
    assert verdict.verdict == "unknown"
    assert verdict.exit_code == 3
    assert growing.folder.report_html.exists()


def test_conclude_writes_the_verdict_if_the_page_fails(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug of ours")

    monkeypatch.setattr(html, "write", broken)
    verdict = conclude(run_folder)
    assert verdict.verdict == "fail"
    assert verdict.notes == ("report.html could not be made: KeyError: 'a bug of ours'",)
    assert run_folder.verdict.exists() and run_folder.junit.exists()


def test_pass_that_cannot_be_written_is_unknown(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.verdict.mkdir()
    verdict = finalize._written(folder, Verdict.from_json({"verdict": "pass", "exit_code": 0}))
    assert (verdict.verdict, verdict.exit_code) == ("unknown", LedgerError.exit_code)
    assert [(c.name, c.verdict) for c in verdict.checks] == [("written", "unknown")]


def test_conclude_reports_a_fail_that_cannot_be_written(run_folder: RunFolder) -> None:
    run_folder.verdict.mkdir()
    verdict = conclude(run_folder)
    assert verdict.exit_code == 1
    assert "verdict.json could not be written" in verdict.notes[0]


def test_conclude_refuses_a_folder_without_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not a run folder"):
        conclude(RunFolder(tmp_path))


async def test_follower_in_a_thread_looks_when_it_is_woken_and_ends_with_the_run(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_WOKEN_POLL_S", 60.0)
    thread = FollowerThread(growing.folder)
    growing.write(0.5)
    await thread.begin(None, {}, live=False, cockpit=False)
    await until_async(lambda: growing.folder.findings.exists())
    growing.write(0.9)
    thread.fold({"row": "probe", "ok": True})
    await asyncio.sleep(0.3)
    assert findings(growing.folder) == [], "routine does not wake it"
    thread.fold({"row": "probe", "ok": False})
    await until_async(lambda: "incident" in {row["row"] for row in findings(growing.folder)})
    growing.write(1.0)
    thread.fold({"row": "run", "what": "end"})
    await until_async(lambda: thread._thread is not None and not thread._thread.is_alive())
    await thread.finish(1.0)
    assert thread.exit_notice() is None


async def test_failure_of_a_follower_in_a_thread_is_told_once(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower.Follower, "run", lambda _: 1 / 0)
    thread = FollowerThread(growing.folder)
    await thread.begin(None, {}, live=False, cockpit=False)
    await until_async(lambda: bool(thread._failure))
    notice = thread.exit_notice()
    assert notice is not None and "ZeroDivisionError" in notice
    assert thread.exit_notice() is None
    await thread.finish(1.0)
