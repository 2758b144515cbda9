import re
from pathlib import Path
from typing import Any

from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json
from loadchaos.load.registry import full_registry
from loadchaos.load.worker.worker_plan import WorkerPlan
from loadchaos.profile.profile import from_mapping
from loadchaos.profile.run_plan import RunPlan
from loadchaos.profile.steps import steps

TRAFFIC = [{"name": "text", "payload": {"text": {"tokens": 16}}, "output": {"max": 8}}]
VALUE = re.compile(rb"\r\ntraceparent: (00-([0-9a-f]{32})-([0-9a-f]{16})-01)\r\n")


def heads(folder: Path, **parts: Any) -> list[bytes]:
    data = {"name": "p", "traffic": TRAFFIC, "load": [{"users": 1, "requests": 3}], **parts}
    profile = from_mapping(data, full_registry())
    plan = {
        "profile": profile.to_json(), "seed": 0, "workers": 1, "folder": str(folder), "base_url": "http://127.0.0.1:1",
    }  # fmt: skip
    worker = WorkerPlan(from_json(RunPlan, plan), Facts("http://x", "http://x", "vllm"), 0, {})
    return [worker.build_request(step).head for step in steps(profile, 0)]


def test_traceparent_is_sent_only_where_asked_for(tmp_path: Path) -> None:
    assert not any(b"traceparent" in head for head in heads(tmp_path))
    found = [VALUE.search(head) for head in heads(tmp_path, traceparent=True)]
    assert len({match[2] for match in found if match}) == 3, "each request has a trace of its own"
    again = [VALUE.search(head) for head in heads(tmp_path, traceparent=True)]
    assert [m and m[1] for m in again] == [m and m[1] for m in found]
