"""Measure the cost of workers on other machines for their master.

Usage: python -m bench.master [--workers 10 50 100] [--rate 20] [--for 20]

The master is the real one: a Locust process with our Coordinator, its port and its files. Workers are simulated, many
in one process: each speaks Locust's protocol over its own connection and sends what a real worker sends: pings,
heartbeats, statistics and rows (real rows of `rate` requests a second), compressed and acknowledged. Measured are the
master's messages, bytes and CPU while all workers send, and how long rows take to be acknowledged.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]  # Locust brings it; it ships no types
import psutil
import zmq

from loadchaos.core.ledger.rows import BeginRow, EndRow
from loadchaos.load.cluster import messages
from loadchaos.load.cluster.worker_link import PING_S, SHIP_S

LOCUSTFILE = Path(messages.__file__).parents[1] / "locustfile.py"
HEARTBEAT_S, STATS_S = 1.0, 3.0  # Locust's own


def rows(worker: int, number: int, requests: int) -> bytes:
    """Build the rows that a worker writes for that many requests."""
    found: list[BeginRow | EndRow] = []
    for n in range(requests):
        request_id = f"lc-8d83d4-{worker * 100000 + number * 1000 + n}"
        found += [_begin_row(request_id, n), _end_row(request_id, n)]
    return b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in found)


def _begin_row(request_id: str, n: int) -> BeginRow:
    now = time.monotonic_ns()
    return {
        "row": "begin",
        "id": request_id,
        "step": n,
        "phase": 0,
        "round": 0,
        "traffic": "text",
        "at_ns": now,
        "due_ns": now - 7,
        "conn": n % 64,
        "reused": True,
        "len": 1200 + n,
        "hash": f"{n:016x}",
        "tokens": 300 + n,
        "images": 0,
        "image_tokens": 0,
        "max_tokens": 256,
        "behaviour": "plain",
        "expect": ["ok"],
        "edge": None,
        "seed": hash(request_id),
        "fitted": "",
    }


def _end_row(request_id: str, n: int) -> EndRow:
    now = time.monotonic_ns()
    return {
        "row": "end",
        "id": request_id,
        "step": n,
        "phase": 0,
        "traffic": "text",
        "at_ns": now,
        "due_ns": now - 7,
        "sent_ns": now,
        "outcome": "ok",
        "status": 200,
        "first_byte_ns": now,
        "first_token_ns": now,
        "first_answer_ns": now,
        "last_byte_ns": now,
        "chunks": 128,
        "itl_hist": {900 + k: k for k in range(12)},
        "largest_gap_ns": 9 * n,
        "finish_reason": "stop",
        "prompt_tokens": 300 + n,
        "completion_tokens": 128,
        "cached_tokens": None,
        "request_id": f"chatcmpl-{request_id}",
        "error": None,
        "error_code": None,
        "detail": {},
        "evidence": [],
        "bytes_in": 30000 + n,
        "bytes_out": 1400,
        "expect": ["ok"],
        "planned_tokens": 300 + n,
        "length_mismatch": False,
        "images": 0,
        "image_tokens": 0,
        "edge": None,
        "exact_tokens": None,
    }


@dataclass
class Worker:
    """One simulated worker."""

    number: int
    socket: Any
    client: str
    token: str
    place: int = -1
    sent: int = 0
    acked: int = 0
    shipped_at: dict[int, float] = field(default_factory=dict)


class Crowd:
    """All simulated workers in this thread, over ZeroMQ sockets."""

    def __init__(self, n: int, port: int, rate: float) -> None:
        context: Any = zmq.Context.instance()
        self.rate, self.messages, self.bytes, self.waits = rate, 0, 0, list[float]()
        self.poller = zmq.Poller()
        self.workers = []
        for i in range(n):
            s = context.socket(zmq.DEALER)
            client = f"sim{i}_{os.getpid()}"
            s.setsockopt(zmq.IDENTITY, client.encode())
            s.connect(f"tcp://127.0.0.1:{port}")
            self.poller.register(s, zmq.POLLIN)
            self.workers.append(Worker(i, s, client, f"t{i}"))
        self.by_socket = {w.socket: w for w in self.workers}

    def send(self, worker: Worker, kind: str, data: Any) -> None:
        """Send one message to the master and count it."""
        packed = msgpack.dumps((kind, data, worker.client))
        self.messages += 1
        self.bytes += len(packed)
        worker.socket.send(packed)

    def join(self, limit_s: float) -> None:
        """Let every worker ask for a place and report that it is there."""
        until = time.monotonic() + limit_s
        while any(w.place < 0 for w in self.workers):
            assert time.monotonic() < until, "the master did not take all"
            for w in self.workers:
                if w.place < 0:
                    self.send(
                        w, messages.Hello.KIND, {"token": w.token, "host": "sim", "versions": messages.versions()}
                    )
            self.listen(1.0)
        for w in self.workers:
            self.send(w, "client_ready", messages.versions()["locust"])
            self.ping(w)

    def ping(self, w: Worker) -> None:
        """Send a ping, for clock and orders."""
        self.send(
            w, messages.Ping.KIND, {"mine_ns": time.monotonic_ns(), "commands": 0, "slot": w.place, "token": w.token}
        )

    def listen(self, seconds: float) -> None:
        """Handle messages of the master for a while."""
        until = time.monotonic() + seconds
        left = seconds
        while left >= 0:  # once at least: who is behind must hear, too
            for s, _ in self.poller.poll(int(left * 1000)):
                worker = self.by_socket[s]
                kind, data, _ = msgpack.loads(s.recv())
                if kind == messages.Welcome.KIND:
                    worker.place = data["slot"]
                elif kind == messages.Ack.KIND:
                    worker.acked = data["received"]
                    if (at := worker.shipped_at.pop(worker.acked, None)) is not None:
                        self.waits.append(time.monotonic() - at)
            left = until - time.monotonic() if seconds else -1.0

    def work(self, seconds: float) -> None:
        """Do what workers do, each at its own moment of each interval."""
        begin = time.monotonic()
        due: list[tuple[float, int, str, float]] = []
        for w in self.workers:
            part = w.number / len(self.workers)
            for what, every in (("ship", SHIP_S), ("ping", PING_S), ("heartbeat", HEARTBEAT_S), ("stats", STATS_S)):
                due.append((begin + part * every, w.number, what, every))
        due.sort()
        piece = {w.number: rows(w.number, 0, max(1, round(self.rate * SHIP_S))) for w in self.workers}
        while time.monotonic() - begin < seconds:
            at, number, what, every = due.pop(0)
            self.listen(max(0.0, at - time.monotonic()))
            self.do(self.workers[number], what, piece[number])
            bisect.insort(due, (at + every, number, what, every))

    def do(self, w: Worker, what: str, piece: bytes) -> None:
        """Do one of the things that a worker does."""
        if what == "ship":
            self.send(
                w,
                messages.RowPiece.KIND,
                {
                    "offset": w.sent,
                    "rows": messages.compress(piece),
                    "sent_ns": time.monotonic_ns(),
                    "slot": w.place,
                    "token": w.token,
                },
            )
            w.sent += len(piece)
            w.shipped_at[w.sent] = time.monotonic()
        elif what == "ping":
            self.ping(w)
        elif what == "heartbeat":
            state = {"state": "running", "current_cpu_usage": 20.0, "current_memory_usage": 90_000_000}
            self.send(w, "heartbeat", state)
        else:
            times = {50 + k: k + 1 for k in range(30)}
            entry = {
                "name": "text", "method": "POST", "last_request_timestamp": time.time(), "start_time": time.time(),
                "num_requests": round(self.rate * STATS_S), "num_none_requests": 0, "num_failures": 0,
                "total_response_time": 900.0, "max_response_time": 90.0, "min_response_time": 40.0,
                "total_content_length": 90000, "response_times": times, "num_reqs_per_sec": {int(time.time()): 20},
                "num_fail_per_sec": {},
            }  # fmt: skip
            stats = {"stats": [entry], "stats_total": {**entry, "name": "Aggregated", "method": ""}, "errors": {},
                     "user_classes_count": {"Worker": 1}, "user_count": 1}  # fmt: skip
            self.send(w, "stats", stats)

    def done(self) -> None:
        """End the load."""
        self.listen(2.0)
        for w in self.workers:
            self.send(w, messages.Done.KIND, {"why": "done", "size": w.sent, "slot": w.place, "token": w.token})


def measure(workers: int, rate: float, seconds: float) -> dict[str, Any]:
    """Measure one master with that many workers; figures are per second."""
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        folder = Path(home)
        profile = {
            "name": "b",
            "traffic": [{"name": "text", "payload": {"text": {"tokens": 64}}}],
            "load": [{"users": workers, "for": "1h"}],
        }
        plan = {"profile": profile, "seed": 1, "base_url": "http://127.0.0.1:1", "api_key_env": None, "headers": {},
                "folder": home, "workers": workers}  # fmt: skip
        facts = {"base_url": "http://127.0.0.1:1", "admin_url": "http://127.0.0.1:1", "dialect": "vllm", "model": "m"}
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "facts.json").write_text(json.dumps(facts))
        argv = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--master",
                "--expect-workers", str(workers), "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port),
                "--loglevel", "WARNING"]  # fmt: skip
        env = {**os.environ, "LOADCHAOS_PLAN": str(folder / "plan.json"), "LOADCHAOS_WAIT_FOR_WORKERS_S": "120"}
        with (folder / "locust.log").open("wb") as log:
            master = subprocess.Popen(argv, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        crowd = Crowd(workers, port, rate)
        try:
            crowd.join(120)
            crowd.work(PING_S)  # all are here and in step
            process = psutil.Process(master.pid)
            before, cpu, sent, size = time.monotonic(), sum(process.cpu_times()[:2]), crowd.messages, crowd.bytes
            crowd.waits.clear()
            crowd.work(seconds)
            took = time.monotonic() - before
            used, rss = sum(process.cpu_times()[:2]) - cpu, process.memory_info().rss
            found = {
                "workers": workers, "requests_per_s": workers * rate, "messages_per_s": (crowd.messages - sent) / took,
                "kb_per_s": (crowd.bytes - size) / took / 1000, "cpu_percent": 100 * used / took, "rss_mb": rss / 2**20,
                "ack_ms_p50": 1000 * statistics.median(crowd.waits), "ack_ms_max": 1000 * max(crowd.waits),
            }  # fmt: skip
            crowd.done()
            code = master.wait(30)
            written = sum(p.stat().st_size for p in folder.glob("requests-[0-9]*.jsonl"))
            found["lost_bytes"] = sum(w.sent for w in crowd.workers) - written
            assert code == 0, (folder / "locust.log").read_text()
            return found
        finally:
            if master.poll() is None:
                master.kill()
                master.wait()


def main() -> None:
    """Measure and print a table; one process per number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second and worker")
    parser.add_argument("--for", dest="seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for n in options.workers:
        found = measure(n, options.rate, options.seconds)
        print(json.dumps(found) if options.json else "  ".join(f"{k} {v:,.1f}" for k, v in found.items()), flush=True)


if __name__ == "__main__":
    main()
