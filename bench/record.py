"""Measure the cost of the recording proxy: added TTFT and CPU per token.

    python -m bench.record [--streams 512] [--rounds 3] [--seconds 12]

The same streams go to the load server directly, through `loadchaos record`, and through nginx if it is on the PATH, in
turn. TTFT is the time from the client's send to its first token; client and server are compiled C. CPU is that of all
processes of a proxy, for each token that it passed on. Only figures of one run are comparable: they share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from bench.server import LoadServer, Pace, build

TTFT_US, GAP_US = 100_000, 50_000
BODY_WORDS = 2000


@dataclass(frozen=True)
class ProxyCost:
    """Figures of one trial; `cpu_us` is 0 without a proxy."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    cpu_us: float
    failed: int


Front = Callable[[int], AbstractContextManager[tuple[int, list[psutil.Process]]]]
"""Starts a proxy in front of a port; gives its own port and its processes."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Wait until a port is open; returns the processes."""
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            main = psutil.Process(process.pid)
            return [main, *main.children(recursive=True)]
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port}")


@contextlib.contextmanager
def direct(port: int) -> Iterator[tuple[int, list[psutil.Process]]]:
    yield port, []


@contextlib.contextmanager
def started(argv: list[str], port: int) -> Iterator[tuple[int, list[psutil.Process]]]:
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        yield port, wait_for(port, process)
    finally:
        process.terminate()
        process.wait(90)


@contextlib.contextmanager
def recorder(upstream: int) -> Iterator[tuple[int, list[psutil.Process]]]:
    port = free_port()
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "loadchaos", "record", "--upstream", f"http://127.0.0.1:{upstream}"]
        with started([*argv, "--listen", f"127.0.0.1:{port}", "--out", out], port) as found:
            yield found


@contextlib.contextmanager
def nginx(upstream: int) -> Iterator[tuple[int, list[psutil.Process]]]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        paths = "".join(
            f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config.write_text(
            f"daemon off; worker_processes 1; user root; pid {folder}/pid; error_log /dev/null;"
            f"events {{ worker_connections 8192; }} http {{ access_log off; {paths}"
            f"upstream u {{ server 127.0.0.1:{upstream}; keepalive 1024; }}"
            f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://u; proxy_http_version 1.1;"
            'proxy_set_header Connection ""; proxy_buffering off; client_max_body_size 0; } } }'
        )
        with started([str(shutil.which("nginx")), "-c", str(config)], port) as found:
            yield found


def cpu_s(processes: list[psutil.Process]) -> float:
    times = [p.cpu_times() for p in processes]
    return sum(t.user + t.system for t in times)


def trial(front: Front, streams: int, seconds: float) -> ProxyCost:
    """Run all streams once through a proxy."""
    events = max(20, int((seconds - TTFT_US / 1e6) * 1e6 / GAP_US / 2))
    stagger_us = int((TTFT_US + events * GAP_US) / streams)
    body = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": "word " * BODY_WORDS}]}
    with tempfile.TemporaryDirectory() as name, LoadServer(Pace(events, GAP_US, TTFT_US)) as server:
        folder = Path(name)
        (folder / "body.json").write_text(json.dumps(body, separators=(",", ":")))
        with front(server.port) as (port, processes):
            time.sleep(0.5)
            before = cpu_s(processes)
            client = [str(build("client.c")), "127.0.0.1", port, streams, 2 * streams, 1, stagger_us]
            client += [folder / "body.json", folder / "out.json", 0]
            subprocess.run([str(part) for part in client], check=True)
            used = cpu_s(processes) - before
        passed = server.counters().events
        failed = int(json.loads((folder / "out.json").read_text())["failed"])
        marks = np.fromfile(folder / "out.marks", np.int64).reshape(-1, 2)
    ends = np.flatnonzero(marks[:, 0] == -1)
    begins = np.concatenate(([0], ends[:-1] + 1))
    ttft_ms = (marks[begins, 1] - marks[ends, 1]) / 1e6
    p50, p99 = np.percentile(ttft_ms, [50, 99])
    return ProxyCost(float(p50), float(p99), used / passed * 1e6, failed)


def main() -> int:
    """Run all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()
    fronts: dict[str, Front] = {"direct": direct, "loadchaos record": recorder}
    if shutil.which("nginx"):
        fronts["nginx"] = nginx
    found: dict[str, list[ProxyCost]] = {name: [] for name in fronts}
    for _ in range(args.rounds):
        for name, front in fronts.items():
            found[name].append(trial(front, args.streams, args.seconds))
    print(f"{args.streams} streams, {args.rounds} rounds, load average {os.getloadavg()[0]:.1f}; medians of the rounds")
    print(f"{'':18}{'TTFT p50':>11}{'added':>9}{'TTFT p99':>11}{'added':>9}{'CPU a token':>13}{'failed':>8}")
    base50, base99 = (median(getattr(c, f) for c in found["direct"]) for f in ("ttft_p50_ms", "ttft_p99_ms"))
    for name, costs in found.items():
        p50, p99, cpu = (median(getattr(c, f) for c in costs) for f in ("ttft_p50_ms", "ttft_p99_ms", "cpu_us"))
        print(
            f"{name:18}{p50:8.2f} ms{p50 - base50:6.2f} ms{p99:8.2f} ms{p99 - base99:6.2f} ms{cpu:10.1f} us"
            f"{sum(c.failed for c in costs):8}"
        )
    if "nginx" in found:
        ours, theirs = (median(c.cpu_us for c in found[n]) for n in ("loadchaos record", "nginx"))
        print(f"CPU a token: {ours / theirs:.2f} times that of nginx")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
