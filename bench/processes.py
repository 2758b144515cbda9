"""Measure CPU per stream with one and with several load processes.

Usage: python -m bench.processes [--streams 200] [--for 20]

Each load process is the real one (Locust with our locustfile). The server is bench/server.c: streams of 64 events at
50 events a second, of which one core serves thousands. CPU is what the kernel charged the load processes while all
streams were open, so the figure also holds on a busy machine. It shows what two processes reach together where cores
are free.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.server import LoadServer, Pace
from loadchaos.core.ledger.reader import Tail

LOCUSTFILE = Path(__file__).parents[1] / "loadchaos" / "load" / "locustfile.py"
WARM_UP_S = 8.0


def measure(processes: int, streams: int, seconds: float) -> dict[str, Any]:
    """Measure CPU of the sending processes at that many streams."""
    with (
        LoadServer(Pace(events=64, gap_us=20_000, ttft_us=20_000, spread_us=20_000)) as server,
        tempfile.TemporaryDirectory() as home,
    ):
        folder, url = Path(home), server.url
        profile = {
            "name": "b", "traffic": [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 64}}],
            "load": [{"users": streams, "for": "1h"}],
        }  # fmt: skip
        plan = {"profile": profile, "seed": 1, "base_url": url, "api_key_env": None, "headers": {}, "folder": home,
                "workers": processes}  # fmt: skip
        facts = {"base_url": url, "admin_url": url, "dialect": "vllm", "model": "m"}
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "facts.json").write_text(json.dumps(facts))
        argv = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
        argv += ["--processes", str(processes)] if processes > 1 else []
        env = {**os.environ, "LOADCHAOS_PLAN": str(folder / "plan.json")}
        with (folder / "locust.log").open("wb") as log:
            load = subprocess.Popen(argv, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            pids = drivers(folder, processes)
            time.sleep(WARM_UP_S)
            before, cpu, events = time.monotonic(), cpu_s(pids), server.counters().events
            time.sleep(seconds)
            took, used = time.monotonic() - before, cpu_s(pids) - cpu
            rate = (server.counters().events - events) / took
            return {
                "processes": processes,
                "streams": streams,
                "events_per_s": rate,
                "cpu_percent": 100 * used / took,
                "us_per_event": 1e6 * used / took / rate,
                "rss_mb": sum(psutil.Process(p).memory_info().rss for p in pids) / 2**20,
            }
        finally:
            load.send_signal(signal.SIGTERM)
            try:
                load.wait(20)
            except subprocess.TimeoutExpired:
                load.kill()
                load.wait()


def drivers(folder: Path, processes: int) -> list[int]:
    """List the pids of the sending processes, from the headers of their files."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rows = (next(Tail(path).rows(), {}) for path in folder.glob("requests-*.jsonl"))
        pids = [int(row["pid"]) for row in rows if row.get("row") == "header"]
        if len(pids) == processes:
            return pids
        time.sleep(0.1)
    raise SystemExit(f"the load did not begin: {(folder / 'locust.log').read_text()}")


def cpu_s(pids: list[int]) -> float:
    """Sum of user and system time so far."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def main() -> None:
    """Measure and print one line per number of processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--for", dest="seconds", type=float, default=20.0)
    parser.add_argument(
        "--rounds", type=int, default=3, help="by turns; the cheapest counts: others only add to a cost"
    )
    options = parser.parse_args()
    best: dict[int, dict[str, Any]] = {}
    for n in options.processes * options.rounds:
        found = measure(n, options.streams, options.seconds)
        print("  ".join(f"{k} {v:,.1f}" for k, v in found.items()), flush=True)
        best[n] = min(best.get(n, found), found, key=lambda f: f["us_per_event"])
    print("cheapest:", {n: round(f["us_per_event"], 1) for n, f in best.items()})


if __name__ == "__main__":
    main()
