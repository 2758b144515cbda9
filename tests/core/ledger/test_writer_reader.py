import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import LogTail, Reader, Tail
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.rows import GapRow, LogRow, at_ns_of
from loadchaos.core.ledger.writer import Writer

TMP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.text(min_size=1), JSON, min_size=1, max_size=4), max_size=8)


def of(tail: Tail) -> list[dict[str, Any]]:
    """Rows but the header. A reader gives one that was written without a kind an empty one, which is left out."""
    rows = (row for row in tail.rows() if row["row"] != "header")
    return [{key: value for key, value in row.items() if (key, value) != ("row", "")} for row in rows]


@TMP
@given(rows=ROWS)
def test_tail_reads_rows_in_the_order_written(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "a.jsonl"
    path.unlink(missing_ok=True)
    writer = Writer(path, "test")
    for row in rows:
        writer.write(row)
    writer.close()
    tail = Tail(path)
    assert of(tail) == [row for row in rows if row.get("row") != "header"]
    assert (tail.bad, tail.torn) == (0, False)


@TMP
@given(rows=ROWS, seed=st.integers(0, 2**32))
def test_tail_gives_each_row_once_of_a_file_cut_anywhere(tmp_path: Path, rows: list[dict[str, Any]], seed: int) -> None:
    path, rng = tmp_path / "b.jsonl", random.Random(seed)
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    tail, got, at = Tail(path), [], 0
    path.write_bytes(b"")
    while at < len(data):
        step = rng.randint(1, 40)
        with path.open("ab") as f:
            f.write(data[at : at + step])
        at += step
        got += of(tail)
    assert got == rows
    assert tail.bad == 0


def test_tail_resumes_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2}\n{"n":3}\n{"n":')
    tail = Tail(path)
    assert dict(next(tail.rows())) == {"row": "", "n": 1}
    assert of(tail) == [{"n": 2}, {"n": 3}]
    assert tail.torn


def test_tail_skips_and_counts_lines_that_are_not_rows(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":\n[1]\n"x"\n\n\xff\xfe\n{"n":2}\n')
    tail = Tail(path)
    assert of(tail) == [{"n": 1}, {"n": 2}]
    assert tail.bad == 4


def test_tail_of_a_missing_file_is_empty(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "later.jsonl")
    assert list(tail.rows()) == []
    (tmp_path / "later.jsonl").write_bytes(b'{"n":1}\n')
    assert of(tail) == [{"n": 1}]


def test_writer_ends_torn_row_of_a_killed_predecessor(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2,"cut')
    writer = Writer(path, "second")
    writer.write({"n": 3})
    writer.close()
    tail = Tail(path)
    assert [r.get("n", r.get("row")) for r in tail.rows()] == [1, "header", 3]
    assert tail.bad == 1


def test_writer_raises_on_short_write_and_ends_the_torn_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.jsonl"
    writer = Writer(path, "test")
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr("loadchaos.core.ledger.writer.os.write", lambda fd, data: real(fd, data[:7]))
        with pytest.raises(LedgerError, match="only 7 of"):
            writer.write({"lost": True, "why": "the disk is full"})
    writer.write({"n": 1})
    writer.close()
    assert writer.lost == 1
    tail = Tail(path)
    assert of(tail) == [{"n": 1}]
    assert tail.bad == 1


def test_writer_raises_ledger_error_on_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(LedgerError, match="No space left"):
        Writer(Path("/dev/full"), "test")


def test_writer_raises_ledger_error_without_folder(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be written"):
        Writer(tmp_path / "no" / "x.jsonl", "test")


def test_writer_keeps_row_with_invalid_utf8(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "g.jsonl", "test")
    writer.write({"name": os.fsdecode(b"py\xff"), "path": tmp_path})
    writer.close()
    (row,) = of(Tail(tmp_path / "g.jsonl"))
    assert row == {"name": "py?", "path": str(tmp_path)}


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from loadchaos.core.ledger.writer import Writer
writer = Writer(Path(sys.argv[1]), "victim")
n = 0
while True:
    writer.write({"row": "n", "n": n, "filler": "x" * (n * 37 % 3000)})
    n += 1
    if n == 50:
        print("go", flush=True)
"""


@pytest.mark.slow
def test_writer_killed_twenty_times_loses_no_complete_row(tmp_path: Path) -> None:
    path, rng = tmp_path / "requests-0.jsonl", random.Random(7)
    for _ in range(20):
        child = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        while path.stat().st_size % 97 != rng.randrange(97) and rng.random() > 0.01:
            pass  # a moment by chance
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    runs: list[list[int]] = []
    tail = Tail(path)
    row: Any  # of a test alone
    for row in tail.rows():
        if row["row"] == "header":
            runs.append([])
        else:
            runs[-1].append(row["n"])
    assert len(runs) == 20
    for numbers in runs:
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= 50
    assert tail.bad <= 20


# ---- logs ----


def written(tmp_path: Path, pieces: list[bytes], *, index: bool = True) -> LogTail:
    log, rows, offset = tmp_path / "server.log", tmp_path / "server.index.jsonl", 0
    rows.unlink(missing_ok=True)
    for n, piece in enumerate(pieces):
        if index:
            with rows.open("a") as f:
                f.write(
                    json.dumps(
                        {"row": "lines", "at_ns": 100 + n, "offset": offset, "bytes": len(piece), "source": "server"}
                    )
                    + "\n"
                )
        offset += len(piece)
    log.write_bytes(b"".join(pieces))
    return LogTail(log, rows)


def test_log_tail_gives_line_the_time_of_its_piece(tmp_path: Path) -> None:
    tail = written(tmp_path, [b"one\ntw", b"o\nthr", b"ee\r\nfour"])
    assert [(r["line"], r["text"], r["at_ns"]) for r in tail.rows()] == [
        (1, "one", 100),
        (2, "two", 100),
        (3, "three", 101),
    ]
    assert [(r["line"], r["text"], r["at_ns"]) for r in tail.rows(final=True)] == [(4, "four", 102)]


@TMP
@given(
    lines=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=12), seed=st.integers(0, 2**32)
)
def test_log_tail_gives_each_line_of_a_growing_log_once(tmp_path: Path, lines: list[bytes], seed: int) -> None:
    rng, data, at = random.Random(seed), b"".join(x + b"\n" for x in lines), 0
    log, rows = tmp_path / "g.log", tmp_path / "g.index.jsonl"
    log.write_bytes(b"")
    rows.write_bytes(b"")
    tail, texts, times = LogTail(log, rows), [], list[Any]()
    while at < len(data):
        piece = data[at : at + rng.randint(1, 9)]
        with rows.open("a") as f:
            f.write(json.dumps({"row": "lines", "at_ns": at, "offset": at, "bytes": len(piece)}) + "\n")
        with log.open("ab") as f:
            f.write(piece)
        at += len(piece)
        for row in some(tail, rng):
            texts.append(row["text"])
            times.append(row["at_ns"])
    for row in tail.rows(final=True):
        texts.append(row["text"])
        times.append(row["at_ns"])
    assert texts == [x.decode("utf-8", "replace").rstrip("\r") for x in lines]
    assert times == sorted(times)


def some(tail: LogTail, rng: random.Random) -> Iterator[LogRow]:
    for row in tail.rows():
        yield row
        if rng.random() < 0.2:
            return


def test_log_tail_reads_log_without_index(tmp_path: Path) -> None:
    tail = written(tmp_path, [b"one\n"], index=False)
    assert [(r["text"], r["at_ns"]) for r in tail.rows()] == [("one", None)]


# ---- the folder ----


def put(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("a") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def test_reader_merges_files_by_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    put(folder.events, {"row": "probe", "at_ns": 10}, {"row": "probe", "at_ns": 30})
    put(folder.requests(0), {"row": "header", "mono_ns": 5}, {"row": "begin", "at_ns": 20})
    put(folder.requests(1), {"row": "end", "at_ns": 15})
    put(folder.metrics, {"row": "metrics", "at_ns": 25})
    put(folder.server_index, {"row": "lines", "at_ns": 22, "offset": 0, "bytes": 5})
    folder.server_log.write_bytes(b"boom\n")
    rows: list[Any] = list(Reader(folder).new())
    assert [r.get("at_ns", r.get("mono_ns")) for r in rows] == [5, 10, 15, 20, 22, 25, 30]
    assert rows[0]["file"] == "requests-0.jsonl"
    assert rows[4]["text"] == "boom"


def test_reader_gives_new_rows_only_and_finds_new_workers(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    reader = Reader(folder)
    assert list(reader.new()) == []
    put(folder.events, {"row": "probe", "at_ns": 1})
    assert [at_ns_of(r) for r in reader.new()] == [1]
    put(folder.requests(3), {"row": "end", "at_ns": 2})
    with folder.events.open("a") as f:
        f.write('{"row": "pro')
    assert [at_ns_of(r) for r in reader.new()] == [2]
    assert reader.bad_rows == 1
    with folder.events.open("a") as f:
        f.write('be", "at_ns": 3}\n')
    assert [at_ns_of(r) for r in reader.new()] == [3]
    assert reader.bad_rows == 0


def test_reader_finds_watched_logs_with_their_index(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    logs = folder.watch / "logs"
    logs.mkdir(parents=True)
    (logs / "vllm.log").write_bytes(b"hello\n")
    put(logs / "vllm.index.jsonl", {"row": "lines", "at_ns": 9, "offset": 0, "bytes": 6, "source": "vllm"})
    (row,) = Reader(folder).new()
    assert row["row"] == "log"
    assert (row["file"], row["at_ns"], row["source"]) == ("watch/logs/vllm.log", 9, "vllm")


def test_reader_reads_watched_log_named_server_log(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.server_log.write_text("from the keeper\n")
    logs = folder.watch / "logs"
    logs.mkdir(parents=True)
    (logs / "server.log").write_text("from the watch\n")
    found = {r["file"]: r["text"] for r in Reader(folder).new(final=True) if r["row"] == "log"}
    assert found == {"server.log": "from the keeper", "watch/logs/server.log": "from the watch"}


def test_reader_merges_many_rows_without_holding_all(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for worker in (0, 1):
        writer = Writer(folder.requests(worker), f"locust-{worker}")
        for n in range(3000):  # ends are written where they come, up to 40 rows out of their place
            writer.write({"row": "end", "at_ns": 10**18 + (2 * n + worker + (n * 7919) % 40) * 1000, "n": n})
    times = [row["at_ns"] for row in Reader(folder).new() if row["row"] == "end"]
    assert len(times) == 6000
    assert times == sorted(times)


def test_writer_close_writes_held_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "h.jsonl", "test")
    writer.holding = True
    writer.write({"n": 1})
    writer.write({"n": 2})
    assert b'"n"' not in writer.path.read_bytes()
    writer.close()
    assert of(Tail(writer.path)) == [{"n": 1}, {"n": 2}]


def test_writer_counts_every_held_row_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    writer = Writer(tmp_path / "l.jsonl", "test")
    writer.holding = True
    for n in range(3):
        writer.write({"n": n})
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr("loadchaos.core.ledger.writer.os.write", full)
        with pytest.raises(LedgerError, match="No space left"):
            writer.flush()
    assert writer.lost == 3
    for n in range(3):
        writer.write({"n": n})
    first_row = len(b'{"n":0}\n')
    with monkeypatch.context() as patched:
        patched.setattr("loadchaos.core.ledger.writer.os.write", lambda fd, data: real(fd, data[: first_row + 2]))
        with pytest.raises(LedgerError, match="only 10 of"):
            writer.flush()
    assert writer.lost == 5, "the first row of three was written whole"
    writer.close()


def test_writer_syncs_its_file_and_that_of_a_finished_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    monkeypatch.setattr("loadchaos.core.ledger.writer.os.fsync", fsync)
    writer = Writer(tmp_path / "s.jsonl", "test", part_s=0.0)
    writer.sync()
    assert synced == ["s.jsonl"]
    writer.sync()
    assert synced == ["s.jsonl"], "nothing was written since"
    writer.write({"n": 1})  # begins the next part
    writer.write({"n": 2})
    assert synced == ["s.jsonl", "s.jsonl.1"]
    writer.sync()
    assert synced[-1] == "s.jsonl.2"
    writer.close()


def test_event_recorder_keeps_why_a_row_was_lost_and_goes_on(tmp_path: Path) -> None:
    told: list[Any] = []
    record = EventRecorder(RunFolder(tmp_path), told.append)
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, record._events._fd)
    record.run("load_begin")
    assert record.lost is not None
    assert "events.jsonl: a row could not be written: No space left on device" in record.lost
    first = record.lost
    os.dup2(full, record._metrics._fd)
    gap: GapRow = {"row": "gap", "at_ns": 1, "replica": "", "source": "scrape", "seconds": 1.0, "why": "x"}
    record.metric(gap)
    record.sync()
    assert record.lost == first
    assert [row["row"] for row in told] == ["run", "gap"]
    record.close()
    os.close(full)
