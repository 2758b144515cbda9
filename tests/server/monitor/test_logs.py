import contextlib
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.reader import LogTail
from loadchaos.core.redact import Redactor
from loadchaos.server.monitor import log_follower
from loadchaos.server.monitor.log_follower import FollowedLog, LogFollower
from loadchaos.server.monitor.logs import prove, read_spec
from loadchaos.server.monitor.logs.file import FileSource
from tests.rows import EmittedRows
from tests.server.monitor.conftest import append
from tests.waiting import until


@contextlib.asynccontextmanager
async def following(spec: str, folder: Path, rows: EmittedRows) -> AsyncIterator[Path]:
    follower = LogFollower(FollowedLog(spec, "a", "a"), folder, rows.append, Redactor(["planted-secret"]))
    follower.start()
    try:
        yield folder / "a.log"
    finally:
        await follower.stop()


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_file_source_starts_at_the_present_end(tmp_path: Path, rows: EmittedRows) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("before we came\n")

    async with following(str(log), tmp_path / "logs", rows) as kept:
        append(log, "one\n")
        await rows.until(lambda: text_of(kept) == "one\n")
        append(log, "two planted-")
        append(log, "secret\nhalf")
        await rows.until(lambda: text_of(kept) == "one\ntwo [redacted]\n")
    tail = LogTail(tmp_path / "logs" / "a.log", tmp_path / "logs" / "a.index.jsonl")
    lines = list(tail.rows(final=True))
    assert [line["text"] for line in lines] == ["one", "two [redacted]", "half"]
    times = [at_ns for line in lines if (at_ns := line["at_ns"]) is not None]
    assert len(times) == len(lines)
    assert times == sorted(times)


async def test_file_source_follows_rotation(tmp_path: Path, rows: EmittedRows) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("")

    async with following(str(log), tmp_path / "logs", rows) as kept:
        append(log, "one\n")
        log.rename(tmp_path / "vllm.log.1")
        append(tmp_path / "vllm.log.1", "last of the old\n")
        log.write_text("first of the new\n")
        await rows.until(lambda: "new" in text_of(kept))
        assert text_of(kept) == "one\nlast of the old\nfirst of the new\n"
        assert "rotated" in rows.of("gap", source="log")[0]["why"]
        assert "loss" not in rows.of("gap", source="log")[0]


async def test_file_source_follows_truncation(tmp_path: Path, rows: EmittedRows) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("x" * 1000 + "\n")

    async with following(str(log), tmp_path / "logs", rows) as kept:
        append(log, "one\n")
        await rows.until(lambda: text_of(kept) == "one\n")
        log.write_text("again\n")
        await rows.until(lambda: text_of(kept) == "one\nagain\n")
        gap = rows.of("gap", source="log")[0]
        assert "truncated" in gap["why"]
        assert gap["loss"] == "possible"


@pytest.mark.parametrize("hole", [False, True], ids=["appended", "written on at its old place"])
def test_file_source_detects_truncation_after_growth(hole: bool, tmp_path: Path) -> None:
    """As logrotate's copytruncate does it under a server that writes much."""
    log = tmp_path / "vllm.log"
    log.write_text("before we came\n" * 10)
    source, fed, gaps = FileSource(log), list[bytes](), list[tuple[float, str, str | None]]()
    turns = iter(["one\n", "two\n"])

    class Turns(threading.Event):
        """A stop after two polls; the file is written in each."""

        def wait(self, timeout: float | None = None) -> bool:
            text = next(turns, None)
            if text is None:
                self.set()
            elif text == "one\n":
                append(log, text)
            else:
                old = log.stat().st_size
                os.truncate(log, 0)
                with log.open("r+b") as f:
                    f.seek(old + 4096 if hole else 0)
                    f.write(b"new\n" * (old // 2))
            return self.is_set()

    source.follow(fed.append, lambda seconds, why, loss: gaps.append((seconds, why, loss)), Turns())
    text = b"".join(fed)
    assert text.startswith(b"one\n")
    assert text.removeprefix(b"one\n").strip(b"\0") == b"new\n" * (154 // 2)
    assert len(text) < 8192
    assert [("truncated" in why, loss) for _, why, loss in gaps] == [(True, "possible")]


async def test_file_source_waits_for_a_missing_file(tmp_path: Path, rows: EmittedRows) -> None:
    log = tmp_path / "later.log"

    async with following(str(log), tmp_path / "logs", rows) as kept:
        await rows.until(lambda: rows.of("gap", source="log"))
        log.write_text("from the start\n")
        await rows.until(lambda: text_of(kept) == "from the start\n")


async def test_file_source_reads_to_the_end_at_stop(tmp_path: Path, rows: EmittedRows) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("")

    async with following(str(log), tmp_path / "logs", rows):
        append(log, "last words")
    assert text_of(tmp_path / "logs" / "a.log") == "last words"


async def test_log_without_end_is_kept_in_part_and_says_so(
    tmp_path: Path, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_MOST_LINES", 100_000)
    async with following("cmd:yes", tmp_path / "logs", rows) as kept:
        await rows.until(lambda: rows.of("gap"))
    assert "more than 10,000 lines a second" in rows.of("gap")[0]["why"]
    assert rows.of("gap")[0]["loss"] == "certain"
    assert text_of(kept).count("\n") < 200_000


async def test_command_source_restarts_its_command(tmp_path: Path, rows: EmittedRows) -> None:
    async with following("cmd:echo hello; echo planted-secret >&2; exit 3", tmp_path / "logs", rows) as kept:
        await rows.until(lambda: text_of(kept).count("hello") >= 2)
        assert "planted" not in text_of(kept)
        assert "sh ended with code 3" in rows.of("gap", source="log")[0]["why"]


async def test_command_source_stops_a_silent_command(tmp_path: Path, rows: EmittedRows) -> None:
    async with following("cmd:echo hello; sleep 1000", tmp_path / "logs", rows) as kept:
        await rows.until(lambda: text_of(kept) == "hello\n")
    assert not rows.of("gap")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            "cmd:echo 'Cannot connect to the Docker daemon' >&2; exit 1",
            "ended with code 1: Cannot connect to the Docker",
        ),
        ("cmd:echo hello", "ended with code 0: hello; a command that stays and follows the log was expected"),
        ("cmd:tail -F {tmp}/none", "tail: cannot open"),
        ("cmd:while true; do cat {tmp}/none; sleep 0.1; done", "No such file or directory"),
        ("{tmp}", "it is a folder"),
        ("{tmp}/none.log", "no such file"),
        ("{tmp}/pipe", "it is no regular file"),
        ("/proc/self/mem", "a file of lines was expected"),
        ("/dev/zero", "for a pipe or a device give cmd:"),
        ("cmd:echo 'INFO ready'; sleep 1000", ""),
        ("cmd:tail -n 0 -F /etc/passwd", ""),
        ("cmd:sleep 1000", ""),
    ],
)
def test_prove_tells_why_a_log_cannot_be_followed(spec: str, why: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = prove(spec.format(tmp=tmp_path))
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize("spec", ["docker:a", "k8s:a/b", "journal:a", "ssh:a:/b"])
def test_prove_quotes_the_command_of_each_place(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docker", "kubectl", "journalctl", "ssh"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'this host is away' >&2\nexit 5\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "ended with code 5: this host is away" in prove(spec)


async def test_command_source_complaints_of_a_command_are_no_lines_of_the_log(
    tmp_path: Path, rows: EmittedRows
) -> None:
    complaint = "Cannot connect to the Docker daemon at unix:///x. Is it running?"
    async with following(f"cmd:echo {complaint!r}; exit 1", tmp_path / "logs", rows) as kept:
        await rows.until(lambda: rows.of("gap", source="log"))
        assert text_of(kept) == ""
    assert complaint in rows.of("gap", source="log")[0]["why"]
    assert rows.of("gap", source="log")[-1]["loss"] == "possible"


async def test_command_source_complaint_before_lines_is_kept(tmp_path: Path, rows: EmittedRows) -> None:
    async with following("cmd:echo 'tail: waiting'; echo INFO; sleep 1000", tmp_path / "logs", rows) as kept:
        await rows.until(lambda: text_of(kept) == "tail: waiting\nINFO\n")


STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*"
exec sleep 1000
"""


@pytest.mark.parametrize(
    ("spec", "first_line"),
    [
        ("docker:vllm-1", "docker logs --follow --tail 0 vllm-1"),
        ("k8s:ml/vllm-0", "kubectl logs -n ml vllm-0 --follow --tail=0"),
        ("k8s:ml/vllm-0/server", "kubectl logs -n ml vllm-0 -c server --follow --tail=0"),
        ("journal:vllm.service", "journalctl --unit vllm.service --output cat --no-pager --follow --lines 0"),
        ("ssh:me@host:/var/log/it's.log", "ssh -o BatchMode=yes -o ServerAliveInterval=5 me@host tail -n 0 -F "),
    ],
)
async def test_command_source_runs_the_command_of_each_place(
    spec: str, first_line: str, tmp_path: Path, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker", "kubectl", "journalctl", "ssh"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(STAND_IN)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    async with following(spec, tmp_path / "logs", rows) as kept:
        await rows.until(lambda: text_of(kept).startswith(first_line))


@pytest.mark.parametrize(
    ("spec", "read"),
    [
        ("/var/log/x.log", ("file", "/var/log/x.log")),
        ("/var/log/a:b.log", ("file", "/var/log/a:b.log")),
        ("docker:a", ("docker", "a")),
        ("cmd:tail -F 'a b'", ("cmd", "tail -F 'a b'")),
    ],
)
def test_read_spec_splits_kind_and_place(spec: str, read: tuple[str, str]) -> None:
    assert read_spec(spec) == read


def test_read_spec_suggests_the_nearest_kind() -> None:
    with pytest.raises(OptionError, match="did you mean docker:"):
        read_spec("dokker:vllm")


@pytest.mark.parametrize("spec", ["", "docker:", "k8s:pod", "ssh:host", "ssh:-oProxyCommand=x:/y", "journal:", "cmd: "])
def test_read_spec_says_what_was_expected(spec: str) -> None:
    with pytest.raises(OptionError, match="--server-log"):
        read_spec(spec)


@pytest.mark.parametrize("call", ["follow(lambda data: None, lambda *gap: None, threading.Event())", "prove()"])
def test_silent_command_ends_when_its_reader_is_killed(call: str, tmp_path: Path) -> None:
    code = (
        "import threading\nfrom loadchaos.server.monitor.logs.command import CommandSource\n"
        f"source = CommandSource(lambda _: ['sh', '-c', 'echo $$ > {tmp_path}/pid; sleep 1000; true'])\n"
        f"source.{call}"
    )
    reader = subprocess.Popen([sys.executable, "-c", code])
    file = tmp_path / "pid"
    pid = int(until(lambda: text_of(file).strip(), "the command"))
    children = until(lambda: psutil.Process(pid).children(), "its child")
    time.sleep(0.3)  # the guard begins after the command
    reader.kill()
    reader.wait()
    until(lambda: not psutil.pid_exists(pid) and not any(c.is_running() for c in children), "the end of both", 10)
