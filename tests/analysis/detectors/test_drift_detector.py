from __future__ import annotations

import random
from typing import Any

import pytest

from loadchaos.analysis.detectors.drift_detector import DriftDetector
from loadchaos.analysis.failure import Failure
from tests.rows import S, answered, metrics_row

MB = 2**20


class Run:
    """Rows of a run, with figures that are functions of the second."""

    def __init__(self, seed: int = 0) -> None:
        self.drift, self.rng, self.second = DriftDetector(), random.Random(seed), 1000
        self.failures: list[Failure] = []

    def load(self, seconds: int, *, ttft_s: Any = None, in_flight: Any = None, phase: int = 0) -> Run:
        for n in range(seconds):
            self.second += 1
            at_ns = self.second * S
            flying = in_flight(n) if in_flight else 8
            self.drift.fold({"row": "heartbeat", "at_ns": at_ns, "file": "requests-0", "in_flight": flying})
            for _ in range(4):
                ttft = (ttft_s(n) if ttft_s else 0.2) * self.rng.lognormvariate(0, 0.3)
                end: dict[str, Any] = {"first_token_ns": at_ns - S + int(ttft * S), "completion_tokens": 50}
                self.drift.fold(answered(at_ns - S, n, phase=phase, **end)[1])
            if n % 30 == 0:
                self.failures += self.drift.poll(at_ns)
        self.failures += self.drift.poll(self.second * S)
        return self

    @property
    def ids(self) -> list[str]:
        return [f.id for f in self.failures]


def test_drift_of_latency_under_constant_load_is_reported() -> None:
    run = Run().load(300, ttft_s=lambda n: 0.2 + 0.2 * n / 300)
    assert run.ids == ["latency_drift"]
    assert run.failures[0].title.startswith("TTFT rises under constant load: ")
    assert run.failures[0].severity == "degraded"


def test_drift_needs_a_constant_load() -> None:
    assert Run().load(300, ttft_s=lambda n: 0.2 + 0.3 * n / 300, in_flight=lambda n: 8 + n // 20).ids == []


def test_drift_of_phases_each_slower_than_the_one_before_is_none() -> None:
    run = Run()
    for phase in range(8):
        run.load(40, ttft_s=lambda _, p=phase: 0.2 + 0.05 * p, phase=phase)
    assert run.ids == []


class ClosedLoop:
    """24 users who each wait for their answer, and a server that runs 3 at once; its queue fills and stays."""

    def __init__(self, *, metrics: bool, users: int = 24, batch: int = 3) -> None:
        self.drift, self.metrics, self.users, self.batch = DriftDetector(), metrics, users, batch
        self.failures: list[Failure] = []

    def run(self, seconds: int, service_s: Any) -> ClosedLoop:
        waiting = [1000.0] * self.users  # when each request was sent
        running: list[tuple[float, float, float]] = []  # sent, first token, end
        for second in range(1000, 1000 + seconds):
            done = [r for r in running if r[2] <= second]
            running = [r for r in running if r[2] > second]
            for sent, first, end in done:
                row = {"row": "end", "at_ns": int(end * S), "outcome": "ok", "phase": 0, "sent_ns": int(sent * S)}
                row |= {"first_token_ns": int(first * S), "last_byte_ns": int(end * S), "completion_tokens": 50}
                self.drift.fold(row)
                waiting.append(end)
            while waiting and len(running) < self.batch:
                sent, start = waiting.pop(0), float(second)
                running.append((sent, start + 0.4, start + service_s(second - 1000)))
            self.drift.fold({"row": "heartbeat", "at_ns": second * S, "file": "requests-0", "in_flight": self.users})
            if self.metrics:
                self.drift.fold(metrics_row(second, requests_running=len(running), requests_waiting=len(waiting)))
            if second % 30 == 0:
                self.failures += self.drift.poll(second * S)
        return self


@pytest.mark.parametrize("metrics", [True, False])
@pytest.mark.parametrize("seconds", [170, 300, 900])
def test_drift_is_not_a_queue_that_our_users_fill_first(metrics: bool, seconds: int) -> None:
    for service_s, batch in ((2.0, 3), (9.0, 3), (7.0, 1), (4.0, 1)):
        loop = ClosedLoop(metrics=metrics, batch=batch).run(seconds, lambda _, s=service_s: s)
        assert loop.failures == [], (service_s, batch)


def test_drift_of_a_full_server_that_slows_down_is_reported() -> None:
    slowing = ClosedLoop(metrics=True).run(900, lambda n: 3.0 + 6.0 * n / 900)
    assert [f.id for f in slowing.failures][:1] == ["latency_drift"]


def test_drift_is_not_a_queue_that_grows() -> None:
    drift = Run()
    for n in range(300):
        full = metrics_row(drift.second + 1, requests_running=8.0 - n // 50, requests_waiting=float(n // 50))
        drift.drift.fold(full)
        drift.load(1, ttft_s=lambda _, n=n: 0.2 + 0.2 * n / 300)
    assert drift.ids == []


def with_handles(seconds: int, fds: Any, threads: Any = None, in_flight: Any = None) -> list[str]:
    drift, rng = DriftDetector(), random.Random(0)
    for n in range(seconds):
        at_ns = (n + 1000) * S
        flying = in_flight(n) if in_flight else 8
        drift.fold({"row": "heartbeat", "at_ns": at_ns, "file": "requests-0", "in_flight": flying})
        process = {"row": "process", "replica": "server", "pid": 9, "role": "engine_core", "what": "sample"}
        held = {"fds": int(fds(n) + rng.randint(0, 12)), "threads": int(threads(n)) if threads else 40}
        drift.fold({**process, "at_ns": at_ns, "rss_bytes": 900 * MB, **held})
    return [f.id for f in drift.poll((seconds + 1000) * S)]


def test_drift_of_open_files_and_threads_is_a_leak() -> None:
    assert with_handles(600, lambda n: 80 + n) == ["fd_leak"]
    assert with_handles(600, lambda _: 80, lambda n: 40 + n // 8) == ["thread_leak"]


def test_drift_of_open_files_with_the_load_is_no_leak() -> None:
    assert with_handles(600, lambda n: 80 + n, in_flight=lambda n: 8 + n) == []
    assert with_handles(600, lambda n: 80 + min(n, 150)) == []


def idle_times(usages: list[float], *, idle_s: int = 6) -> list[Failure]:
    drift, second = DriftDetector(), 0
    for usage in usages:
        for n in range(20 + idle_s):
            second += 1
            busy = n < 20
            values = {"requests_running": 5.0 if busy else 0.0, "kv_usage_ratio": 0.7 if busy else usage}
            drift.fold(metrics_row(second, values, requests_waiting=0.0))
    return drift.poll(second * S)


def test_kv_leak_between_idle_periods_is_reported() -> None:
    [failure] = idle_times([0.0, 0.01, 0.03, 0.04, 0.06])
    assert failure.id == "kv_leak"
    assert "rises from 0.0% to 6.0%" in failure.title


@pytest.mark.parametrize("usages", [[0.0] * 9, [0.02, 0.01, 0.03, 0.02, 0.04], [0.0, 0.001, 0.002, 0.003], [0.0, 0.5]])
def test_kv_use_that_is_freed_is_no_leak(usages: list[float]) -> None:
    assert idle_times(usages) == []


def test_kv_leak_is_reported_after_the_server_ended_and_not_for_a_new_one() -> None:
    for more, expected in (((), ["kv_leak"]), ((0.0, 0.0), [])):
        drift, second = DriftDetector(), 0
        for usage in (0.01, 0.03, 0.04, 0.06, None, *more):
            for n in range(26):
                second += 1
                if usage is None:
                    continue
                values = {"requests_running": 5.0 if n < 20 else 0.0, "kv_usage_ratio": 0.7 if n < 20 else usage}
                drift.fold({"row": "metrics", "at_ns": second * S, "replica": "a", "engine": "0", "values": values})
            if usage == 0.06:
                drift.fold({"row": "state", "at_ns": second * S, "replica": "a", "to": "terminated"})
        assert [f.id for f in drift.poll(second * S)] == expected


def test_kv_leak_needs_idle_periods_longer_than_the_gauge() -> None:
    assert idle_times([0.1, 0.2, 0.3, 0.4, 0.5], idle_s=2) == []


def test_drift_is_never_reported_for_healthy_runs() -> None:
    for seed in range(15):
        rng = random.Random(seed)
        noise = [rng.lognormvariate(0, 0.2) for _ in range(400)]
        run = Run(seed).load(
            400,
            ttft_s=lambda n, noise=noise: 0.2 * noise[n] * (3 if n % 97 == 0 else 1),  # a compile now and then
            in_flight=lambda n, rng=rng: rng.randint(6, 10),
        )
        assert run.ids == [], seed
