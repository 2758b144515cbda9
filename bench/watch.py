"""Measure what `loadchaos watch` costs: its processes while nothing happens, and its proxy before a server.

    python -m bench.watch idle [--seconds 60]     CPU, memory and wake-ups of the processes of an idle service
    python -m bench.watch proxy [--seconds 10]    time to first token and CPU a request, with and without the proxy

The server is the embedded one. Both kinds of request of `proxy` go by turns in one run, so that the load of the machine
is the same for both: the ratios count.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import psutil

from bench.record import free_port, wait_for

_MB = 1 << 20
_BODY = {"model": "sim", "stream": True, "max_tokens": 24, "messages": [{"role": "user", "content": "Say some words."}]}
_STREAMS = 4


@contextmanager
def started(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "loadchaos", *words], stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def simulated(folder: Path) -> Iterator[tuple[str, Path]]:
    """An embedded server: its URL and its log."""
    port, log = free_port(), folder / "sim.log"
    with started("sim", "--port", str(port), log=log) as process:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}", log


def _tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _name(process: psutil.Process) -> str:
    words = [word for word in process.cmdline() if not word.startswith("-")]
    return " ".join(words[1:3]) if "loadchaos" in words[1:2] else words[1] if len(words) > 1 else process.name()


def idle(folder: Path, seconds: float, settle_s: float) -> Mapping[str, tuple[float, float, float]]:
    """By process of an idle service: CPU in cores, memory (Pss) in MB, voluntary wake-ups a second."""
    with simulated(folder) as (url, log):
        words = ["--target", url, "--server-log", str(log), "--healthz", f"127.0.0.1:{free_port()}"]
        with started(
            "watch",
            "--service",
            *words,
            "--out",
            str(folder / "runs"),
            "--exporter-port",
            "0",
            log=folder / "service.log",
        ) as service:
            time.sleep(settle_s)
            processes = _tree(service.pid)
            before = {p.pid: (_cpu_s(p), p.num_ctx_switches().voluntary) for p in processes}
            begun_s = time.monotonic()
            time.sleep(seconds)
            passed_s = time.monotonic() - begun_s
            return {
                f"{_name(p)} ({p.pid})": (
                    (_cpu_s(p) - before[p.pid][0]) / passed_s,
                    p.memory_full_info().pss / _MB,
                    (p.num_ctx_switches().voluntary - before[p.pid][1]) / passed_s,
                )
                for p in processes
            }


def _ask(port: int) -> float:
    """Send one request on a connection of its own; the time to its first token in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    begun_s = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(_BODY), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    first_s = 0.0
    for line in answer:
        if not first_s and b'"content":"' in line and b'"content":""' not in line:
            first_s = time.perf_counter() - begun_s
    connection.close()
    return first_s


def proxy(folder: Path, seconds: float) -> tuple[list[float], list[float], float]:
    """Times to first token without and with the proxy, by turns; CPU of the proxy's processes a request that passed it."""
    with simulated(folder) as (url, log):
        port = free_port()
        listen = f"127.0.0.1:{port}"
        options = ("--no-live", "--exporter-port", "0", "--out", str(folder / "runs"))
        words = ("--target", url, "--server-log", str(log), "--listen", listen, *options)
        with started("watch", *words, log=folder / "watch.log") as watch:
            wait_for(port, watch)
            times: tuple[list[float], list[float]] = ([], [])
            end_s = time.monotonic() + seconds
            server_port = int(url.rpartition(":")[2])

            def ask_by_turns(first: int) -> None:
                number = first
                while time.monotonic() < end_s:
                    number += 1
                    times[number % 2].append(_ask((server_port, port)[number % 2]))

            time.sleep(2)
            proxies = [p for p in _tree(watch.pid) if "proxy_load" in " ".join(p.cmdline())]
            before_s = sum(_cpu_s(q) for p in proxies for q in _tree(p.pid))
            clients = [threading.Thread(target=ask_by_turns, args=(n,)) for n in range(_STREAMS)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            cpu_s = sum(_cpu_s(q) for p in proxies for q in _tree(p.pid)) - before_s
            return times[0], times[1], cpu_s / max(1, len(times[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["idle", "proxy"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--settle", type=float, default=30, help="seconds before the measurement of idle")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {args.seconds:.0f} s")
    with tempfile.TemporaryDirectory(prefix="bench-watch-") as place:
        if args.what == "idle":
            found = idle(Path(place), args.seconds, args.settle)
            found = {**found, "all": tuple(sum(column) for column in zip(*found.values(), strict=True))}
            for name, (cores, mb, wakes) in found.items():
                print(f"{name:60} {cores:7.2%} of a core {mb:7.1f} MB {wakes:7.1f} wake-ups/s")
            return
        direct, through, cpu_s = proxy(Path(place), args.seconds)
    for label, at in (("p50", 49), ("p99", 98)):
        before_s, after_s = (quantiles(times, n=100)[at] for times in (direct, through))
        both = f"{before_s * 1e3:.1f} ms without, {after_s * 1e3:.1f} ms with the proxy"
        print(f"TTFT {label}: {both}: {after_s / before_s:.2f} times")
    print(f"CPU of the proxy, its rows and its recording: {cpu_s * 1e3:.1f} ms a request of 24 tokens")
    print(f"{len(direct)} requests without, {len(through)} with the proxy; medians differ by "
          f"{(median(through) - median(direct)) * 1e3:.1f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
