"""Define the loads, their contenders, and the figures of one trial."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.cost import truth
from bench.cost.contenders import CONTENDERS, Environments, Trial
from bench.cost.meter import Load, Metered, Place, TrialError, run
from bench.server import LoadServer, Pace

Figures = dict[str, Any]
"""One trial: scenario, contender, us (CPU microseconds for each request or token), and what else was seen."""

_FIFTY_A_SECOND = Pace(events=128, gap_us=20_000, ttft_us=100_000, spread_us=20_000)
_SHORT = replace(_FIFTY_A_SECOND, events=64)
_WHOLE = Pace(events=8)
_ALL = ("c", "uvloop", "gevent", "loadchaos", "aiohttp", "fast_raw", "fast_lines", "requests", "httpx")
_LEADERS = ("c", "uvloop", "gevent", "loadchaos", "fast_raw", "fast_lines")
_TLS = ("c", "uvloop", "gevent", "loadchaos", "fast_raw")


@dataclass(frozen=True)
class Scenario:
    """A load and its contenders.

    `unit` is what a figure counts: `begun` (requests) or `events` (tokens).
    """

    title: str
    load: Load
    contenders: tuple[str, ...]
    unit: str
    slow_requests: int = 0
    fast_requests: int = 0
    """What those that are slow or fast are asked for instead, so that no trial takes minutes, or no time at all."""


SCENARIOS: dict[str, Scenario] = {
    "small": Scenario(
        "Small request, 64 users", Load(64, 20_000, False, _WHOLE),
        tuple(c for c in _ALL if c != "fast_lines"), "begun", 4_000, 150_000,
    ),
    "small_tls": Scenario(
        "Small request over TLS, 64 users", Load(64, 12_000, False, _WHOLE, tls=True), _TLS, "begun", 4_000, 100_000
    ),
    "images": Scenario(
        "Four 1024x1024 images a request, 64 users", Load(64, 6_000, False, _WHOLE, images=4),
        ("c", "uvloop", "gevent", "loadchaos", "aiohttp", "fast_raw"), "begun", 4_000, 20_000,
    ),
    "streams_512": Scenario("512 streams", Load(512, 1_536, True, _FIFTY_A_SECOND), _ALL, "events"),
    "streams_512_tls": Scenario(
        "512 streams over TLS", Load(512, 1_536, True, _FIFTY_A_SECOND, tls=True), _TLS, "events"
    ),
    "streams_1000": Scenario("1,000 streams", Load(1_000, 2_500, True, _FIFTY_A_SECOND), _LEADERS, "events"),
    "streams_2000": Scenario("2,000 streams", Load(2_000, 4_500, True, _FIFTY_A_SECOND), _LEADERS, "events"),
}  # fmt: skip

MARGINAL = Load(128, 2_000, True, _SHORT, closed=True)
MARGINAL_FEW = 200
MARGINAL_LIMIT_S = 240.0
MARGINAL_CONTENDERS = ("c", "uvloop", "loadchaos", "run", "vllm", "guidellm", "aiperf")


def trial(scenario: str, name: str, place: Place, environments: Environments) -> Figures:
    """Measure one contender once.

    Figures have `absent` or `broken` with a reason where nothing could be measured.
    """
    it = SCENARIOS[scenario]
    load = it.load
    if it.slow_requests and CONTENDERS[name].pace:
        load = replace(load, requests=it.slow_requests if CONTENDERS[name].pace == "slow" else it.fast_requests)
    figures: Figures = {"scenario": scenario, "contender": name}
    try:
        metered, seen, found = _measure(name, load, place, environments)
    except _AbsentError as e:
        return {**figures, "absent": str(e)}
    except TrialError as e:
        return {**figures, "broken": str(e)}
    lost = load.requests - seen.ended - int(seen.reported.get("missed", 0)) if name == "loadchaos" else 0
    return {
        **figures,
        "us": metered.per(it.unit),
        "core": metered.cpu_share,
        "server_core": metered.server_cpu_share,
        "ended": seen.ended,
        "failed": seen.failed + max(0, lost),
        "events": metered.end.events,
        "cut": metered.end.cut,
        "connections": metered.end.connections,
        "server_late": metered.end.late_1ms / max(1, metered.end.events),
        "rate": _rate(metered, it.unit),
        "rss_mb": metered.peak_rss_bytes / 1e6,
        "said": seen.reported,
        **(dataclasses.asdict(found) if found else {}),
    }


def marginal(name: str, place: Place, environments: Environments) -> Figures:
    """CPU per request: the whole program at many requests minus at few."""
    figures: Figures = {"scenario": "marginal", "contender": name}
    try:
        few, _, _ = _measure(name, replace(MARGINAL, requests=MARGINAL_FEW), place, environments, MARGINAL_LIMIT_S)
        many, seen, found = _measure(name, MARGINAL, place, environments, MARGINAL_LIMIT_S)
    except _AbsentError as e:
        return {**figures, "absent": str(e)}
    except TrialError as e:
        return {**figures, "broken": str(e)}
    us = (many.cpu_s - few.cpu_s) * 1e6 / (MARGINAL.requests - MARGINAL_FEW)
    return {
        **figures,
        "us": us,
        "cpu_s": many.cpu_s,
        "ended": seen.ended,
        "failed": seen.failed,
        "rss_mb": many.peak_rss_bytes / 1e6,
        "said": seen.reported,
        **(dataclasses.asdict(found) if found else {}),
    }


class _AbsentError(Exception):
    """A module that a contender needs is not installed."""


def _measure(
    name: str, load: Load, place: Place, environments: Environments, limit_s: float = 90.0
) -> tuple[Metered, truth.Seen, truth.Truth | None]:
    contender = CONTENDERS[name]
    python = environments.python(name)
    if python is None:
        raise _AbsentError(f"{contender.module} is not installed")
    pinned = place.pinned(place.server_core)
    client = replace(place, urgent=False, lock=None) if contender.processes else place
    with client.held(), tempfile.TemporaryDirectory(prefix="loadchaos-bench-") as temporary:
        folder = Path(temporary)
        with LoadServer(load.pace, tls=load.tls, stamps=load.stream, before=pinned) as server:
            it = Trial(load, server.url, folder, server.certificate, python)
            argv, env = contender.start(it)
            metered = run(load, client, server, (argv, env), folder / "log", limit_s)
            server.end()
        try:
            seen = contender.read(it, metered, server.stamps)
        except (OSError, ValueError, KeyError, StopIteration) as e:
            tail = (folder / "log").read_text("utf-8", "replace")[-600:]
            raise TrialError(f"its output could not be read: {e!r}\n{tail}") from e
        if not load.stream or (contender.processes and place.urgent):
            return metered, seen, None
        return metered, seen, truth.compare(seen, server.stamps, metered.first.at_ns, metered.last.at_ns)


def _rate(metered: Metered, unit: str) -> float:
    """Requests or tokens per second in the window."""
    count = getattr(metered.last.count, unit) - getattr(metered.first.count, unit)
    return float(count) / ((metered.last.at_ns - metered.first.at_ns) / 1e9)
