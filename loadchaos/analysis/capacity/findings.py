"""Knee, saturation and limiting resource from the steps of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadchaos.analysis.capacity.result import Knee, Limit, Saturation
from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.core.units import significant

_SLOWED = 2.0
_FULL_KV = 0.95
_PLATEAU = 0.85
_WAITS = 0.5
_FEWEST_BEHIND, _SERVED = 4, 0.9
_CHANCE = 2.5
"""Standard deviations."""
_PROMPTS = 4.0
"""Prompt tokens for each output token from which on the server mostly reads prompts."""


def saturation(steps: Sequence[CapacityStep], by: str) -> Saturation:
    """Highest throughput that an overloaded server had. `reached` is False where no step overloaded the server: it can
    do more. A rate overloads it where its queue grows or it serves less than the rate, a number of users also where
    more of them complete no more.
    """
    measured = [s for s in steps if s.requests_per_s and s.status != "client"]
    if not measured:
        return Saturation()
    best = max(measured, key=lambda s: (s.output_tokens_per_s or 0.0, s.requests_per_s or 0.0))
    served = max(measured, key=lambda s: s.requests_per_s or 0.0)
    lowest = min(measured, key=lambda s: s.load)
    reached = any(s.queue_grows for s in steps) or (by == "rate" and any(_stays_below(s, lowest) for s in measured))
    if not reached and by == "concurrency":
        ordered = sorted(measured, key=lambda s: s.load)
        reached = len(ordered) > 1 and _throughput(ordered[-1]) <= 1.05 * _throughput(ordered[-2])
    return Saturation(
        reached=reached,
        requests_per_s=served.requests_per_s,
        offered_per_s=significant(served.offered / served.completing_s) if by == "rate" and served.offered else None,
        output_tokens_per_s=best.output_tokens_per_s,
        load=best.load,
    )


def _stays_below(step: CapacityStep, lowest: CapacityStep) -> bool:
    """Tell if a server completed less than what was due, by more than the number in flight varies by chance. As many as
    arrive in one answer's time at the lowest load are in flight while it keeps up.
    """
    behind, in_flight = step.offered - step.completed, step.load * (lowest.e2e_p50_s or 0.0)
    return behind >= max(_FEWEST_BEHIND, _CHANCE * math.sqrt(2 * in_flight)) and step.completed < _SERVED * step.offered


def _throughput(step: CapacityStep) -> float:
    return step.output_tokens_per_s or step.requests_per_s or 0.0


def knee(steps: Sequence[CapacityStep], by: str) -> Knee | None:
    """Highest load at which the server keeps up, and the next one tried. It keeps up while the median answer takes less
    than twice as long as at the lowest load, and, by rate, while it completes the rate. None where the lowest load is
    already too high, or no load is.
    """
    ordered = sorted(((s, s.e2e_p50_s) for s in steps if s.e2e_p50_s), key=lambda found: found[0].load)
    below: CapacityStep | None = None
    for step, e2e_s in ordered:
        slowed = e2e_s >= _SLOWED * ordered[0][1]
        behind = by == "rate" and step.queue_grows
        if slowed or behind or step.status == "client":
            return None if below is None else Knee(load=below.load, next=step.load)
        below = step
    return None


def limiting_resource(steps: Sequence[CapacityStep]) -> Limit:
    """Name the resource that limits the load, with the figures that show it. It is one of `client`, `kv_cache`,
    `queue`, `prefill`, `decode` and `unknown`. The evidence is of the lowest load that failed.
    """
    failed = sorted((s for s in steps if s.status == "not_met"), key=lambda s: s.load)
    client = [s for s in steps if s.status == "client"]
    if not failed:
        if client:
            return _named("client", client[0], [client[0].why])
        return Limit(resource="unknown", evidence=("no load failed",))
    step = failed[0]
    if not step.server:
        text = "the server reports no counters" + ("; its queue grows" if step.queue_grows else "")
        return _named("unknown", step, [text, *_limits_exceeded(step)])
    return _of_server(step, min(steps, key=lambda s: s.load))


def _of_server(step: CapacityStep, lowest: CapacityStep) -> Limit:
    server = step.server
    kv, preemptions = server.get("kv_usage_ratio_max", 0.0), server.get("preemptions", 0.0)
    running, most = server.get("requests_running_mean", 0.0), server.get("requests_running_max", 0.0)
    waiting = server.get("requests_waiting_mean", 0.0)
    queue = f"on average {waiting:.1f} requests wait and {running:.1f} run (at most {most:.0f})"
    if kv >= _FULL_KV or preemptions > 0:
        text = f"KV cache use reaches {100 * kv:.0f} %"
        return _named("kv_cache", step, [f"{text}, {preemptions:.0f} preemptions", queue, *_limits_exceeded(step)])
    evidence = [queue, f"KV cache use reaches {100 * kv:.0f} %", *_limits_exceeded(step)]
    reads = _is_slowed_by_prompts(step, lowest)
    if waiting >= _WAITS and running >= _PLATEAU * most and not reads:
        return _named("queue", step, [f"never more than {most:.0f} requests run at once", *evidence])
    gaps = _slower(step, lowest)
    over = next(iter(step.over), "")
    if over == "ttft" or waiting >= _WAITS:
        prompt = server.get("prompt_tokens_per_s")
        rate = [f"the server reads {prompt:,.0f} prompt tokens/s"] if prompt else []
        return _named("prefill", step, [*rate, *(gaps if reads else []), *evidence])
    if over == "tpot" or over.startswith("itl_"):
        return _named("decode", step, [*gaps, *evidence])
    return _named("unknown", step, evidence)


def _is_slowed_by_prompts(step: CapacityStep, lowest: CapacityStep) -> bool:
    """Tell if steps are long, and most of their tokens are prompts. The number of running requests is then steady
    without any limit of it: as many start as end.
    """
    before, after = lowest.tpot_p50_s, step.tpot_p50_s
    if step is lowest or not before or not after or after < _SLOWED * before:
        return False
    return step.server.get("prompt_tokens_per_s", 0.0) >= _PROMPTS * step.server.get("generation_tokens_per_s", 0.0)


def _slower(step: CapacityStep, lowest: CapacityStep) -> list[str]:
    before, after = lowest.tpot_p50_s, step.tpot_p50_s
    if not before or not after or step is lowest:
        return []
    return [f"the median time per output token is {1000 * after:.1f} ms, and {1000 * before:.1f} ms at the lowest load"]


def _limits_exceeded(step: CapacityStep) -> list[str]:
    parts = ", ".join(f"{name}: {n:,}" for name, n in step.over.items())
    return [f"requests over a limit: {parts}"] if parts else []


def _named(resource: str, step: CapacityStep, evidence: Sequence[str]) -> Limit:
    return Limit(resource=resource, load=step.load, evidence=tuple(evidence))
