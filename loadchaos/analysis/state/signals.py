"""Signals about a server: own traffic, network, processes, counters.

Each class folds one kind of row and answers questions about a moment `now_ns`; none decides the state (machine.py
does). Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import cache

from loadchaos.core.http_answer import web_page
from loadchaos.core.ledger.rows import (
    AttackRow,
    CanaryRow,
    EndRow,
    HeartbeatRow,
    LastQuestionRow,
    MetricsRow,
    ProbeRow,
    ProcessRow,
)
from loadchaos.core.model import Outcome
from loadchaos.core.units import NS_PER_MS, NS_PER_S
from loadchaos.server.dialects import any_server

PROGRESS = ("iterations_total", "generation_tokens_total", "prompt_tokens_total")
"""Counters that grow while a server works."""

_BROKEN = frozenset({"http_error", "stream_error", "finish_error", "finish_abort", "truncated", "reset"})
"""Outcomes of a request whose engine is gone, whatever its error text."""
MODEL_TEXT: frozenset[Outcome] = frozenset({"finish_error", "wrong_output", "protocol_error"})
"""Outcomes whose text may be what the model wrote: it is never evidence of a death."""
_HEARTBEAT_FRESH_NS = 2 * NS_PER_S


def says_engine_dead(text: str) -> bool:
    return any(p.search(text) for p in _engine_dead())


@cache
def _engine_dead() -> tuple[re.Pattern[str], ...]:
    return any_server(lambda d: d.engine_dead)


def may_be_quoted(outcome: str, status: int | None) -> bool:
    """True for an answer whose text is no evidence of a death: the model wrote it, or a refusal quotes the request."""
    return outcome in MODEL_TEXT or 400 <= (status or 0) < 500


class TrafficSignals:
    """Our own requests: how many are in flight, and the newest token. The first sign of progress."""

    def __init__(self) -> None:
        self._workers: dict[str, tuple[int, int, int]] = {}  # in flight, at_ns, tokens since the heartbeat before
        self._silences: dict[str, int | None] = {}  # by worker, the longest silence of a request; None: not told
        self.busy_since_ns: int | None = None
        self.last_token_ns: int | None = None
        self.dead_text_ns: int | None = None  # first answer that names a dead engine, without a sign of life since
        self.dead_texts = 0
        self.outlived_text = False  # such an answer came before, and the server worked on: another one says little
        self.failed_after_text = 0  # requests sent after the first such answer that failed as well
        self.broken: deque[tuple[int, int]] = deque(
            maxlen=2
        )  # end, begin of failed requests without a good answer since
        self._canaries: dict[int, int] = {}  # unanswered ones: number, and since when; 0: the question after the load

    def canary(self, row: CanaryRow | LastQuestionRow) -> bool:
        number = row["n"] if row["row"] == "canary" else 0
        if row.get("what") == "ask":
            self._canaries[number] = row["at_ns"]
            return False
        asked_ns = self._canaries.pop(number, None)
        if row.get("status") != 200:
            return False
        self._answered(asked_ns)
        self.last_token_ns = max(self.last_token_ns or 0, row["at_ns"])
        return True

    @property
    def last_question_waits(self) -> bool:
        return 0 in self._canaries

    def canary_since(self) -> int | None:
        return min(self._canaries.values(), default=None)

    def on_heartbeat(self, row: HeartbeatRow) -> bool:
        at_ns = row["at_ns"]
        tokens = int(row.get("tokens") or 0)
        worker = str(row.get("file", row.get("worker", "")))
        self._workers[worker] = (int(row.get("in_flight") or 0), at_ns, tokens)
        oldest_ns = row.get("oldest_silence_ns")
        self._silences[worker] = (
            oldest_ns if oldest_ns is None else max([oldest_ns, *row.get("stream_silences_ns", ())])
        )
        self._settle(at_ns)
        if tokens > 0:
            self.last_token_ns = at_ns
            return True
        return False

    def on_end(self, row: EndRow) -> bool:
        if row.get("outcome") == "ok":
            self.last_token_ns = max(self.last_token_ns or 0, row["at_ns"])
            self.broken.clear()
            self._answered(row.get("sent_ns"))
            return True
        if row.get("outcome") in _BROKEN:
            sent_ns = row.get("sent_ns") or row["at_ns"]
            self.broken.append((row["at_ns"], sent_ns))
            self.failed_after_text += self.dead_text_ns is not None and sent_ns > self.dead_text_ns
        quoted = may_be_quoted(row["outcome"], row.get("status"))
        if not quoted and says_engine_dead(str(row.get("error") or "")):
            self.dead_text_ns = self.dead_text_ns or row["at_ns"]
            self.dead_texts += 1
        return False

    def _answered(self, sent_ns: int | None) -> None:
        if self.dead_text_ns is not None and sent_ns is not None and sent_ns > self.dead_text_ns:
            self.outlive_text()

    def outlive_text(self) -> None:
        """Forget answers that name a dead engine: the server worked after them."""
        self.forget_death()
        self.outlived_text = True

    def all_fail(self, now_ns: int) -> bool:
        """True when the newest requests failed and no token arrives."""
        return len(self.broken) == 2 and self.silent_since(self.broken[0][0], now_ns)

    def waits_since(self, ns: int, now_ns: int) -> bool:
        """True when a request in flight has waited since `ns`, or may have."""
        return self.in_flight(now_ns) > 0 and self.waiting_since(now_ns) <= ns

    def in_flight(self, now_ns: int) -> int:
        return sum(n for n, at_ns, _ in self._workers.values() if now_ns - at_ns <= _HEARTBEAT_FRESH_NS)

    def waiting_since(self, now_ns: int) -> int:
        """Begin of the longest silence of a request in flight; 0: unknown. Requests that are answered at once, without
        a token, do not wait.
        """
        begins = [
            0 if (silence_ns := self._silences[worker]) is None else at_ns - silence_ns
            for worker, (n, at_ns, _) in self._workers.items()
            if n and now_ns - at_ns <= _HEARTBEAT_FRESH_NS
        ]
        return min(begins, default=0)

    def silent_since(self, ns: int, now_ns: int) -> bool:
        fresh = [
            (at_ns, tokens) for _, at_ns, tokens in self._workers.values() if now_ns - at_ns <= _HEARTBEAT_FRESH_NS
        ]
        return all(at_ns >= ns and tokens == 0 for at_ns, tokens in fresh)

    def forget_death(self) -> None:
        self.dead_text_ns, self.dead_texts, self.failed_after_text = None, 0, 0

    def _settle(self, now_ns: int) -> None:
        if self.in_flight(now_ns) == 0:
            self.busy_since_ns = None
        elif self.busy_since_ns is None:
            self.busy_since_ns = now_ns


class NetworkSignals:
    """Probes of the address: connected, refused, silent; and /health."""

    def __init__(self) -> None:
        self.last_ok_ns: int | None = None
        self.health_ok_ns: int | None = None
        self.tcp_ok_ns: int | None = None
        self.refused_ns: tuple[int, int, int] | None = None  # first, newest, how many in a row
        self.silent_ns: dict[str, tuple[int, int, int]] = {}  # the same per kind of probe that got no answer at all
        self.unhealthy_ns: tuple[int, int, int] | None = None
        self.unhealthy_status: int | None = None
        self.unhealthy_body = ""
        self.page = "/health"
        """Page that tells the health: another one where the server has no /health."""

    def on_probe(self, row: ProbeRow) -> None:
        at_ns, what = row["at_ns"], str(row.get("what"))
        self.page = str(row.get("path") or self.page)
        if row.get("ok"):
            self._reached(at_ns, what)
            if what == "health":
                self.health_ok_ns, self.unhealthy_ns, self.unhealthy_status = at_ns, None, None
            else:
                self.tcp_ok_ns = at_ns
        elif row.get("status") is not None:  # it answered, but not healthy
            self._reached(at_ns, what)
            self.unhealthy_ns = _again(self.unhealthy_ns, at_ns)
            self.unhealthy_status, self.unhealthy_body = row["status"], str(row.get("body") or "")
        elif "refused" in str(row.get("error") or "").lower():
            self.refused_ns = _again(self.refused_ns, at_ns)
            self.silent_ns.clear()
        else:
            self.silent_ns[what] = _again(self.silent_ns.get(what), at_ns)

    def scraped(self, at_ns: int) -> None:
        self.last_ok_ns = max(self.last_ok_ns or 0, at_ns)
        self.silent_ns.pop("tcp", None)

    def refused_twice(self) -> bool:
        return self.refused_ns is not None and self.refused_ns[1] - self.refused_ns[0] >= 50 * NS_PER_MS

    def says_dead(self, knows_death: bool) -> bool:
        """True when /health shows a dead engine. By its text, or by an empty 500 or 503 where that means it."""
        if self.unhealthy_ns is None or self.unhealthy_status not in (500, 503):
            return False
        if any(p.search(self.unhealthy_body) for p in any_server(lambda d: d.health_dead)):
            return True
        return knows_death and not self.unhealthy_body.strip()

    @property
    def unhealthy_text(self) -> str:
        words = web_page(self.unhealthy_status, self.unhealthy_body)
        return f"{self.page} returns {self.unhealthy_status}" + ("" if words is None else f", a web page: {words!r}")

    def says_hung(self) -> bool:
        """True when /health reports a hung engine (LMDeploy 0.14 and later)."""
        return self.unhealthy_ns is not None and any(
            p.search(self.unhealthy_body) for p in any_server(lambda d: d.health_hung)
        )

    def silent_since(self) -> int | None:
        """Time since when every kind of probe is unanswered. Twice or more and none refused; None if any answers."""
        if not self.silent_ns or self.refused_ns is not None:
            return None
        kinds = {"health": self.health_ok_ns, "tcp": self.tcp_ok_ns}
        for kind, ok_ns in kinds.items():
            streak = self.silent_ns.get(kind)
            if streak is None:
                if ok_ns is not None:
                    return None  # this kind has worked before and has not failed since
            elif streak[2] < 2:
                return None
        return max(first for first, _, _ in self.silent_ns.values())

    def _reached(self, at_ns: int, what: str) -> None:
        self.last_ok_ns = at_ns
        self.refused_ns = None
        self.silent_ns.pop(what, None)


def _again(streak: tuple[int, int, int] | None, at_ns: int) -> tuple[int, int, int]:
    return (at_ns, at_ns, 1) if streak is None else (streak[0], at_ns, streak[2] + 1)


@dataclass
class _Process:
    role: str
    name: str
    state: str = ""
    stopped_ns: int | None = None
    seen_ns: int = 0
    cpu: tuple[int, float] | None = None


class ProcessSignals:
    """Local processes of the server: stopped, without CPU use, or gone."""

    def __init__(self) -> None:
        self._alive: dict[int, _Process] = {}
        self.gone: list[tuple[int, int, str, str]] = []  # at_ns, pid, role, name
        self._busy_ns = 0  # when something behind the API server last used CPU, or ended
        self._api_busy_ns = 0
        self.engine_seen_ns = 0  # when the newest engine core was first seen

    def on_process(self, row: ProcessRow) -> None:
        at_ns, pid, role = row["at_ns"], int(row["pid"]), str(row.get("role", "other"))
        if row.get("what") == "gone":
            was = self._alive.pop(pid, None)
            role = was.role if was and role == "other" else role
            self._busy_ns = at_ns
            self.gone.append((at_ns, pid, role, str(row.get("name") or (was.name if was else ""))))
            return
        if pid not in self._alive:
            self._alive[pid] = _Process(role, str(row.get("name") or ""))
            if role == "engine_core":
                self.engine_seen_ns = at_ns
        process = self._alive[pid]
        was_ready = process.state == "R"
        process.role, process.state, process.seen_ns = role, str(row.get("state") or ""), at_ns
        stopped = process.state in ("T", "t")
        process.stopped_ns = (process.stopped_ns or at_ns) if stopped else None
        if process.state == "Z":
            self._alive.pop(pid)
            if all(pid != known for _, known, _, _ in self.gone):  # a zombie is reported again until it is reaped
                self.gone.append((at_ns, pid, role, process.name))
        elif row.get("cpu_s") is not None:
            self._worked(process, at_ns, float(row["cpu_s"]))
            if was_ready and process.state == "R" and role != "api_server":
                self._busy_ns = at_ns  # ready but without a processor: not idle

    def stopped(self) -> tuple[int, str] | None:
        for pid, p in self._alive.items():
            if p.stopped_ns is not None and p.role in ("engine_core", "worker", "api_server"):
                return p.stopped_ns, f"{p.role} (pid {pid}) is stopped (T)"
        return None

    def engine_seen(self, now_ns: int) -> bool:
        return any(p.role == "engine_core" and now_ns - p.seen_ns <= 3 * NS_PER_S for p in self._alive.values())

    def idle_since(self, now_ns: int, for_ns: int) -> int | None:
        """Time since when nothing behind the API server uses CPU. None if for less than `for_ns`; compilers count as
        work.
        """
        fresh = self.engine_seen(now_ns)
        return self._busy_ns if fresh and self._busy_ns and now_ns - self._busy_ns >= for_ns else None

    def all_idle_since(self, now_ns: int, for_ns: int) -> int | None:
        """`idle_since`, with the API server included. Probes and metrics pages (under half a core) are no work on
        requests.
        """
        idle = self.idle_since(now_ns, for_ns)
        if idle is None or now_ns - self._api_busy_ns < for_ns:
            return None
        return max(idle, self._api_busy_ns)

    def forget_gone(self) -> None:
        self.gone.clear()

    def _worked(self, process: _Process, at_ns: int, cpu_s: float) -> None:
        before, process.cpu = process.cpu, (at_ns, cpu_s)
        if process.role == "api_server":
            if before is None or (cpu_s - before[1]) * NS_PER_S > 0.5 * (at_ns - before[0]):
                self._api_busy_ns = at_ns
            return
        # More than 2 % of wall time and one tick of the kernel's CPU clock (10 ms) is work; one that is new has worked.
        if before is None or (cpu_s - before[1]) * NS_PER_S > 0.02 * (at_ns - before[0]) + 10 * NS_PER_MS:
            self._busy_ns = at_ns


class CounterSignals:
    """Counters and gauges of the server, summed over engines. The second sign of progress. They may be stale."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {}
        self.at_ns: int | None = None
        self.moved_ns: int | None = None
        self.went_back_ns: int | None = None
        self.backs: list[int] = []  # when counters went back, which only a new process does
        self.start_times: list[float] = []

    def on_metrics(self, row: MetricsRow) -> bool:
        engine, values, at_ns = str(row.get("engine", "0")), row.get("values") or {}, row["at_ns"]
        before = self._values.get(engine, {})
        moved = False
        for name in PROGRESS:
            old, new = before.get(name), values.get(name)
            if old is None or new is None:
                continue
            if new > old:
                moved = True
            elif new < old:
                self.went_back_ns = at_ns
                if not self.backs or self.backs[-1] != at_ns:
                    self.backs.append(at_ns)
                    del self.backs[:-32]
        start = values.get("process_start_time_s")
        if start is not None and (not self.start_times or abs(self.start_times[-1] - start) > 0.5):
            self.start_times.append(float(start))
            del self.start_times[:-32]
        self._values[engine] = {**before, **values}
        self.at_ns = at_ns
        if moved:
            self.moved_ns = at_ns
        return moved

    def gauge(self, name: str) -> float | None:
        found = [v[name] for v in self._values.values() if name in v]
        return sum(found) if found else None

    def work(self) -> float | None:
        parts = [self.gauge("requests_running"), self.gauge("requests_waiting")]
        known = [p for p in parts if p is not None]
        return sum(known) if known else None

    def start_time(self) -> float | None:
        return self.start_times[-1] if self.start_times else None

    def alternates(self) -> bool:
        """True when start times alternate: several servers behind one address."""
        times = [round(t) for t in self.start_times]
        return any(t in times[:i] and times[i - 1] != t for i, t in enumerate(times) if i)


@dataclass
class _Attack:
    name: str
    n: int | None
    begin_ns: int
    effects: frozenset[str]
    end_ns: int | None = None


class AttackEffects:
    """Effects of our attacks in force, from begin to end. The end comes after the undo."""

    def __init__(self) -> None:
        self._recent: deque[_Attack] = deque(maxlen=100)

    def on_attack(self, row: AttackRow) -> None:
        name, n = str(row.get("attack")), row.get("n")
        if row.get("what") == "begin":
            self._recent.append(_Attack(name, n, row["at_ns"], frozenset(str(e) for e in row.get("effects") or ())))
        elif row.get("what") == "end":
            for attack in self._recent:
                if (attack.name, attack.n) == (name, n):
                    attack.end_ns = row["at_ns"]

    def in_force(self, effects: frozenset[str], now_ns: int, after_ns: int = 0, by_ns: int | None = None) -> str | None:
        """Name of an attack with one of these effects, in force or recently ended. `after_ns`: ended at most this long
        ago. `by_ns`: begun by then.
        """
        for attack in self._recent:
            if by_ns is not None and attack.begin_ns > by_ns:
                continue
            if (attack.end_ns is None or now_ns - attack.end_ns <= after_ns) and effects & attack.effects:
                return attack.name
        return None
