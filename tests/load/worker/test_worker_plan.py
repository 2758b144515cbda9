import pytest

from loadchaos.core.errors import LedgerError
from loadchaos.core.model import Facts
from loadchaos.load.worker.worker_plan import WorkerPlan


@pytest.mark.parametrize(("worker", "workers"), [(1, 1), (2, 2), (-1, 2)])
def test_worker_outside_its_count_is_refused(worker: int, workers: int) -> None:
    plan = {
        "profile": {
            "name": "p",
            "traffic": [{"name": "text", "payload": {"text": {"tokens": 8}}}],
            "load": [{"users": 1, "for": "1s"}],
        },
        "seed": 0,
        "workers": workers,
        "folder": "/nowhere",
        "base_url": "http://127.0.0.1:1",
    }
    facts = Facts("http://x", "http://x", "vllm")
    with pytest.raises(LedgerError, match=f"worker {worker} of {workers}"):
        WorkerPlan(plan, facts, worker, {})
