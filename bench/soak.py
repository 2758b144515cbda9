"""Run a compressed soak: many requests through a whole `loadchaos run`.

Usage: python -m bench.soak [--requests 1000000] [--hours 8] [--leak]

With `--hours 8` a simulated server runs for 8 hours of 45 seconds each: the embedded server steps 80 times as fast,
clients hang up, and the server is idle now and then. With `--leak` each client that hangs up leaks a block of the KV
cache, one per cent of it in such an hour; then the run has to fail because of the leak.

Otherwise the server is bench/server.c with short answers. The run is the real one with its follower and its load
process. Their memory is sampled every few seconds. At the end the bench prints how much each grew after its warm-up
(a fifth of the run) and the disk space of the ledger per request. Exit code 1 if a process grew by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.server import LoadServer, Pace

ROLES = {"loadchaos.run.follower": "follower", "locustfile.py": "load"}
SPEED_UP = 80
HOUR_S = 20.0
"""Interval of the hourly work of a run (a new part of the ledger, Parquet) against bench/server.c."""
_BLOCKS = 18_000
LOOK_S = 2.0
WARM_UP = 0.2
MOST_GROWTH = 0.1


def role(process: psutil.Process) -> str | None:
    """Role of a process: run, follower or load; None for any other."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return None
    return next((name for word, name in ROLES.items() if word in line), None)


Seen = dict[str, list[tuple[float, float]]]
"""Memory in MB over time by role."""


def soak(requests: int, users: int, home: Path) -> tuple[Seen, int, float]:
    """Run that many requests; give memory by role, exit code and seconds."""
    with LoadServer(Pace(events=4, gap_us=200, ttft_us=200)) as server:
        profile = {
            "name": "soak", "traffic": [{"name": "text", "payload": {"text": {"tokens": 16}}, "output": {"max": 4}}],
            "load": [{"users": users, "requests": requests}], "expect": ["failures == 0"],
        }  # fmt: skip
        return driven(profile, home, HOUR_S, "--target", server.url)


def day(hours: float, home: Path, *, leak: bool) -> tuple[Seen, int, float]:
    """Run that many hours of the embedded server, at 80 times its speed."""
    leaving = _BLOCKS / 100 / 3600 * SPEED_UP  # a second of ours: a hundredth of the cache in an hour of the server's
    rates = {"text": 2 * leaving, "leaving": leaving}
    embedded = {
        "dialect": "vllm", "defects": ["kv_leak_on_abort"] if leak else [],
        "flags": {"speed": SPEED_UP, "num_gpu_blocks": _BLOCKS, "enable_prefix_caching": False},
    }  # fmt: skip
    profile = {
        "name": "day", "target": {"embedded": embedded},
        "traffic": [
            {"name": "text", "weight": rates["text"], "payload": {"text": {"tokens": "16..512"}}, "output": {"max": 64}},
            {"name": "leaving", "weight": rates["leaving"], "payload": {"text": {"tokens": "16..512"}},
             "output": {"max": 256}, "behaviour": {"abort": {"share": "100%", "at_token": "1..50"}}},
        ],
        "load": [{"rate": f"{sum(rates.values()):.3f}/s", "law": "poisson", "for": f"{hours * 3600 / SPEED_UP:.0f}s",
                  "max_in_flight": 64}],
        "expect": [f"drift.kv <= {0.5 * SPEED_UP:g}%/h"],
    }  # fmt: skip
    return driven(profile, home, 3600 / SPEED_UP)


def driven(profile: dict[str, Any], home: Path, hour_s: float, *options: str) -> tuple[Seen, int, float]:
    """Run a profile and sample the memory of its processes.

    `hour_s` is the length of its hours.
    """
    (home / "soak.yaml").write_text(json.dumps(profile))
    argv = [sys.executable, "-m", "loadchaos", "run", "soak.yaml", *options, "--no-live"]
    env = {**os.environ, "CI": "", "LOADCHAOS_HOUR_S": str(hour_s)}
    begin = time.monotonic()
    with (home / "output").open("wb") as output:
        run = subprocess.Popen(argv, cwd=home, stdout=output, stderr=output, env=env)
    seen: dict[str, list[tuple[float, float]]] = {"run": [], "follower": [], "load": []}
    try:
        while run.poll() is None:
            at = time.monotonic() - begin
            me = psutil.Process(run.pid)
            parts = [(me, "run"), *((p, role(p)) for p in me.children(recursive=True))]
            driving = any(name == "load" for _, name in parts)  # what judging takes afterwards is not growth
            for process, name in parts:
                if driving and name in seen:
                    try:
                        seen[name].append((at, process.memory_info().rss / 2**20))
                    except psutil.Error:
                        continue
            time.sleep(LOOK_S)
    finally:
        if run.poll() is None:
            run.kill()
    return seen, run.wait(), time.monotonic() - begin


def grown(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Median MB of a tenth of the run, after the warm-up and at the end."""
    after = [mb for at, mb in points if at >= WARM_UP * points[-1][0]]
    part = max(1, len(after) // 10)
    return median(after[:part]), median(after[-part:])


def print_memory(seen: Seen) -> float:
    """Print how much each process grew; return the largest growth."""
    worst = 0.0
    for name, points in seen.items():
        if len(points) < 10:
            print(f"{name}: seen too seldom")
            continue
        begin, end = grown(points)
        line = f"{name:9} {begin:6.1f} MB after warm-up, {end:6.1f} MB at the end ({end / begin - 1:+.1%})"
        print(f"{line}, at most {max(mb for _, mb in points):.1f} MB")
        tenths = [median(mb for at, mb in points if n <= 10 * at / points[-1][0] <= n + 1) for n in range(10)]
        print(f"{'':9} by tenths of the run: {' '.join(f'{mb:.1f}' for mb in tenths)}")
        worst = max(worst, end / begin - 1)
    return worst


def print_ledger(home: Path, requests: int) -> None:
    """Print the disk space of the ledger and the share that became Parquet."""
    parts = {p: p.stat().st_size for p in home.glob("runs/*/*.jsonl*")}
    packed = [size for p, size in parts.items() if p.suffix == ".parquet"]
    size = sum(parts.values())
    print(f"ledger {size / 2**20:,.0f} MB, {size / requests:,.0f} bytes a request", end="")
    print(f"; {len(parts)} files, {len(packed)} of them Parquet with {sum(packed) / 2**20:,.0f} MB")


def print_day(hours: float, home: Path, *, leak: bool) -> int:
    """Print the result of a simulated day; return the exit code.

    It is 1 if a process of ours grew, or if the verdict does not fit the leak.
    """
    seen, _, took = day(hours, home, leak=leak)
    (path,) = home.glob("runs/*/verdict.json")
    verdict = json.loads(path.read_text())
    print(f"{hours:g} hours in {took:.0f} s, {sum(verdict['outcomes'].values()):,} requests: {verdict['verdict']}")
    for e in verdict["expectations"]:
        print(f"{e['name']}: {e['actual']} ({e['verdict']})")
    for f in verdict["failures"]:
        print(f"found: {f['id']}: {f['title']}")
    for c in verdict["checks"]:
        if c["verdict"] != "pass":
            print(f"{c['name']}: {c['actual']}")
    print_ledger(home, sum(verdict["outcomes"].values()))
    grew = print_memory(seen) > MOST_GROWTH
    return int(grew or verdict["verdict"] != ("fail" if leak else "pass"))


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--hours", type=float, help="hours of the embedded server instead")
    parser.add_argument("--leak", action="store_true", help="with a planted leak of one per cent an hour")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if options.hours:
            return print_day(options.hours, home, leak=options.leak)
        seen, code, took = soak(options.requests, options.users, home)
        print(
            f"{options.requests:,} requests in {took:.0f} s ({options.requests / took:,.0f} a second), exit code {code}"
        )
        if code:
            print((home / "output").read_text()[-3000:])
        print_ledger(home, options.requests)
        worst = print_memory(seen)
    return int(code != 0 or worst > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
