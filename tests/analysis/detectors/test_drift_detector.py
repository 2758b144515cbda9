"""Latency drift, KV leaks and handles that pile up in hand-made histories; healthy ones never give any."""

from __future__ import annotations

import random
from typing import Any

import pytest

from loadchaos.analysis.detectors.drift_detector import DriftDetector
from loadchaos.analysis.failure import Failure

S = 1_000_000_000
MB = 2**20


class Run:
    """Rows of a run that goes on for `seconds`, with figures that are functions of the second."""

    def __init__(self, seed: int = 0) -> None:
        self.creep, self.rng, self.second = DriftDetector(), random.Random(seed), 1000
        self.told: list[Failure] = []

    def go(self, seconds: int, *, ttft_s: Any = None, in_flight: Any = None, phase: int = 0) -> Run:
        for n in range(seconds):
            self.second += 1
            at_ns = self.second * S
            flying = in_flight(n) if in_flight else 8
            self.creep.feed({"row": "heartbeat", "at_ns": at_ns, "file": "requests-0", "in_flight": flying})
            for _ in range(4):
                ttft = (ttft_s(n) if ttft_s else 0.2) * self.rng.lognormvariate(0, 0.3)
                self.creep.feed(
                    {
                        "row": "end",
                        "at_ns": at_ns,
                        "outcome": "ok",
                        "phase": phase,
                        "sent_ns": at_ns - S,
                        "first_token_ns": at_ns - S + int(ttft * S),
                        "last_byte_ns": at_ns,
                        "completion_tokens": 50,
                    }
                )
            if n % 30 == 0:
                self.told += self.creep.found(at_ns)
        self.told += self.creep.found(self.second * S)
        return self

    @property
    def ids(self) -> list[str]:
        return [s.id for s in self.told]


def test_latency_that_doubles_under_constant_load_drifts() -> None:
    run = Run().go(300, ttft_s=lambda n: 0.2 + 0.2 * n / 300)
    assert run.ids == ["latency_drift"]
    assert run.told[0].title.startswith("TTFT drifts under constant load: from ")
    assert run.told[0].severity == "degraded"


def test_latency_that_grows_with_the_load_is_no_drift() -> None:
    assert Run().go(300, ttft_s=lambda n: 0.2 + 0.3 * n / 300, in_flight=lambda n: 8 + n // 20).ids == []


def test_latency_of_another_phase_is_another_thing() -> None:
    assert Run().go(100, ttft_s=lambda _: 0.2).go(100, ttft_s=lambda _: 0.9, phase=1).ids == []


def with_handles(seconds: int, fds: Any, threads: Any = None, in_flight: Any = None) -> list[str]:
    creep, rng = DriftDetector(), random.Random(0)
    for n in range(seconds):
        at_ns = (n + 1000) * S
        flying = in_flight(n) if in_flight else 8
        creep.feed({"row": "heartbeat", "at_ns": at_ns, "file": "requests-0", "in_flight": flying})
        creep.feed(
            {
                "row": "process",
                "replica": "server",
                "pid": 9,
                "role": "engine_core",
                "what": "sample",
                "rss_bytes": 900 * MB,
                "at_ns": at_ns,
                "fds": int(fds(n) + rng.randint(0, 12)),
                "threads": int(threads(n)) if threads else 40,
            }
        )
    return [s.id for s in creep.found((seconds + 1000) * S)]


def test_files_and_threads_that_pile_up_are_leaks() -> None:
    assert with_handles(600, lambda n: 80 + n) == ["fd_leak"]
    assert with_handles(600, lambda _: 80, lambda n: 40 + n // 8) == ["thread_leak"]


def test_a_file_a_connection_is_none() -> None:
    assert with_handles(600, lambda n: 80 + n, in_flight=lambda n: 8 + n) == []
    assert with_handles(600, lambda n: 80 + min(n, 150)) == []


def idle_times(usages: list[float], *, idle_s: int = 6) -> list[Failure]:
    creep, second = DriftDetector(), 0
    for usage in usages:
        for n in range(20 + idle_s):
            second += 1
            busy = n < 20
            values = {"requests_running": 5.0 if busy else 0.0, "requests_waiting": 0.0}
            values["kv_usage_ratio"] = 0.7 if busy else usage
            creep.feed({"row": "metrics", "at_ns": second * S, "replica": "server", "engine": "0", "values": values})
    return creep.found(second * S)


def test_kv_cache_that_stays_in_use_from_pause_to_pause_leaks() -> None:
    [seen] = idle_times([0.0, 0.01, 0.03, 0.04, 0.06])
    assert seen.id == "kv_leak"
    assert "0.0% of it is in use at first, 6.0% at last" in seen.title


@pytest.mark.parametrize("usages", [[0.0] * 9, [0.02, 0.01, 0.03, 0.02, 0.04], [0.0, 0.001, 0.002, 0.003], [0.0, 0.5]])
def test_kv_cache_that_is_given_back_does_not_leak(usages: list[float]) -> None:
    assert idle_times(usages) == []


def test_a_leak_is_told_also_where_the_server_was_ended_before_anybody_asked_and_not_of_a_new_server() -> None:
    for more, told in (((), ["kv_leak"]), ((0.0, 0.0), [])):
        creep, second = DriftDetector(), 0
        for usage in (0.01, 0.03, 0.04, 0.06, None, *more):
            for n in range(26):
                second += 1
                if usage is None:
                    continue
                values = {"requests_running": 5.0 if n < 20 else 0.0, "kv_usage_ratio": 0.7 if n < 20 else usage}
                creep.feed({"row": "metrics", "at_ns": second * S, "replica": "a", "engine": "0", "values": values})
            if usage == 0.06:
                creep.feed({"row": "state", "at_ns": second * S, "replica": "a", "to": "terminated"})
        assert [s.id for s in creep.found(second * S)] == told


def test_a_pause_too_short_for_the_gauge_says_nothing() -> None:
    assert idle_times([0.1, 0.2, 0.3, 0.4, 0.5], idle_s=2) == []


def test_healthy_runs_never_creep() -> None:
    for seed in range(15):
        rng = random.Random(seed)
        noise = [rng.lognormvariate(0, 0.2) for _ in range(400)]
        run = Run(seed).go(
            400,
            ttft_s=lambda n, noise=noise: 0.2 * noise[n] * (3 if n % 97 == 0 else 1),  # a compile now and then
            in_flight=lambda n, rng=rng: rng.randint(6, 10),
        )
        assert run.ids == [], seed
