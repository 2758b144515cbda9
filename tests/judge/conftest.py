"""Hand-made histories: a server seen by probes, scrapes, processes and our own heartbeats, row by row in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

S = 1_000_000_000
MS = 1_000_000
Row = dict[str, Any]


class World:
    """What instruments would see of one server. Change its attributes between calls of `run`, and time goes on."""

    def __init__(self) -> None:
        self.now = 1_000 * S
        self.rows: list[Row] = []
        self.tcp = "ok"  # ok refused timeout
        self.health: int | str = 200  # or refused timeout
        self.body: str | None = None
        self.in_flight = 0
        self.tokens = 0
        self.working = False  # the engine steps: its counters and its CPU time grow
        self.metrics = True
        self.gauges_stale = False
        self.start_time = 1_700_000_000.0
        self.generated = 1000.0
        self.running = 0.0
        self.pids: dict[int, tuple[str, str]] = {}  # pid -> role, state
        self.cpu: dict[int, float] = {}

    def run(self, seconds: float) -> World:
        """Let `seconds` pass: heartbeats and probes at 4 Hz, scrapes and processes at 1 Hz."""
        for _ in range(round(seconds * 20)):
            self.now += 50 * MS
            tick = self.now // (50 * MS)
            if tick % 5 == 0:
                self.add(
                    "heartbeat",
                    in_flight=self.in_flight,
                    tokens=self.tokens if self.in_flight else 0,
                    file="requests-0",
                )
                self._probes()
            if self.working:
                self.generated += max(1, self.tokens)
                for pid in self.cpu:
                    self.cpu[pid] += 0.03
            if tick % 20 == 0:
                self._scrape()
                self._look()
        return self

    def add(self, row: str, **more: Any) -> None:
        self.rows.append({"row": row, "at_ns": self.now, **more})

    def _probes(self) -> None:
        for what, says in (("tcp", self.tcp), ("health", self.health)):
            probe = {"replica": "server", "what": what, "took_ns": MS, "status": None, "error": None, "body": None}
            if says in ("ok", 200):
                probe |= {"ok": True, "status": 200 if what == "health" else None}
            elif isinstance(says, int):
                probe |= {"ok": False, "status": says, "body": self.body or ""}
            else:
                probe |= {"ok": False, "error": "Connection refused" if says == "refused" else "timed out"}
            self.add("probe", **probe)

    def _scrape(self) -> None:
        if not self.metrics or self.tcp != "ok" or self.health in ("refused", "timeout"):
            return
        if not self.gauges_stale:
            self.running = float(self.in_flight)
        values = {
            "requests_running": self.running, "requests_waiting": 0.0, "generation_tokens_total": self.generated,
            "process_start_time_s": self.start_time,
        }  # fmt: skip
        self.add("metrics", replica="server", engine="0", took_ns=MS, values=values)

    def _look(self) -> None:
        for pid, (role, state) in self.pids.items():
            cpu = self.cpu.setdefault(pid, 1.0)
            self.add(
                "process", replica="server", pid=pid, role=role, what="sample", state=state, cpu_s=cpu, rss_bytes=1,
                name=f"VLLM::{role}",
            )  # fmt: skip

    def serve(self, seconds: float, in_flight: int = 8) -> World:
        """Answer requests in the ordinary way for a while."""
        self.in_flight, self.tokens, self.working = in_flight, 100, True
        return self.run(seconds)

    def stall(self, seconds: float) -> World:
        """Requests are out and nothing comes back, though the engine says nothing of it."""
        self.tokens, self.working = 0, False
        return self.run(seconds)

    def idle(self, seconds: float) -> World:
        """Nobody asks for anything."""
        self.in_flight, self.tokens, self.working = 0, 0, False
        return self.run(seconds)

    def close(self) -> World:
        """The listener is closed and every request lost."""
        self.tcp = self.health = "refused"
        self.in_flight, self.tokens, self.working = 0, 0, False
        return self

    def open(self, *, restarted: bool = True) -> World:
        """It listens and is healthy again, as a new process or the old one."""
        self.tcp, self.health = "ok", 200
        if restarted:
            self.start_time, self.generated = self.start_time + 100, 0.0
        return self


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_world() -> Callable[[], World]:
    return World


@pytest.fixture
def clock() -> Iterator[int]:
    return iter(range(0, 1 << 60, S))
