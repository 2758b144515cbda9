"""A made-up capacity search that has every figure, as capacity.json."""

from datetime import UTC, datetime
from typing import Any

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.core.typed_json import from_json

BEGAN_S = 1_800_000_000
STEP_S = 20


def step(n: int, load: float, status: str, goodput: float, **more: Any) -> dict[str, Any]:
    """Step number `n`, from 0, which takes `STEP_S`."""
    at = [datetime.fromtimestamp(BEGAN_S + STEP_S * (n + end), UTC).isoformat() for end in (0, 1)]
    latencies = {
        f"{kind}_{name}_s": base * load * factor
        for kind, base in (("ttft", 0.01), ("itl", 0.001), ("tpot", 0.0011), ("e2e", 0.1))
        for name, factor in (("p50", 1), ("p99", 3))
    }
    return {
        "load": load, "status": status, "why": "", "scout": status == "undecided", "leans": status != "not_met",
        "requests": round(10 * load), "good": round(10 * load * goodput), "goodput": goodput,
        "goodput_low": goodput - 0.05, "goodput_high": min(1.0, goodput + 0.02), "requests_per_s": min(load, 11.5),
        "output_tokens_per_s": 32 * min(load, 11.5), "input_tokens_per_s": 100.0, "queue_grows": status == "not_met",
        "queue_growth": 0.0, "seconds": 18.0, "client": {}, "run": f"steps/{n + 1:02}/x", "began": at[0], "ended": at[1],
        **latencies, **more,
    }  # fmt: skip


def search_result(**more: Any) -> CapacityResult:
    """That search."""
    return from_json(CapacityResult, search_data(**more))


def search_data(**more: Any) -> dict[str, Any]:
    """10 requests/s meet the goal, 12 do not."""
    steps = [
        step(0, 4, "undecided", 1.0, proved=[None, None]),
        step(1, 16, "not_met", 0.4, proved=[None, 16]),
        step(2, 10, "met", 0.999, proved=[10, 16]),
        step(3, 12, "not_met", 0.9, proved=[10, 12]),
    ]
    return {
        "schema": 1, "verdict": "pass", "exit_code": 0, "target": "http://127.0.0.1:8000",
        "server": {"dialect": "vllm", "version": "0.32.0", "model": "sim"},
        "started": datetime.fromtimestamp(BEGAN_S, UTC).isoformat(), "seconds": 80.0, "ended": True, "ended_by": "",
        "by": "rate", "goal": 0.99, "slo_s": {"ttft": 1.0, "itl_p99": 0.05, "tpot": 0.05, "e2e": 5.0}, "budget_s": 600.0,
        "tolerance": 0.03, "at_least": None,
        "answer": {"capacity": 10, "low": 10, "high": 12, "client_limit": None, "known": True, "at_least": False,
                   "why": "", "interval": [9.7, 12.4], "narrow": False},
        "knee": {"load": 10, "next": 12},
        "saturation": {"reached": True, "requests_per_s": 11.5, "output_tokens_per_s": 368.0, "load": 16},
        "limit": {"resource": "queue", "load": 12, "evidence": ["never more than 8 requests run at once"]},
        "failures": [], "wanted": {"profile": "small.yaml"}, "steps": steps, **more,
    }  # fmt: skip
