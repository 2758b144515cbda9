"""Compute medians of the trials and compare them with the targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Trial = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """Target with its measured value (None: not measured).

    It holds whether the value is good enough, and the reason where it is not.
    """

    asked: str
    measured: str | None
    met: bool
    between: str


class Figures:
    """All trials of one performance.json, by scenario and contender."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._by: dict[tuple[str, str], list[Trial]] = {}
        for trial in trials:
            self._by.setdefault((trial["scenario"], trial["contender"]), []).append(trial)

    def good(self, scenario: str, contender: str) -> list[Trial]:
        """Trials with a figure."""
        return [t for t in self._by.get((scenario, contender), []) if "us" in t]

    def why_not(self, scenario: str, contender: str) -> str | None:
        """Reason for a missing figure; None where there is one."""
        trials = self._by.get((scenario, contender), [])
        if not trials or self.good(scenario, contender):
            return None
        return str(trials[0].get("absent") or trials[0].get("broken"))

    def median(self, scenario: str, contender: str, key: str) -> float | None:
        """Median over the trials that have the figure."""
        found = [t[key] for t in self.good(scenario, contender) if key in t]
        return statistics.median(found) if found else None

    def reported(self, scenario: str, contender: str, key: str) -> float | None:
        """Median of a figure that the contender itself reported."""
        found = [t["said"][key] for t in self.good(scenario, contender) if key in t["said"]]
        return statistics.median(found) if found else None

    def ratio(self, scenario: str, contender: str, to: str) -> float | None:
        """Median over the repeats of the ratio within one repeat."""
        ours = {t["repeat"]: t["us"] for t in self.good(scenario, contender)}
        theirs = {t["repeat"]: t["us"] for t in self.good(scenario, to)}
        found = [ours[n] / theirs[n] for n in ours if n in theirs]
        return statistics.median(found) if found else None

    def worst(self, scenario: str, contender: str, key: str) -> int:
        """Largest value over the repeats."""
        return max((int(t[key]) for t in self.good(scenario, contender)), default=0)


_LEDGER = "loadchaos also builds and hashes each body, writes two rows of a ledger and judges the answer"
_WAKE = "each token wakes the process: kernel, gevent's loop and a greenlet switch run before any code of loadchaos"
_IMAGES = "each request makes four images; FastHttpUser sends one prepared body"
GIVEN_UP = (
    (
        "small request: at most 40 % or 50 % of the CPU of FastHttpUser, over TLS 70 %",
        f"{_LEDGER}, and no part of that takes most",
    ),
    (
        "four images a request: at most 80 % of the CPU of FastHttpUser",
        f"a small request already needs more, and {_IMAGES}",
    ),
    ("a tenth of the CPU per request of the best LLM benchmark client", "a C client needs more than that"),
)
"""Targets that are no longer asked, each with the reason."""
_LEADING = ("vllm", "guidellm", "aiperf")


def targets(figures: Figures, payloads: Mapping[str, Any]) -> list[Target]:
    """List the targets in the order of the page."""
    return [
        *(
            _at_most(f"{what} the CPU of {whose}", (figures, scenario, beside), limit, why)
            for what, whose, scenario, beside, limit, why in (
                ("small request: at most", "FastHttpUser", "small", "fast_raw", 1.0, _LEDGER),
                ("small request over TLS: at most", "FastHttpUser", "small_tls", "fast_raw", 1.0, _LEDGER),
                ("four images a request: at most", "FastHttpUser", "images", "fast_raw", 1.0, _IMAGES),
                ("streamed token, 512 streams: at most 4 times", "a C client", "streams_512", "c", 4.0, _WAKE),
            )
        ),
        *(
            _late(figures, scenario, key, limit)
            for scenario, key, limit in (
                ("streams_512", "ttft_p50", 0.5),
                ("streams_512", "ttft_p99", 2.0),
                ("streams_512_tls", "ttft_p99", 2.0),
                ("streams_1000", "ttft_p99", 10.0),
            )
        ),
        _none_lost(figures),
        _marginal(figures),
        *_made(payloads),
    ]


def _made(payloads: Mapping[str, Any]) -> list[Target]:
    """Targets for images and prompts: at most so many microseconds of CPU."""
    images = {name: us for name, us, _ in payloads.get("images", ())}
    prompts = {tokens: us for tokens, us, _ in payloads.get("prompts", ())}
    asked: list[tuple[str, float | None, float]] = [
        ("unique compact 1024x1024 PNG, base64 in its body", images.get("PNG, ours"), 5),
        ("each further PNG of a request", payloads.get("further_image_us"), 3),
        ("unique 1024x1024 JPEG", images.get("JPEG, ours"), 20),
        ("photo-like JPEG", images.get("photo-like JPEG, ours"), 150),
        ("prompt of 128k tokens", prompts.get(131_072), 2_000),
    ]
    return [
        Target(
            f"{what}: at most {most:,} us",
            None if us is None else f"{us:.1f} us",
            us is not None and us <= most,
            "the work of load/payloads for each request",
        )
        for what, us, most in asked
    ]


def _at_most(asked: str, of: tuple[Figures, str, str], limit: float, between: str) -> Target:
    """Compare our CPU in a scenario with that of another client."""
    figures, scenario, beside = of
    ratio = figures.ratio(scenario, "loadchaos", beside)
    measured = None if ratio is None else f"{ratio:.2f} times"
    return Target(asked, measured, ratio is not None and ratio <= limit, between)


def _late(figures: Figures, scenario: str, key: str, limit: float) -> Target:
    late = figures.median(scenario, "loadchaos", key)
    streams, tls = scenario.split("_")[1], " over TLS" if scenario.endswith("_tls") else ""
    percentile = "median" if key.endswith("50") else "p99"
    core = figures.median(scenario, "loadchaos", "core")
    wait = "a token read together with the next one gets the timestamp of the next one"
    full = "" if core is None else f"the core is {core:.0%} busy: {wait}"
    trials = len(figures.good(scenario, "loadchaos"))
    asked = f"TTFT, {int(streams):,} streams{tls}: {percentile} error at most {limit:g} ms"
    return Target(
        asked,
        None if late is None else f"{late:.2f} ms ({trials} trial{'s' if trials != 1 else ''})",
        late is not None and late <= limit,
        full,
    )


def _none_lost(figures: Figures) -> Target:
    scenario, asked = "streams_2000", "2,000 streams in one process: none lost, delay reported"
    if not figures.good(scenario, "loadchaos"):
        return Target(asked, None, met=False, between="")
    failed, missed = (
        figures.worst(scenario, "loadchaos", "failed"),
        figures.reported(scenario, "loadchaos", "missed") or 0,
    )
    rate, lag = (
        figures.median(scenario, "loadchaos", "rate") or 0,
        figures.reported(scenario, "loadchaos", "lag_max_ms") or 0,
    )
    late = figures.median(scenario, "loadchaos", "ttft_p99") or 0
    measured = f"{failed} failed, {missed:.0f} missed, {rate:,.0f} tokens/s; delay {lag:.0f} ms, TTFT p99 {late:.0f} ms"
    between = "one core is full, as the delay in the heartbeats shows; use more processes (`--processes`)"
    return Target(asked, measured, failed == 0 and missed == 0, between)


def _marginal(figures: Figures) -> Target:
    asked = "marginal CPU per request (128 streams of 64 tokens): at most half that of the best LLM benchmark client"
    ratios = {name: figures.median("marginal", name, "us") for name in _LEADING}
    there = {name: us for name, us in ratios.items() if us is not None}
    ours = figures.median("marginal", "loadchaos", "us")
    if ours is None or not there:
        return Target(asked, None, met=False, between="no LLM benchmark client is installed")
    best = min(there, key=lambda name: there[name])
    measured = f"{ours / there[best]:.2f} times that of {best}, the best of {len(there)}"
    between = "a request has 64 packets, and each needs its own read for its own timestamp"
    return Target(asked, measured, ours <= there[best] / 2, between)
