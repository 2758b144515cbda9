"""Minimise the crash defects of the embedded server and print what it took.

    python -m bench.minimise [DEFECT...] [--budget 4m]

Each defect: its shipped profile is run, the run is minimised within the budget, and requests before and after, flags, tries,
time, CPU time of all processes, and the probability of the reproducer on fresh servers are printed. Times depend on what
else the machine does: the load average stands above the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MOST_S, MOST_REQUESTS = 300.0, 10
BUDGET = "210s"
"""The rest of the five minutes is for the runs of the script on fresh servers."""


@dataclass(frozen=True)
class Case:
    """A defect, the profile that finds it, and overrides of the profile."""

    defect: str
    profile: str
    overrides: tuple[str, ...] = ()
    most_requests: int = MOST_REQUESTS
    failure: str | None = None


CASES = (
    Case("near_max_oob", "near_max_len", most_requests=3),
    Case("mm_chunk_split", "mm_chunked_prefill", most_requests=MOST_REQUESTS),
    Case("kv_capacity_as_500", "lmdeploy_kv_capacity", most_requests=3),
    Case("encoder_free_on_speculated", "mtp_mm"),
    Case("encoder_free_on_scheduled", "mtp_mm", ("target.embedded.defects=[encoder_free_on_scheduled]",)),
    Case("encoder_pop_before_draft", "mtp_mm", ("target.embedded.defects=[encoder_pop_before_draft]",)),
    Case("mm_cache_desync", "mm_cache"),
    Case("pp_illegal_access", "pp_memory_pressure", most_requests=64),  # its race needs a burst of 64 requests
)
_RESULT = re.compile(
    r"MINIMISED ([\d,]+) to ([\d,]+) requests?, (\d+) to (\d+) flags?; repro.py reproduces (\d+) of (\d+) .*?; "
    r"([\d,]+) tries"
)


def loadchaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a loadchaos command."""
    argv = [sys.executable, "-m", "loadchaos", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def children_cpu_s() -> float:
    """CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(case: Case, folder: Path, budget: str) -> str:
    """Run and minimise one case. Returns its row of the table."""
    overrides = [part for text in (*case.overrides, "target.on_death=stop") for part in ("--set", text)]
    loadchaos("run", case.profile, "--embedded", "--no-live", "--out", str(folder / "runs"), *overrides)
    run = max((folder / "runs").iterdir(), key=lambda p: p.stat().st_mtime)
    failures = json.loads((run / "verdict.json").read_bytes())["failures"]
    found = next((f["id"] for f in failures if not f.get("before_load") and f["id"] == (case.failure or f["id"])), None)
    if found is None:
        return f"{case.defect:28} the run found no failure"
    begin_s, cpu_s = time.monotonic(), children_cpu_s()
    done = loadchaos("minimise", str(run), "--failure", found, "--budget", budget, "--out", str(folder / "minimised"))
    seconds, cpu_s = time.monotonic() - begin_s, children_cpu_s() - cpu_s
    match = _RESULT.search(done.stdout)
    if match is None:
        return f"{case.defect:28} {(done.stdout or done.stderr).strip().splitlines()[-1][:90]}"
    before, after, flags_before, flags, reproduced, runs, tries = match.groups()
    ok = int(after.replace(",", "")) <= case.most_requests and seconds <= MOST_S
    p, spent = int(reproduced) / int(runs), " (budget spent)" if "budget is spent" in done.stderr else ""
    return (
        f"{case.defect:28} {before:>8} {after:>6} {flags_before:>6} {flags:>6} {tries:>6} {seconds:6.0f} s "
        f"{cpu_s:6.0f} s {p:5.2f} ({reproduced} of {runs}){'' if ok else '  over the limit'}{spent}"
    )


def main() -> None:
    """Print the table of all cases, or of those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("defects", nargs="*", metavar="DEFECT", choices=[*(c.defect for c in CASES), []])
    parser.add_argument("--budget", default=BUDGET)
    args = parser.parse_args()
    chosen = [c for c in CASES if c.defect in args.defects] or CASES
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'defect':28} {'requests':>15} {'flags':>13} {'tries':>6} {'time':>8} {'CPU':>8} {'p':>5}")
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            print(measure(case, Path(folder) / case.defect, args.budget), flush=True)


if __name__ == "__main__":
    main()
