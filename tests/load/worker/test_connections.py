from pathlib import Path

import pytest

from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json
from loadchaos.load.registry import full_registry
from loadchaos.load.worker.worker_plan import WorkerPlan
from loadchaos.profile.profile import from_mapping
from loadchaos.profile.run_plan import RunPlan
from loadchaos.profile.steps import steps


@pytest.mark.parametrize(
    ("dialect", "stream", "fresh"), [("vllm", True, False), ("llamacpp", True, True), ("llamacpp", False, False)]
)
def test_connection_is_not_kept_where_the_server_closes_it_after_a_stream(
    tmp_path: Path, dialect: str, stream: bool, fresh: bool
) -> None:
    traffic = [{"name": "t", "stream": stream, "payload": {"text": {"tokens": 16}}, "output": {"max": 8}}]
    data = {"name": "p", "traffic": traffic, "load": [{"users": 1, "requests": 1}]}
    profile = from_mapping(data, full_registry())
    plan = {
        "profile": profile.to_json(), "seed": 0, "workers": 1, "folder": str(tmp_path), "base_url": "http://127.0.0.1:1",
    }  # fmt: skip
    (step,) = steps(profile, 0)
    assert (
        WorkerPlan(from_json(RunPlan, plan), Facts("http://x", "http://x", dialect), 0, {}).build_request(step).fresh
        is fresh
    )
