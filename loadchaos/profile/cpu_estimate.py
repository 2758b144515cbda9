"""Estimate how much CPU the load of a profile needs, before it is sent. The costs are those of
docs/measured/performance.md. A server sends at most `1 / ASSUMED_SECONDS_PER_TOKEN` tokens a second on a stream: it is
not known before the load how fast it is.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from loadchaos.profile.arrivals import pace, pacing_seed
from loadchaos.profile.explain import (
    ASSUMED_FIRST_TOKEN_S,
    ASSUMED_SECONDS_PER_TOKEN,
    output_tokens,
    request_means,
    traffic_parts,
)
from loadchaos.profile.load import Phase
from loadchaos.profile.profile import Profile
from loadchaos.profile.request_options import SessionContent

_US_PER_REQUEST, _US_PER_TOKEN, _US_PER_FILE = 100.0, 20.0, 20.0
_TLS = 1.6
"""Cost over TLS, relative to that without."""
_UNLIMITED_TOKENS = 512
"""Length of an answer without a limit."""
_BUSY = 0.6
"""Share of its core that a load process may need: beyond 0.7 it delays requests."""
_WINDOW_S = 10.0
_SHOWN = 0.1


@dataclass(frozen=True)
class CpuEstimate:
    """Peak of a load, and the cores that sending it needs."""

    requests_per_s: float
    tokens_per_s: float
    cores: float

    @property
    def processes(self) -> int:
        return max(1, math.ceil(self.cores / _BUSY))


def estimate(profile: Profile, seed: int = 0, *, tls: bool = False) -> CpuEstimate:
    requests = streamed = takes_s = 0.0  # of a step of the plan: a request, or a session
    for traffic, part in traffic_parts(profile):
        found = (output_tokens(traffic, None) or _UNLIMITED_TOKENS) if traffic.generates else 0.0
        session = traffic.session or SessionContent()
        requests += part * session.requests
        streamed += part * session.requests * found * traffic.streams
        each_s = ASSUMED_FIRST_TOKEN_S + found * ASSUMED_SECONDS_PER_TOKEN
        takes_s += part * (session.in_a_row * each_s + session.think_s)
    content = request_means(profile)
    files = content.images + content.audio_files + content.videos
    us = (_US_PER_REQUEST * requests + _US_PER_FILE * files + _US_PER_TOKEN * streamed) * (_TLS if tls else 1.0)
    peak = max(_steps_per_s(phase, pacing_seed(seed, n), takes_s) for n, phase in enumerate(profile.load))
    return CpuEstimate(peak * requests, peak * streamed, peak * us / 1e6)


def _steps_per_s(phase: Phase, seed: int, takes_s: float) -> float:
    possible = phase.slots / takes_s
    if phase.rate is not None:
        return min(possible, max(phase.rate, phase.to or 0.0))
    if phase.kind != "open":
        return possible
    windows = Counter(int((due_s or 0.0) // _WINDOW_S) for _, due_s in pace(phase, seed))
    return min(possible, max(windows.values(), default=0) / _WINDOW_S)


def choose_processes(needed: CpuEstimate, cores: int) -> tuple[int, str]:
    """Choose the number of load processes, with a line that says why."""
    chosen = min(needed.processes, cores)
    peak = f"about {needed.requests_per_s:,.0f} requests/s and {needed.tokens_per_s:,.0f} streamed tokens/s"
    cpu = f"{needed.cores:.1f} cores" if needed.cores >= _SHOWN else f"less than {_SHOWN} cores"
    if chosen < needed.processes:
        cpu += f", of which {cores} are here: the load may be late"
    return chosen, f"--processes auto: {chosen} load process{'es' if chosen > 1 else ''} for {peak} ({cpu})"
