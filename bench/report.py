"""Measure `loadchaos report` on the ledger of a long run, and the start of `loadchaos classify`.

Usage: python -m bench.report [REQUESTS] [--log] [--keep FOLDER] [--again RUN] [--profile FILE]

REQUESTS is the number of requests of the long run (default 1000000, 300 a second). A real run of ten seconds against the
embedded server gives its frame: events, metrics, plan, server log. The request rows are made by the load worker's own row
writer in virtual time, with answers like those of the real run. Events and metrics are repeated for the length of the run.
`--log` adds one access log line for each request. `--keep` keeps the run, `--again` measures a run that was kept, and
`--profile` writes a CPU profile of the report.
"""

from __future__ import annotations

import argparse
import heapq
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import orjson

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import EndRow
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.recorder import RequestRecorder
from loadchaos.load.worker.worker_plan import WorkerPlan

_RATE = 300.0
_BEAT_NS = 250_000_000
_S = 1_000_000_000
_PROFILE = """\
name: long
target: {embedded: {}}
traffic:
  - {name: text, weight: 3, payload: {text: {tokens: 32..512}}, output: {max: 32}}
  - {name: images, payload: {images: {size: 448x448}, text: {tokens: 32..128}}, output: {max: 16}}
load: [{users: 8, for: 10s}]
"""
_SAME = ("outcome", "status", "chunks", "largest_gap_ns", "finish_reason", "completion_tokens",
         "cached_tokens", "bytes_in", "bytes_out", "text_ratio")  # fmt: skip
_MOMENTS = ("sent_ns", "first_byte_ns", "first_token_ns", "first_answer_ns", "last_byte_ns")


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a finished command, and peak memory of its largest process."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    exit_code: int


def measure(argv: Sequence[str]) -> Cost:
    """Run a command of loadchaos and wait for it and its children."""
    begin_s = time.monotonic()
    with subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(used.ru_utime + used.ru_stime, time.monotonic() - begin_s, used.ru_maxrss / 1e3, process.returncode)


def short_run(out: Path) -> RunFolder:
    """Make the real run whose rows are repeated."""
    profile = out / "long.yaml"
    profile.write_text(_PROFILE)
    argv = ["-m", "loadchaos", "run", str(profile), "--embedded", "--no-live", "--out", str(out)]
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the short run failed:\n{done.stdout}{done.stderr}")
    return RunFolder(next(path for path in out.iterdir() if path.is_dir()))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("wb") as f:
        f.writelines(orjson.dumps(row) + b"\n" for row in rows)


def shifted(value: Any, by_ns: int, after_ns: int) -> Any:
    """Move each moment in a row."""
    if isinstance(value, dict):
        return {
            k: v + by_ns
            if k.endswith("_ns") and isinstance(v, int) and after_ns < v < after_ns + 3600 * _S
            else shifted(v, by_ns, after_ns)
            for k, v in value.items()
        }
    return [shifted(v, by_ns, after_ns) for v in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Stretch:
    """The time of the load in the short run, and the time that it shall take."""

    begin_ns: int
    end_ns: int
    long_ns: int

    def rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """Repeat the rows of the load; move later rows behind them."""
        before_ns = self.begin_ns - 600 * _S
        rows = rows_of(path)
        inside = [row for row in rows if self.begin_ns < row.get("at_ns", 0) < self.end_ns]
        yield from (row for row in rows if row.get("at_ns", 0) <= self.begin_ns)
        for turn in range(-(-self.long_ns // (self.end_ns - self.begin_ns))):
            by_ns = turn * (self.end_ns - self.begin_ns)
            for row in inside:
                if row["at_ns"] + by_ns < self.begin_ns + self.long_ns:
                    yield shifted(row, by_ns, before_ns)
        by_ns = self.long_ns - (self.end_ns - self.begin_ns)
        yield from (shifted(row, by_ns, before_ns) for row in rows if row.get("at_ns", 0) >= self.end_ns)


def row_like(end: dict[str, Any], exchange: Exchange) -> EndRow:
    """Make a row like another one, for a request that begins later."""
    by_ns = exchange.due_ns - end["due_ns"]
    moments: dict[str, Any] = {k: None if end[k] is None else end[k] + by_ns for k in _MOMENTS}
    same: dict[str, Any] = {k: end[k] for k in _SAME if k in end}
    row = exchange.end_row()
    row |= {**same, **moments, "itl_hist": {int(k): n for k, n in end["itl_hist"].items()}}  # type: ignore[typeddict-item]
    row["at_ns"], row["prompt_tokens"] = end["at_ns"] + by_ns, exchange.request.tokens
    row["request_id"] = f"chatcmpl-{exchange.request.id}"
    return row


class VirtualClock:
    """The clock of the row writer."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / _S


def write_requests(folder: RunFolder, stretch: Stretch, requests: int) -> None:
    """Write begin, end and heartbeat rows with the worker's recorder."""
    path = folder.requests(0)
    before = rows_of(path)
    ends = {t: [r for r in before if r["row"] == "end" and r["traffic"] == t and r["outcome"] == "ok"] for t in
            {r["traffic"] for r in before if r["row"] == "end"}}  # fmt: skip
    path.unlink()
    clock = VirtualClock(stretch.begin_ns)
    with (
        mock.patch.object(time, "monotonic_ns", clock.monotonic_ns),
        mock.patch.object(time, "monotonic", clock.monotonic),
    ):
        worker = WorkerPlan.read(folder.plan, 0)
        recorder, progress, slot = RequestRecorder(path, 0), Progress(), Slot(worker.target)
        steps = next(iter(worker.phases()))[1]
        open_: list[tuple[int, int, Exchange, EndRow]] = []
        beat_ns = clock.now_ns
        recorder.write({"row": "load", "at_ns": clock.now_ns, "what": "begin"})
        recorder.phase(0, 0, "begin")
        for n in range(requests):
            due_ns = stretch.begin_ns + round(n / _RATE * _S)
            while (open_ and open_[0][0] <= due_ns) or beat_ns <= due_ns:
                if open_ and open_[0][0] <= beat_ns:
                    clock.now_ns, _, exchange, row = heapq.heappop(open_)
                    recorder.end(exchange, row)
                else:
                    clock.now_ns = beat_ns
                    recorder.heartbeat(8)
                    beat_ns += _BEAT_NS
            clock.now_ns = due_ns
            exchange = Exchange(worker.build_request(next(steps)), slot, progress)
            recorder.begin(exchange)
            kind = ends[exchange.step.traffic]
            row = row_like(kind[n % len(kind)], exchange)
            heapq.heappush(open_, (row["at_ns"], n, exchange, row))
        while open_:
            clock.now_ns, _, exchange, row = heapq.heappop(open_)
            recorder.end(exchange, row)
        recorder.phase(0, 0, "end")
        recorder.write({"row": "load", "at_ns": clock.now_ns, "what": "end"})
        recorder.heartbeat(0)
        recorder.close()


def add_access_log(folder: RunFolder, stretch: Stretch, requests: int) -> None:
    """Insert one access log line for each request."""
    with folder.server_log.open("ab") as log, folder.server_index.open("ab") as index:
        offset = log.tell()
        for n in range(requests):
            line = b'INFO:     127.0.0.1:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' % (43_000 + n % 64)
            log.write(line)
            at_ns = stretch.begin_ns + round(n / _RATE * _S)
            row = {"row": "lines", "at_ns": at_ns, "offset": offset, "bytes": len(line), "source": "server"}
            index.write(orjson.dumps(row) + b"\n")
            offset += len(line)


def make_run(out: Path, requests: int, *, log: bool) -> RunFolder:
    """Make the run folder of a long run."""
    folder = short_run(out)
    rows = rows_of(folder.events)
    at_ns = {row["what"]: row["at_ns"] for row in rows if row["row"] == "run"}
    stretch = Stretch(at_ns["load_begin"], at_ns["load_end"], round(requests / _RATE * _S) + 2 * _S)
    for path in (folder.events, folder.metrics):
        write_rows(path, iter(list(stretch.rows(path))))
    if log:
        add_access_log(folder, stretch, requests)
    write_requests(folder, stretch, requests)
    return folder


def measure_classify() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".log") as f:
        f.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
        f.flush()
        costs = sorted(measure(["-m", "loadchaos", "classify", f.name]).cpu_s for _ in range(7))
    print(f"classify, one line: {costs[3]:.2f} s CPU, median of {len(costs)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", type=Path)
    parser.add_argument("--profile", type=Path)
    args = parser.parse_args()
    measure_classify()
    with tempfile.TemporaryDirectory() as temporary:
        out = args.keep or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        begin_s = time.monotonic()
        folder = RunFolder(args.again) if args.again else make_run(out, args.requests, log=args.log)
        size = sum(path.stat().st_size for path in folder.request_files())
        made = "" if args.again else f", made in {time.monotonic() - begin_s:.0f} s"
        print(f"{folder.path}: request rows {size / 1e6:,.0f} MB{made}", flush=True)
        profiled = ["-m", "cProfile", "-o", str(args.profile)] if args.profile else []
        cost = measure([*profiled, "-m", "loadchaos", "report", str(folder.path)])
        verdict = orjson.loads(folder.verdict.read_bytes())
        ended = sum(verdict["outcomes"].values())
        print(f"verdict {verdict['verdict']}, {ended:,} requests, exit code {cost.exit_code}")
        print(
            f"report: {cost.cpu_s:.1f} s CPU, {cost.wall_s:.1f} s wall, peak of its largest process {cost.peak_mb:.0f} MB"
        )


if __name__ == "__main__":
    main()
