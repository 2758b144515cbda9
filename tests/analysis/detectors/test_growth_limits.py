"""What a profile says of growth: planted growth of one per cent an hour is found and told, noise and warm-ups are not."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import pytest

from loadchaos.analysis.detectors.growth_limits import GrowthTracker, drift
from loadchaos.analysis.detectors.trend_tests import Point
from loadchaos.analysis.verdict.expectations import ExpectationInputs, judge
from loadchaos.profile.expectation import parse

S = 1_000_000_000
HOURS = 8


def history(seed: int, *, images: int = 0, **grow: Any) -> GrowthTracker:
    """Eight hours of a server, a look a minute; a figure's mean is a function of the hour, `images` are tokens a minute."""
    rng, drifts = random.Random(seed), GrowthTracker()
    for minute in range(HOURS * 60):
        at_ns, hour = minute * 60 * S + S, minute / 60

        def value(name: str, mean: float, spread: float, hour: float = hour) -> float:
            return float(grow[name](hour) if name in grow else mean) * (1 + rng.gauss(0, spread))

        rss = int(value("rss", 4e9, 0.002))
        process = {
            "pid": 7,
            "role": "engine_core",
            "what": "sample",
            "rss_bytes": rss,
            "threads": 60,
            "fds": int(value("fds", 300, 0.05)),
        }
        drifts.feed({"row": "process", "at_ns": at_ns, **process})
        drifts.feed({"row": "end", "at_ns": at_ns, "outcome": "ok", "image_tokens": images})
        kv = value("kv", 0.01, 0.01)
        drifts.feed(
            {"row": "metrics", "at_ns": at_ns, "values": {"kv_usage_ratio": kv, "requests_running": minute % 2}}
        )
        used = value("gpu", 7e10, 0.001)
        drifts.feed({"row": "device", "at_ns": at_ns, "device": "gpu0", "values": {"gpu_memory_used_bytes": used}})
        for n in range(20):
            wrong = rng.random() < (grow["errors"](hour) if "errors" in grow else 0.01)
            sent = at_ns + n * S
            ttft = int(value("ttft", 0.2, 0.2) * S)
            drifts.feed(
                {
                    "row": "end",
                    "at_ns": sent + 2 * S,
                    "sent_ns": sent,
                    "first_token_ns": sent + ttft,
                    "outcome": "http_error" if wrong else "ok",
                    "expect": ["ok"],
                }
            )
    return drifts


def verdict(drifts: GrowthTracker, text: str) -> tuple[str, str]:
    judged = judge(text, ExpectationInputs({}, {}, {}, {}, (), drifts=drifts.found()))
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
def test_growth_beyond_what_is_expected_fails_and_less_passes(figure: str, limit: str, grow: Any) -> None:
    drifts = history(1, **grow)
    assert verdict(drifts, f"drift.{figure} <= {limit}")[0] == "fail"
    assert verdict(drifts, f"drift.{figure} <= 10%/h")[0] == "pass"
    assert verdict(history(2), f"drift.{figure} <= {limit}")[0] == "pass"


@pytest.mark.parametrize("minutes", [10, 60, 240])
def test_noise_that_is_slow_is_hardly_ever_taken_for_growth(minutes: int) -> None:
    """TTFT that wanders about its mean and forgets in so many minutes: 4 in 100 is what may be, white noise has none."""

    def wandering(seed: int) -> list[Point]:
        rng, keep = random.Random(seed), math.exp(-2 / minutes)
        at, points = rng.gauss(0, 0.05), []
        for n in range(HOURS * 30):
            points.append((n * 120.0, 0.2 * (1 + at)))
            at = keep * at + rng.gauss(0, 0.05 * math.sqrt(1 - keep * keep))
        return points

    found = [drift(wandering(seed)) for seed in range(100)]
    assert sum(one is not None and one.per_hour > 0 for one in found) <= 8


def test_what_grows_is_told_with_its_rate() -> None:
    _, actual = verdict(history(3, rss=lambda h: 4e9 * (1 + 0.01 * h)), "drift.rss <= 0.5%/h")
    assert actual.startswith("+1.0"), actual
    assert re.search(r"%/h \((3[789]|4[01])(\.\d)? MB/h\), p < 0\.01, over 28672 s$", actual), actual


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 50))])
def test_noise_and_a_warm_up_that_levels_off_are_no_growth(seed: int) -> None:
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
def test_a_cache_that_fills_ever_more_slowly_is_no_growth_of_memory(curve: Any) -> None:
    drifts = history(6, rss=curve, gpu=lambda h: 17 * curve(h))
    for figure in ("rss", "gpu_memory"):
        assert verdict(drifts, f"drift.{figure} <= 0.5%/h")[0] == "pass", figure


def test_a_cache_of_images_may_fill_in_a_straight_line_up_to_its_size_and_no_further() -> None:
    for growth, expected in ((0.08, "pass"), (0.15, "fail")):  # 2.6 GB and 4.8 GB of at most 4
        drifts = history(5, images=400, rss=lambda h, growth=growth: 4e9 * (1 + growth * h))
        assert verdict(drifts, "drift.rss <= 1%/h")[0] == expected


def test_of_two_lives_the_worse_counts() -> None:
    drifts = history(4, rss=lambda h: 4e9 * (1 + 0.01 * h))
    drifts.feed({"row": "state", "to": "restarting"})
    assert verdict(drifts, "drift.rss <= 0.5%/h")[0] == "fail"


def test_too_little_seen_is_unknown() -> None:
    assert verdict(GrowthTracker(), "drift.rss <= 1%/h") == ("unknown", "too little was seen of it")


def test_a_profile_says_it_so() -> None:
    assert parse("drift.rss <= 1 %/h").value == pytest.approx(0.01)
    with pytest.raises(ValueError, match="a growth such as 1%/h"):
        parse("drift.rss <= 1%")
    with pytest.raises(ValueError, match=r"drift\.rss"):
        parse("drift.rsss <= 1%/h")
