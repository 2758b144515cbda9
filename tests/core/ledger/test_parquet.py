import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import LogTail, Reader, Tail
from loadchaos.core.ledger.writer import Writer
from loadchaos.server.indexed_log import IndexedLog
from tests.core.ledger.test_writer_reader import of

ODD: list[dict[str, Any]] = [
    {"x": 'quo"te, \\ back\n', "row": "end", "outcome": "ok"},
    {"é": "☃", "n": None},
    {"big": "y" * 200_000},
    {"x": "\x01"},
]


def written(path: Path, rows: list[dict[str, Any]], parts: int) -> None:
    writer = Writer(path, "t", part_s=1e9)
    for n, row in enumerate(rows):
        writer.write(row)
        if (n + 1) % (len(rows) // parts) == 0 and n + 1 < len(rows):
            writer._next_part()
    writer.close()


def test_writer_begins_new_part_and_resumes_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "requests-0.jsonl"
    writer = Writer(path, "t", part_s=0.0)
    for n in range(3):
        writer.write({"n": n})
    again = Writer(path, "t")
    again.write({"n": 3})
    names = [p.name for p in tmp_path.iterdir()]
    assert len(names) > 3
    assert {n.partition("jsonl")[0] for n in names} == {"requests-0."}
    assert [row["n"] for row in of(Tail(path))] == [0, 1, 2, 3]
    assert RunFolder(tmp_path).request_files() == [path]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))])
def test_reader_gives_each_row_once_while_parts_become_parquet(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path / "requests-0.jsonl"
    rows = [{"n": n, **rng.choice(ODD)} for n in range(60)]
    written(path, rows, parts=4)
    tail, got = Tail(path), list[dict[str, Any]]()
    while len(got) < len(rows):
        reading = tail.rows()
        for _ in range(rng.randrange(1, 15)):
            if (row := next(reading, None)) is not None and row["row"] != "header":
                got.append({**row})
        reading.close()  # type: ignore[attr-defined]
        if (parts := parquet.finished_parts(tmp_path)) and rng.random() < 0.5:
            assert parquet.compact(rng.choice(parts))
    assert got == [{"row": "", **r} for r in rows]
    assert parquet.main([str(tmp_path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir())[:2] == [
        "requests-0.jsonl.1.parquet",
        "requests-0.jsonl.2.parquet",
    ]
    assert of(Tail(path)) == rows
    assert [dict(r) for r in Reader(RunFolder(tmp_path)).new(final=True) if r["row"] != "header"] == [
        {"row": "", **r, "file": "requests-0.jsonl"} for r in rows
    ]


def test_tail_reads_a_part_that_ends_while_it_looks_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, exists = tmp_path / "requests-0.jsonl", parquet.exists
    writer = Writer(path, "t", part_s=1e9)
    writer.write({"n": 1})
    looks: list[Path] = []

    def look(part: Path) -> bool:
        looks.append(part)
        if len(looks) == 1:
            writer.write({"n": 2})
            writer._next_part()
            writer.write({"n": 3})
        return exists(part)

    monkeypatch.setattr(parquet, "exists", look)
    tail = Tail(path)
    assert [row["n"] for row in of(tail)] == [1, 2, 3]
    writer.close()


def test_log_index_continues_in_parts_and_keeps_line_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "HOUR_S", 0.0)
    logs = tmp_path / "watch" / "logs"
    logs.mkdir(parents=True)
    log = IndexedLog(logs / "a.log", "run", "file:x")
    before = time.monotonic_ns()
    for n in range(4):
        log.append(b"line %d\n" % n, time.monotonic_ns())
    log.close()
    index = logs / "a.index.jsonl"
    assert parquet.last_part(index) == 4
    assert parquet.main([str(tmp_path)]) == 0
    assert [parquet.parquet_of(parquet.part_of(index, n)).exists() for n in range(5)] == [True] * 4 + [False]
    seen: list[Any] = list(LogTail(logs / "a.log", index).rows())
    assert [r["text"] for r in seen] == [f"line {n}" for n in range(4)]
    assert before < seen[0]["at_ns"] < seen[-1]["at_ns"] < time.monotonic_ns()
    IndexedLog(logs / "a.log", "run", "file:x").close()
    assert parquet.last_part(index) == 4, "a new one goes on where the last one was"


def test_compact_keeps_torn_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n\n{"to\n{"n": 2}\n"no row"\n{"torn": ')
    parquet.part_of(path, 1).write_bytes(b'{"n": 3}\n')
    before = Tail(path)
    rows = of(before)
    assert parquet.compact(path)
    after = Tail(path)
    assert of(after) == rows == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert after.bad == before.bad == 3


def test_compact_keeps_part_whose_lines_differ(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": "\xff"}\n')
    parquet.part_of(path, 1).write_bytes(b"")
    assert parquet.main([str(tmp_path)]) == 1
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["a.jsonl", "a.jsonl.1"]
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    other = tmp_path / "b.jsonl"
    other.write_bytes(b'{"n": 1}\n{"n": 3}\n')
    parquet._write(other, parquet.parquet_of(path))
    assert not parquet.compact(path), "a file that says something else"
    assert path.exists()
    assert not parquet.parquet_of(path).exists()


def test_tail_raises_on_unreadable_part(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    parquet.parquet_of(path).write_bytes(b"no parquet")
    with pytest.raises(LedgerError, match=r"a\.jsonl"):
        of(Tail(path))


@pytest.mark.parametrize("after_ms", [500, *(pytest.param(n, marks=pytest.mark.slow) for n in range(0, 1300, 60))])
def test_compact_killed_midway_loses_nothing(tmp_path: Path, after_ms: int) -> None:
    path = tmp_path / "requests-0.jsonl"
    rows = [{"row": "end", "n": n, "at_ns": n, "outcome": "ok", "text": f"{n:x}" * 40} for n in range(40_000)]
    written(path, rows, parts=2)
    child = subprocess.Popen([sys.executable, "-m", "loadchaos.core.ledger.parquet", str(tmp_path)])
    time.sleep(after_ms / 1000)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert of(Tail(path)) == rows
    assert parquet.main([str(tmp_path)]) == 0
    assert not path.exists()
    assert of(Tail(path)) == rows
    assert json.loads(next(parquet.read_lines(parquet.parquet_of(path), 1))) == rows[0]
