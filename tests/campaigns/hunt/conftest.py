"""A pool of genes, and a server made of rules that answers workloads at once."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from loadchaos.campaigns.hunt.corpus import WorkloadChoice
from loadchaos.campaigns.hunt.genes import GenePool, ServerLimits, pool_of
from loadchaos.campaigns.hunt.journal import WorkloadRow
from loadchaos.campaigns.hunt.workload import Workload
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.run.endpoint_check import ENDPOINTS_BESIDE_CHAT

FACTS = Facts(
    "http://127.0.0.1:1", "http://127.0.0.1:1", "vllm", version="0.18.0", max_model_len=16384, kv_block_size=16,
    images=True, max_images=4, development_endpoints=True, speculative_decoding=True, metrics=True,
)  # fmt: skip
LIMITS = ServerLimits(FACTS, {"sleep_mode": True}, ("a", "b"), endpoints=ENDPOINTS_BESIDE_CHAT)


@pytest.fixture(scope="session")
def pool() -> GenePool:
    """Genes of a server that has everything."""
    return pool_of(LIMITS)


def failure(name: str = "engine_died", frame: str = "f.py g", severity: str = "engine_death") -> dict[str, Any]:
    """A failure as a slot reports it."""
    return {
        "id": name, "frame": frame, "title": f"{name} of a test", "severity": severity, "attribution": "server",
        "line": "RuntimeError", "count": 1, "after_requests": 5, "accepted": False, "before_load": False, "incident": None,
    }  # fmt: skip


def result(
    *features: str, failures: tuple[dict[str, Any], ...] = (), proved: bool = True, **more: Any
) -> dict[str, Any]:
    """The answer of a slot to one workload."""
    return {
        "features": list(features), "lines": [], "idle_lines": [], "failures": list(failures), "requests": 32,
        "proved": proved, "why": "" if proved else "ledger: torn", "outcomes": {"ok": 32}, "died": bool(failures),
        "stopped": False, "restarted": False, "seconds": 0.1, **more,
    }  # fmt: skip


def row(choice: WorkloadChoice, **answer: Any) -> WorkloadRow:
    """The row of a workload."""
    chosen = {"n": choice.number, "workload": to_json(choice.workload), "seed": choice.seed, "parent": choice.parent}
    return from_json(WorkloadRow, {**chosen, "change": choice.change, "at_s": float(choice.number), **answer})


Rules = Callable[[Workload], Mapping[str, Any]]


def stairs(workload: Workload) -> Mapping[str, Any]:
    """Fails where four genes meet; the counters show each step towards it."""
    with_images = any(t.get("images") for t in workload.traffic)
    aborted = any((t.get("abort") or {}).get("before") == "first_byte" for t in workload.traffic)
    many = int(workload.load["users"]) >= 64
    kept = any(t.get("prefix") for t in workload.traffic)
    steps = [with_images, aborted, kept, many]
    reached = 0
    while reached < 4 and steps[reached]:
        reached += 1
    features = [f"grew:mm_cache_misses:{n}" for n in range(reached)]
    return result(*features, failures=(failure(),) if reached == 4 else ())
