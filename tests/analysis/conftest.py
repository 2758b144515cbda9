"""Hand-made histories of one server, row by row in time."""

import json
from collections.abc import Callable
from typing import Any, Self

import pytest

from loadchaos.analysis.state.machine import StateMachine
from loadchaos.core.model import Terms
from loadchaos.core.typed_json import from_json
from tests.rows import MS, S, judged
from tests.schemas import validate

Row = dict[str, Any]
MISS = """(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] Traceback (most recent call last):
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]   File "/x/vllm/v1/worker/gpu_model_runner.py", line 3203, in propose_draft_token_ids
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]     mm_embed_inputs = self._gather_mm_embeddings(
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]   File "/x/vllm/v1/worker/gpu_model_runner.py", line 2203, in _gather_mm_embeddings
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100]     assert encoder_output is not None, f"Encoder cache miss for {mm_hash}."
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] AssertionError: Encoder cache miss for 9f8a1c22d3e4f5a6.
(APIServer pid=300) ERROR 11-20 15:53:40 [async_llm.py:525] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."""  # noqa: E501 - log lines are as long as they are
TEXT_OF_DEATH = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class World:
    """Probes, scrapes, processes and heartbeats of one server.

    Change its attributes between calls of `run`, which lets time pass.
    """

    def __init__(self) -> None:
        self.now = 1_000 * S
        self.rows: list[Row] = []
        self.tcp = "ok"  # ok refused timeout
        self.health: int | str = 200  # or refused timeout
        self.body: str | None = None
        self.in_flight = 0
        self.tokens = 0
        self.waiting_tokens = 0  # planned prompt tokens of requests without a first token
        self.answers_at_once = False  # without a token: no request waits
        self._silent_from = self.now
        self.working = False  # the engine steps: its counters and its CPU time grow
        self.metrics = True
        self.gauges_stale = False
        self.start_time, self.tells_start_time = 1_700_000_000.0, True
        self.generated = 1000.0
        self.running = 0.0
        self.pids: dict[int, tuple[str, str]] = {}  # pid -> role, state
        self.cpu: dict[int, float] = {}

    def run(self, seconds: float) -> Self:
        """Let time pass: heartbeats and probes at 4 Hz, scrapes at 1 Hz."""
        for _ in range(round(seconds * 20)):
            self.now += 50 * MS
            tick = self.now // (50 * MS)
            if tick % 5 == 0:
                self._beat()
                self._probes()
            if self.working:
                self.generated += max(1, self.tokens)
                for pid in self.cpu:
                    self.cpu[pid] += 0.03
            if tick % 20 == 0:
                self._scrape()
                self._look()
        return self

    def add(self, row: str, **more: Any) -> Self:
        self.rows.append({"row": row, "at_ns": self.now, **more})
        return self

    def launch(self, pid: int = 9) -> Self:
        """The server is launched, for the first time or again."""
        return self.add("launch", what="start", replica="server", pid=pid, command=["vllm", "serve"])

    def exit(self, code: int | None = 0, signal: int | None = None, *, asked: bool = False, pid: int = 9) -> Self:
        """The launched process exits, by itself or as it was asked to."""
        how = "ended (asked)" if asked else f"exited with code {code}"
        reason = how if signal is None else f"was ended by signal {signal}"
        known = {"code": code if signal is None else None, "signal": signal, "reason": reason, "asked": asked}
        return self.add("launch", what="exit", replica="server", pid=pid, **known)

    def processes(self, engine: str = "S", api_server: str = "S") -> Self:
        """Processes of these states are seen from now on."""
        self.pids = {10: ("api_server", api_server), 11: ("engine_core", engine)}
        return self

    def refuse_probe(self, what: str = "tcp", replica: str = "server") -> Self:
        """One probe is refused; what follows decides whether that was chance."""
        refused = {"ok": False, "status": None, "error": "[Errno 111] Connection refused", "body": None}
        return self.add("probe", replica=replica, what=what, **refused)

    def part(self) -> Self:
        """The network loses all packets until `open`."""
        self.tcp = self.health = "timeout"
        return self

    def lose_process(self, pid: int = 11, role: str = "engine_core", name: str = "", state: str = "") -> Self:
        """A process of the server is gone."""
        gone = {"pid": pid, "role": role, "state": state, "name": name or "VLLM::EngineCore"}
        return self.add("process", replica="server", what="gone", **gone)

    def _beat(self) -> None:
        tokens = self.tokens if self.in_flight else 0
        silence = self.now - self._silent_from
        if tokens or not self.in_flight or self.answers_at_once:
            silence, self._silent_from = 0, self.now
        self.add(
            "heartbeat",
            in_flight=self.in_flight,
            tokens=tokens,
            file="requests-0",
            waiting_tokens=self.waiting_tokens,
            oldest_silence_ns=silence,
            stream_silences_ns=[silence] * min(3, self.in_flight) if silence else [],
        )

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
            "process_start_time_s": self.start_time if self.tells_start_time else None,
        }  # fmt: skip
        self.add("metrics", replica="server", engine="0", took_ns=MS, values=values)

    def _look(self) -> None:
        for pid, (role, state) in self.pids.items():
            cpu = self.cpu.setdefault(pid, 1.0)
            self.add(
                "process",
                replica="server",
                pid=pid,
                role=role,
                what="sample",
                state=state,
                cpu_s=cpu,
                rss_bytes=1,
                name=f"VLLM::{role}",
            )

    def serve(self, seconds: float, in_flight: int = 8) -> Self:
        """Answer requests in the ordinary way for a while."""
        self.in_flight, self.tokens, self.working = in_flight, 100, True
        return self.run(seconds)

    def stall(self, seconds: float) -> Self:
        """Requests are in flight and no tokens arrive."""
        self.tokens, self.working = 0, False
        return self.run(seconds)

    def idle(self, seconds: float) -> Self:
        """Nobody asks for anything."""
        self.in_flight, self.tokens, self.working = 0, 0, False
        return self.run(seconds)

    def close(self) -> Self:
        """The listener is closed and every request lost."""
        self.tcp = self.health = "refused"
        self.in_flight, self.tokens, self.working = 0, 0, False
        return self

    def open(self, *, restarted: bool = True) -> Self:
        """It listens and is healthy again, as a new process or the old one."""
        self.tcp, self.health = "ok", 200
        if restarted:
            self.start_time, self.generated = self.start_time + 100, 0.0
        return self


class History(World):
    """A whole run: rows of run, worker and log around those of `World`."""

    MISS, TEXT_OF_DEATH = MISS, TEXT_OF_DEATH

    def __init__(self) -> None:
        super().__init__()
        self.states = StateMachine("server")
        self.n = 0
        self.line = 0
        self.images = 0
        self.rows.append({"row": "header", "schema": 1, "mono_ns": self.now, "utc_ns": 1_790_000_000 * S})
        self.drafts = 0.0

    def add(self, row: str, **more: Any) -> Self:
        """A row, and the state rows that it gives."""
        if row == "metrics":
            more["values"] |= {"spec_drafts_total": self.drafts}
        super().add(row, **more)
        if row != "state":
            self.rows += [dict(r) for r in self.states.changes_after(self.rows[-1])]
        return self

    def begin(self, **more: Any) -> Self:
        """From the first row to the start of the load, with a healthy server."""
        target = {"kind": "embedded", "url": "http://127.0.0.1:1"}
        self.add("run", what="begin", profile="test", version="0.1", seed=1, target=target)
        self.launch().idle(1)
        if more:
            self.add("facts", facts={"base_url": "", "admin_url": "", "dialect": "vllm", "version": "0.18.0", **more})
        self.add("run", what="load_begin").add("locust", what="start", pid=10)
        return self.add("load", what="begin", file="requests-0")

    def send(self, n: int = 1, traffic: str = "text", **more: Any) -> list[str]:
        ids = [f"{traffic}-{self.n + i}" for i in range(n)]
        for id_ in ids:
            self.n += 1
            base = {
                "id": id_, "step": self.n, "phase": 0, "round": 0, "traffic": traffic, "due_ns": self.now, "tokens": 100,
                "images": self.images, "expect": ["ok"], "edge": None,
            }  # fmt: skip
            self.add("begin", **{**base, **more})
            self.sent = self.now
        return ids

    def answer(self, ids: list[str], outcome: str = "ok", took_s: float = 0.5, **more: Any) -> Self:
        """End requests, each sent `took_s` ago."""
        for id_ in ids:
            sent = self.now - round(took_s * S)
            ok = (
                {"first_token_ns": sent + S // 10, "last_byte_ns": self.now, "itl_hist": {"100": 5}}
                if outcome == "ok"
                else {}
            )
            base = {
                "id": id_, "step": 1, "phase": 0, "traffic": id_.split("-")[0], "due_ns": sent, "sent_ns": sent,
                "outcome": outcome, "status": 200, "expect": ["ok"], "images": self.images, "planned_tokens": 100,
                "error": None, "edge": None, "length_mismatch": False,
            }  # fmt: skip
            self.add("end", **{**base, **ok, **more})
        return self

    def work(self, seconds: float = 10, rate: int = 10, traffic: str = "text") -> Self:
        """Serve `rate` requests a second, all ok."""
        for _ in range(round(seconds * 2)):
            ids = self.send(rate // 2, traffic)
            self.serve(0.5)
            self.drafts += 1
            self.answer(ids)
        return self

    def log(self, text: str) -> Self:
        for line in text.splitlines():
            self.line += 1
            self.add("log", source="server.log", file="server.log", line=self.line, text=line)
        return self

    def die(self, ids: list[str], *, code: int = 0, signal: int | None = None) -> Self:
        """Die as vLLM does: streams fail, the listener closes, the process exits."""
        self.answer(
            ids, "stream_error", error="EngineCore encountered an issue. See stack trace (above) for the root cause."
        )
        return self.close().run(1).exit(code, signal)

    def miss(self, n: int = 3, traffic: str = "text") -> Self:
        """An encoder cache miss ends the server while it computes so many requests."""
        ids = self.send(n, traffic)
        return self.serve(0.2).log(self.MISS).die(ids)

    def end_load(self) -> Self:
        self.add("load", what="end", why="done", file="requests-0").add("locust", what="exit", pid=10, code=0)
        return self.add("run", what="load_end")

    def end(self, **more: Any) -> Self:
        """The load ends, what we started is stopped, the record closes."""
        self.in_flight = 0
        self.end_load()
        if self.tcp == "ok":
            self.exit(asked=True)
        return self.add("run", what="end", **more)

    def attacked(self, name: str, effects: list[str], **more: Any) -> Self:
        """An attack that began and ended, as run writes it."""
        base = {"attack": name, "n": 1, "replica": "server", "effects": effects, "status": None, "text": "", **more}
        return self.add("attack", what="begin", ok=None, **base).add("attack", what="end", ok=True, **base)

    def verdict(self, **terms: Any) -> Row:
        """The verdict; every one that any test makes must fit the schema."""
        verdict = judged(from_json(Terms, {"profile": "test", **terms}), self.rows)
        validate(verdict)
        json.dumps(verdict)
        return verdict

    @staticmethod
    def decision(verdict: Row, name: str) -> str:
        """The verdict of the check or expectation of a name; empty where there is none."""
        return next((c["verdict"] for c in [*verdict["checks"], *verdict["expectations"]] if c["name"] == name), "")

    @staticmethod
    def unknowns(verdict: Row) -> set[str]:
        """The names of checks and expectations that proved nothing."""
        return {c["name"] for c in [*verdict["checks"], *verdict["expectations"]] if c["verdict"] == "unknown"}


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def make_history() -> Callable[[], History]:
    return History


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_world() -> Callable[[], World]:
    return World
