import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.analysis.detectors.memory_leak import MemoryLeakDetector, leak_trend
from loadchaos.analysis.detectors.trend_tests import Samples
from tests.rows import S, checks

MB = 2**20
FIVE_MINUTES_OF_VLLM = (
    709, 710, 738, 759, 774, 794, 803, 813, 819, 826, 833, 844, 853, 863, 872, 878,
    880, 889, 891, 895, 904, 912, 924, 933, 939, 947, 957, 969, 975, 983, 992, 992,
)  # fmt: skip
"""MB of the engine core of a healthy vLLM 0.32, every 11 s, while 834 new images came: it keeps 4 GB of them."""

TEN_MINUTES_OF_MTP_MM = {
    "api_server": (982, 1951, 3184, 3184, 3208, 3365, 3462, 3462, 3606, 3630, 3823, 3823, 3871, 3943, 4184, 4184, 4232,
                   4448, 4400, 4496, 4496, 4496, 4416, 4416, 4416, 4416, 4416, 4416, 4416, 4416),
    "engine_core": (882, 1188, 2166, 2104, 2081, 2244, 2288, 2288, 2240, 2276, 2299, 1928, 1952, 2024, 2132, 2168, 2180,
                    2216, 2192, 2216, 2228, 2216, 1964, 1964, 1952, 1952, 2000, 2144, 2144, 2144),
    "worker": (2012, 2229, 2446, 3096, 3806, 3862, 3906, 3906, 3906, 3859, 3859, 3859, 3859, 3860, 3871, 3967, 4232,
               4232, 4232, 4232, 4232, 4172, 4172, 4172, 4394, 4172, 4172, 4172, 4172, 4172),
}  # fmt: skip
"""MB of each process of a healthy vLLM 0.22.1, every 21 s, under profiles/mtp_mm.yaml."""


def of_vllm(second: float) -> float:
    """MB at a second: measured for five minutes, then extrapolated."""
    at, last = second / 11, len(FIVE_MINUTES_OF_VLLM) - 1
    if at >= last:
        return min(992 + (second - 11 * last) * 0.68, 709 + 4096)
    low = int(at)
    return FIVE_MINUTES_OF_VLLM[low] + (at - low) * (FIVE_MINUTES_OF_VLLM[low + 1] - FIVE_MINUTES_OF_VLLM[low])


def memory(
    mb: Callable[[float], float],
    seconds: int,
    *,
    role: str = "engine_core",
    images: float = 0,
    every_s: int = 1,
    answered_s: int = 0,
    **extra: Any,
) -> MemoryLeakDetector:
    detector, rng = MemoryLeakDetector(), random.Random(0)
    detector.fold({"row": "configuration", "at_ns": 0, "settings": extra})
    for second in range(0, seconds, every_s):
        process = {"row": "process", "replica": "server", "pid": 7, "role": role, "what": "sample"}
        resident = int((mb(second) + rng.uniform(0, 4)) * MB)
        detector.fold({**process, "at_ns": (1000 + second) * S, "rss_bytes": resident})
        tokens = int(images * 66 * every_s)
        if second >= answered_s:
            detector.fold({"row": "end", "at_ns": (1000 + second) * S, "outcome": "ok", "image_tokens": tokens})
    return detector


def ids(detector: MemoryLeakDetector) -> list[str]:
    return [failure.id for failure in detector.poll(0)]


def test_memory_leak_is_reported_once() -> None:
    detector = memory(lambda s: 900 + s, 700)
    [failure] = detector.poll(0)
    assert (failure.id, failure.process) == ("memory_leak", "pid 7")
    assert "MB/h)" in failure.title
    assert detector.poll(0) == []
    assert checks(detector) == []


def test_growth_before_the_first_answer_of_a_process_is_no_leak() -> None:
    """A slow start: memory grows until the model is loaded, and the load begins."""
    slow_start = memory(lambda s: 900 + 2 * min(s, 900), 1600, answered_s=900)
    assert (ids(slow_start), checks(slow_start)) == ([], [])
    assert ids(memory(lambda s: 900 + 2 * s, 1600, answered_s=900)) == ["memory_leak"]


def test_memory_leak_of_an_api_server_after_aborts_has_its_own_id() -> None:
    detector = memory(lambda s: 900 + s, 700, role="api_server")
    detector.fold({"row": "end", "at_ns": S, "outcome": "aborted", "phase": 0})
    assert ids(detector) == ["api_server_leak"]


def test_memory_leak_may_begin_late_or_accelerate() -> None:
    assert ids(memory(lambda s: 900 + s * s / 2000, 1200)) == ["memory_leak"]
    assert ids(memory(lambda s: 900 + min(s, 60) * 3 + s / 2, 1800)) == ["memory_leak"]


@pytest.mark.parametrize("seconds", [340, 900, 3600, 4 * 3600])
def test_memory_of_a_healthy_vllm_with_images_is_no_leak(seconds: int) -> None:
    detector = memory(of_vllm, seconds, images=2.8, every_s=max(1, seconds // 1000))
    assert ids(detector) == []
    [check] = checks(detector)
    assert check.verdict == "pass"
    assert check.actual.startswith("no leak proved: ")


@pytest.mark.parametrize("role", TEN_MINUTES_OF_MTP_MM)
def test_memory_of_a_real_warm_up_is_no_leak(role: str) -> None:
    points = [(21.3 * n, float(mb * MB)) for n, mb in enumerate(TEN_MINUTES_OF_MTP_MM[role])]
    assert [n for n in range(len(points)) if leak_trend(points[: n + 1]) is not None] == []
    assert points[-1][0] > 600


def test_memory_growth_in_a_short_run_is_a_check() -> None:
    [check] = checks(memory(of_vllm, 340))
    assert "engine core (pid 7) grew from" in check.actual
    assert "a leak needs 600 s of data" in check.actual


def test_memory_growth_without_an_image_cache_is_a_leak() -> None:
    assert ids(memory(of_vllm, 1800)) == ["memory_leak"]
    assert ids(memory(of_vllm, 1800, images=2.8, mm_processor_cache_gb=0.0)) == ["memory_leak"]


def test_memory_growth_beyond_the_image_cache_is_a_leak() -> None:
    assert ids(memory(lambda s: 900 + s, 6000, images=3, every_s=5, mm_processor_cache_gb=4)) == ["memory_leak"]
    assert ids(memory(lambda s: 900 + s, 3000, images=3, every_s=5, mm_processor_cache_gb=4)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "curve",
    [
        lambda s: 900 + min(s, 200),
        lambda s: 900 + 400 * (1 - math.exp(-s / 300)),
        lambda s: 900 + 100 * math.log(1 + s / 20),
        lambda s: 900 + 300 * (s > 700),
        lambda s: 900 + 100 * math.sin(s / 200),
        lambda _: 900,
    ],
)  # fmt: skip
def test_memory_of_healthy_servers_never_leaks(curve: Callable[[float], float], seed: int) -> None:
    rng = random.Random(seed)
    assert leak_trend([(float(s), (curve(s) + rng.gauss(0, 8)) * MB) for s in range(0, 1800, 10)]) is None


def test_memory_leak_of_one_percent_per_hour_is_found_in_eight_hours() -> None:
    """Eight hours, a sample every ten seconds; 1 %/h is 160 MB in the end."""
    for seed in range(50):
        rng = random.Random(seed)
        leaky, healthy = Samples(), Samples()
        for at_s in range(0, 8 * 3600, 10):
            noise = rng.gauss(0, 15) + (120 if at_s % 3600 < 60 else 0)
            leaky.add(at_s, (2000 * (1 + 0.01 * at_s / 3600) + noise) * MB)
            healthy.add(at_s, (2000 + 80 * (1 - math.exp(-at_s / 1800)) + noise) * MB)
        trend = leak_trend(leaky.points())
        assert trend is not None, seed
        assert trend.per_s * 3600 == pytest.approx(20 * MB, rel=0.15)
        assert leak_trend(healthy.points()) is None, seed


def test_memory_of_a_gone_process_is_dropped() -> None:
    detector = memory(lambda s: 900 + s, 700)
    detector.fold({"row": "process", "replica": "server", "pid": 7, "role": "engine_core", "what": "gone", "at_ns": 0})
    assert ids(detector) == []
