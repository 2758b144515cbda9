"""Measure the cost of monitoring: a large metrics page, a log burst.

    python bench/watch.py [--megabytes 100]

The page has 3,000 lines: vLLM's own, repeated under other engine labels. Goal: under 5 ms. The burst is written into
a file that `--server-log` follows, as fast as the disk takes it, while the embedded server is probed. Goal: no probe
is more than 0.25 s later than its interval (0.1 s for connects, 0.25 s for /health), compared with no burst.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.monitor import Monitor, MonitoredReplica, MonitorOutput, ServerAccess
from loadchaos.server.monitor.exposition import PageParser
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec

PAGE = Path(__file__).parent.parent / "tests" / "server" / "monitor" / "pages" / "vllm_0.32.txt"
LINE = (
    b"(EngineCore_DP0 pid=4711) INFO 11-20 15:53:40 [metrics.py:101] Engine 000: Avg prompt throughput: 5321.8 tokens/s, "
    b"Avg generation throughput: 811.2 tokens/s, Running: 61 reqs, Waiting: 12 reqs, GPU KV cache usage: 81.2%\n"
)
_QUIET_S = 5.0


def page(lines: int) -> bytes:
    """Build a page of about that many lines."""
    one = PAGE.read_text()
    found, engine = "", 0
    while found.count("\n") < lines:
        found += one.replace('engine="0"', f'engine="{engine}"')
        engine += 1
    return "\n".join(found.splitlines()[:lines]).encode() + b"\n"


def parse() -> None:
    """Print the cost of one page."""
    parser, text = PageParser(DIALECTS["vllm"].metrics), page(3000)
    took = []
    for _ in range(51):
        begin = time.process_time()
        parser.parse(text)
        took.append((time.process_time() - begin) * 1000)
    print(
        f"3,000 lines: first page {took[0]:.1f} ms, then {statistics.median(took[1:]):.2f} ms, worst {max(took[1:]):.2f} ms"
    )


def _write(path: Path, megabytes: int, written: threading.Event) -> None:
    block = LINE * (1_000_000 // len(LINE) + 1)  # whole lines: the end of one is what lets it be kept
    with path.open("ab") as f:
        for _ in range(megabytes):
            f.write(block)
    written.set()


def _holes(rows: list[dict[str, Any]], what: str, begin_ns: int, end_ns: int) -> list[float]:
    """Seconds between neighbouring /health probes of a span."""
    times = [r["at_ns"] for r in rows if r["row"] == "probe" and r["what"] == what and begin_ns <= r["at_ns"] <= end_ns]
    return [(b - a) / 1e9 for a, b in pairwise(times)]


async def burst(megabytes: int) -> None:
    """Print probe intervals before and during the burst."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen(  # noqa: ASYNC220 - before anything is measured
        command(SimulatorSpec(era="0.18", images=False, dev_mode=False), port),
        stdout=subprocess.DEVNULL,
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "server.log"
        log.touch()
        target = MonitoredReplica("server", f"http://127.0.0.1:{port}", logs=[str(log)])
        keep = lambda row: rows.append(dict(row))  # noqa: E731 - rows are kept as they come
        watch = Monitor(
            [target],
            DIALECTS["vllm"],
            MonitorOutput(keep, keep, Path(home), Redactor(["a-secret-value"])),
            ServerAccess(),
        )
        await watch.start()
        try:
            await watch.wait_healthy("server", 30)
            quiet_ns, cpu_s = time.monotonic_ns(), time.process_time()
            await asyncio.sleep(_QUIET_S)
            cpu_s = time.process_time() - cpu_s
            burst_ns, written = time.monotonic_ns(), threading.Event()
            threading.Thread(target=_write, args=(log, megabytes, written), daemon=True).start()
            kept = Path(home) / "watch" / "logs" / "server.log"
            while not written.is_set() or kept.stat().st_size < log.stat().st_size:  # noqa: ASYNC110 - files tell nobody
                await asyncio.sleep(0.05)
            end_ns = time.monotonic_ns()
        finally:
            await watch.stop()
            server.terminate()
            server.wait()
    before, during = _holes(rows, "health", quiet_ns, burst_ns), _holes(rows, "health", burst_ns, end_ns)
    print(f"{megabytes} MB of log were kept within {(end_ns - burst_ns) / 1e9:.1f} s")
    for name, holes in (("before", before), ("during", during)):
        if holes:
            middle, longest = statistics.median(holes), max(holes)
            print(f"/health {name}: every {middle:.3f} s, longest hole {longest:.3f} s, {len(holes) + 1} probes")
    print(f"CPU of watching one quiet replica: {cpu_s / _QUIET_S * 1000:.1f} ms a second")
    lost = [r for r in rows if r["row"] == "gap"]
    print(f"gaps: {len(lost)}{''.join(chr(10) + '  ' + r['source'] + ': ' + r['why'] for r in lost)}")


def main() -> None:
    """Run both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    parse()
    asyncio.run(burst(options.megabytes))


if __name__ == "__main__":
    main()
