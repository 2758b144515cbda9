"""A compressed soak: `python -m bench.soak [--requests 1000000]` drives so many requests through a whole `loadchaos run`.

The server is bench/server.c with short answers, the run is the real one with its follower and its load process. Each few
seconds the memory of each is looked at; at the end it says how much each grew after its warm-up (a fifth of the run), what
the ledger takes on disk a request, and what the judge took. Exit code 1 where something grows by more than a tenth.
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

import psutil

from bench.server import LoadServer, Pace

ROLES = {"loadchaos.follow": "follower", "locustfile.py": "load"}
LOOK_S = 2.0
WARM_UP = 0.2
MOST_GROWTH = 0.1


def role(process: psutil.Process) -> str | None:
    """run, follower or load; None for what is no part of a run, or gone."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return None
    return next((name for word, name in ROLES.items() if word in line), None)


def soak(requests: int, users: int, home: Path) -> tuple[dict[str, list[tuple[float, float]]], int, float]:
    """(memory in MB over time by role, the run's exit code, seconds)."""
    with LoadServer(Pace(events=4, gap_us=200, ttft_us=200)) as server:
        profile = {
            "name": "soak", "traffic": [{"name": "text", "payload": {"text": {"tokens": 16}}, "output": {"max": 4}}],
            "load": [{"users": users, "requests": requests}], "expect": ["failures == 0"],
        }  # fmt: skip
        (home / "soak.yaml").write_text(json.dumps(profile))
        argv = [sys.executable, "-m", "loadchaos", "run", "soak.yaml", "--target", server.url, "--no-live"]
        begin = time.monotonic()
        with (home / "told").open("wb") as told:
            run = subprocess.Popen(argv, cwd=home, stdout=told, stderr=told, env={**os.environ, "CI": ""})
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
    """(MB after the warm-up, MB at the end): medians of a tenth of the run each."""
    after = [mb for at, mb in points if at >= WARM_UP * points[-1][0]]
    part = max(1, len(after) // 10)
    return median(after[:part]), median(after[-part:])


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        seen, code, took = soak(options.requests, options.users, home)
        print(
            f"{options.requests:,} requests in {took:.0f} s ({options.requests / took:,.0f} a second), exit code {code}"
        )
        if code:
            print((home / "told").read_text()[-3000:])
        size = sum(p.stat().st_size for p in home.glob("runs/*/*.jsonl"))
        print(f"ledger {size / 2**20:,.0f} MB, {size / options.requests:,.0f} bytes a request")
        worst = 0.0
        for name, points in seen.items():
            if len(points) < 10:
                print(f"{name}: seen too seldom")
                continue
            begin, end = grown(points)
            told = f"{name:9} {begin:6.1f} MB after warm-up, {end:6.1f} MB at the end ({end / begin - 1:+.1%})"
            print(f"{told}, at most {max(mb for _, mb in points):.1f} MB")
            worst = max(worst, end / begin - 1)
    return int(code != 0 or worst > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
