"""Measure how often `loadchaos compare` tells servers apart: one with a known step in latency, and an equal one.

    python -m bench.compare [--seeds 20] [--step-us 150000]

For each seed there are three runs: of a server, of an equal one, and of one whose first token comes later by the step.
The servers are compiled C (bench/server.py); the runs and their comparisons are commands as a user gives them. Each run
has another seed, and so other arrivals.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.server import LoadServer, Pace

TTFT_US, SPREAD_US = 1_000_000, 400_000
"""Long against the noise of a machine with other processes: single runs do not know how much two runs differ."""
_LOAD = ("--rate", "20", "--num-prompts", "100", "--random-input-len", "16", "--random-output-len", "4")
_COMMAND = (sys.executable, "-m", "loadchaos")
_RUNS = ("server", "equal", "slower")


def run(folder: Path, ttft_us: int, seed: int) -> Path:
    """Run the load once against a fresh server. Returns the run folder."""
    with LoadServer(Pace(events=4, gap_us=100_000, ttft_us=ttft_us, spread_us=SPREAD_US)) as server:
        more = ("--target", server.url, "--seed", str(seed), "--no-questions", "--no-live", "--exporter-port", "0")
        argv = [*_COMMAND, "run", *_LOAD, *more, "--out", str(folder)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = list(folder.glob("*/verdict.json"))
    if len(found) != 1:
        raise RuntimeError(f"the run failed ({done.returncode}): {done.stdout}{done.stderr}")
    return found[0].parent


def is_worse(a: Path, b: Path) -> bool:
    """True if `compare --fail-if worse` ends with 1."""
    argv = [*_COMMAND, "compare", str(a), str(b), "--fail-if", "worse"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"nothing was compared ({done.returncode}): {done.stdout}{done.stderr}")
    return done.returncode == 1


def main() -> int:
    """Print a line for each seed, and how many were told apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--step-us", type=int, default=150_000)
    options = parser.parse_args()
    told: list[tuple[bool, bool]] = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory(prefix="loadchaos-bench-") as folder:
            ttfts_us = (TTFT_US, TTFT_US, TTFT_US + options.step_us)
            first, equal, slower = (
                run(Path(folder) / name, ttft_us, 1000 * n + seed)
                for n, (name, ttft_us) in enumerate(zip(_RUNS, ttfts_us, strict=True))
            )
            told.append((is_worse(first, slower), is_worse(first, equal)))
        print(f"seed {seed}: slower told apart: {told[-1][0]}, equal told apart: {told[-1][1]}", flush=True)
    found, wrong = (sum(column) for column in zip(*told, strict=True))
    print(
        f"a step of {options.step_us / 1000:g} ms was told apart in {found} of {len(told)} seeds, equal servers in {wrong}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
