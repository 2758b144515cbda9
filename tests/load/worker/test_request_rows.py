"""Begin rows: what identifies a body."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from loadchaos.core.model import Facts
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.request_rows import begin_row
from loadchaos.load.worker.worker_plan import WorkerPlan


def test_begin_row_identifies_its_body_by_length_crc_and_hash(tmp_path: Any) -> None:
    profile = {
        "name": "t", "traffic": [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 8}}],
        "load": [{"users": 1, "requests": 100}],
    }  # fmt: skip
    plan = {"profile": profile, "seed": 1, "base_url": "http://127.0.0.1:1", "folder": str(tmp_path), "workers": 1}
    worker = WorkerPlan(plan, Facts("http://127.0.0.1:1", "http://127.0.0.1:1", "vllm", "m"), 0, {})
    wires = [worker.build_request(step) for step, _ in zip(next(iter(worker.phases()))[1], range(20), strict=False)]
    rows = [begin_row(Exchange(wire, Slot(worker.target), Progress(), 0)) for wire in wires]
    for wire, row in zip(wires, rows, strict=True):
        body = wire.request.body
        assert (row["len"], row["crc"]) == (len(body), zlib.crc32(body))
        assert row["hash"] == hashlib.sha1(body, usedforsecurity=False).hexdigest()[:16]
    assert len({row["hash"] for row in rows}) == len(rows)
