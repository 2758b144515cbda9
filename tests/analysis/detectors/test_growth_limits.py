import functools
import math
import random
import re
from typing import Any

import pytest

from loadchaos.analysis.detectors.growth_limits import GrowthTracker, growth
from loadchaos.analysis.detectors.trend_tests import Point
from loadchaos.analysis.verdict.expectations import ExpectationInputs, judge
from loadchaos.core.expectation_names import parse
from tests.rows import S, answered, metrics_row

HOURS = 8


def history(seed: int, *, images: int = 0, **grow: Any) -> GrowthTracker:
    """Eight hours of a server, one reading a minute.

    A figure's mean is a function of the hour; `images` are image tokens a minute.
    """
    rng, drifts = random.Random(seed), GrowthTracker()
    for minute in range(HOURS * 60):
        at_ns, hour = minute * 60 * S + S, minute / 60

        def value(name: str, mean: float, spread: float, hour: float = hour) -> float:
            return float(grow[name](hour) if name in grow else mean) * (1 + rng.gauss(0, spread))

        process = {"row": "process", "at_ns": at_ns, "pid": 7, "role": "engine_core", "what": "sample", "threads": 60}
        drifts.fold({**process, "rss_bytes": int(value("rss", 4e9, 0.002)), "fds": int(value("fds", 300, 0.05))})
        drifts.fold({"row": "end", "at_ns": at_ns, "outcome": "ok", "image_tokens": images})
        kv = value("kv", 0.01, 0.01)
        drifts.fold(metrics_row(at_ns / S, kv_usage_ratio=kv, requests_running=minute % 2))
        used = value("gpu", 7e10, 0.001)
        drifts.fold({"row": "device", "at_ns": at_ns, "device": "gpu0", "values": {"gpu_memory_used_bytes": used}})
        for n in range(20):
            wrong = rng.random() < (grow["errors"](hour) if "errors" in grow else 0.01)
            sent = at_ns + n * S
            ttft = int(value("ttft", 0.2, 0.2) * S)
            outcome = "http_error" if wrong else "ok"
            drifts.fold(answered(sent, n, took_ns=2 * S, first_token_ns=sent + ttft, outcome=outcome)[1])
    return drifts


@functools.cache
def steady() -> GrowthTracker:
    """The history of a server that does not grow."""
    return history(2)


def verdict(drifts: GrowthTracker, text: str) -> tuple[str, str]:
    judged = judge(text, ExpectationInputs({}, {}, {}, {}, (), drifts=drifts.growths()))
    return judged.verdict, judged.actual


@pytest.mark.parametrize(
    ("figure", "limit", "grow"),
    [
        ("rss", "0.5%/h", {"rss": lambda h: 4e9 * (1 + 0.01 * h)}),
        ("gpu_memory", "0.5%/h", {"gpu": lambda h: 7e10 * (1 + 0.01 * h)}),
        ("fds", "1%/h", {"fds": lambda h: 300 * (1 + 0.02 * h)}),
        ("ttft", "1%/h", {"ttft": lambda h: 0.2 * (1 + 0.05 * h)}),
        ("kv", "0.5%/h", {"kv": lambda h: 0.01 * (1 + h)}),
        ("error_rate", "0.5%/h", {"errors": lambda h: 0.01 * (1 + h)}),
    ],
)
def test_growth_beyond_the_limit_fails_and_less_passes(figure: str, limit: str, grow: Any) -> None:
    drifts = history(1, **grow)
    assert verdict(drifts, f"drift.{figure} <= {limit}")[0] == "fail"
    assert verdict(drifts, f"drift.{figure} <= 10%/h")[0] == "pass"
    assert verdict(steady(), f"drift.{figure} <= {limit}")[0] == "pass"


@pytest.mark.parametrize("minutes", [10, 60, 240])
def test_growth_is_hardly_ever_found_in_slow_noise(minutes: int) -> None:
    """TTFT with autocorrelated noise: 4 false alarms in 100 are expected."""

    def wandering(seed: int) -> list[Point]:
        rng, keep = random.Random(seed), math.exp(-2 / minutes)
        at, points = rng.gauss(0, 0.05), []
        for n in range(HOURS * 30):
            points.append((n * 120.0, 0.2 * (1 + at)))
            at = keep * at + rng.gauss(0, 0.05 * math.sqrt(1 - keep * keep))
        return points

    found = [growth("threads", wandering(seed)) for seed in range(100)]
    assert sum(one is not None and one.per_hour > 0 for one in found) <= 8


def test_growth_is_described_with_its_rate() -> None:
    _, actual = verdict(history(3, rss=lambda h: 4e9 * (1 + 0.01 * h)), "drift.rss <= 0.5%/h")
    assert actual.startswith("+1.0"), actual
    assert re.search(r"%/h \((3[789]|4[01])(\.\d)? MB/h\), p < 0\.01, over 28672 s$", actual), actual


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 50))])
def test_growth_is_not_found_in_noise_and_warm_ups(seed: int) -> None:
    healthy = history(seed, rss=lambda h: 4e9 * (1.1 - 0.1 * math.exp(-2 * h)))
    for figure in ("rss", "fds", "kv", "gpu_memory", "ttft", "error_rate"):
        assert verdict(healthy, f"drift.{figure} <= 0.5%/h")[0] == "pass", figure


@pytest.mark.parametrize(
    "curve",
    [
        lambda h: 4e9 * (1 + 0.2 * (1 - math.exp(-h / 8))),  # its time constant is the run's length
        lambda h: 4e9 * (1 + 0.05 * math.sqrt(h)),
        lambda h: 4e9 * (1 + 0.05 * math.log1p(h)),
        lambda h: 4e9 * (1 + 0.05 * min(h, 6)),
    ],
    ids=["slow", "root", "logarithm", "full after six hours"],
)
def test_growth_of_memory_that_slows_down_does_not_count(curve: Any) -> None:
    drifts = history(6, rss=curve, gpu=lambda h: 17 * curve(h))
    for figure in ("rss", "gpu_memory"):
        assert verdict(drifts, f"drift.{figure} <= 0.5%/h")[0] == "pass", figure


def test_growth_of_an_image_cache_up_to_its_size_does_not_count() -> None:
    for rate, expected in ((0.08, "pass"), (0.15, "fail")):  # 2.6 GB and 4.8 GB of at most 4
        drifts = history(5, images=400, rss=lambda h, rate=rate: 4e9 * (1 + rate * h))
        assert verdict(drifts, "drift.rss <= 1%/h")[0] == expected


def test_growth_of_two_lives_is_the_worse_one() -> None:
    drifts = history(4, rss=lambda h: 4e9 * (1 + 0.01 * h))
    drifts.fold({"row": "state", "to": "restarting"})
    assert verdict(drifts, "drift.rss <= 0.5%/h")[0] == "fail"


def test_growth_without_enough_data_is_unknown() -> None:
    assert verdict(GrowthTracker(), "drift.rss <= 1%/h") == ("unknown", "not enough data")


def test_growth_limits_are_parsed_in_profiles() -> None:
    assert parse("drift.rss <= 1 %/h").value == pytest.approx(0.01)
    with pytest.raises(ValueError, match="a growth such as 1%/h"):
        parse("drift.rss <= 1%")
    with pytest.raises(ValueError, match=r"drift\.rss"):
        parse("drift.rsss <= 1%/h")
