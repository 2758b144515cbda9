import json
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.core import typed_json
from loadchaos.core.body_hash import body_hash
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import Facts, Step
from loadchaos.core.typed_json import from_json
from loadchaos.load import request_builder
from loadchaos.load.registry import traffic_registry
from loadchaos.load.wire.request import Request
from loadchaos.profile.profile import from_mapping
from loadchaos.profile.steps import of_phase
from loadchaos.run import rebuild
from loadchaos.run.rebuild import StoredBody

PROFILE: dict[str, Any] = {
    "name": "t",
    "traffic": [
        {"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"max": 8}},
        {
            "name": "images",
            "payload": {"images": {"count": 1, "size": "64x64"}, "text": {"tokens": 16}},
            "output": {"max": 8},
        },
    ],
    "load": [{"users": 4, "requests": 30, "rounds": 2}, {"users": 4, "for": "10m"}],
}
FACTS = Facts(
    base_url="http://h", admin_url="http://h", dialect="vllm", model="m", images=True, image_tokens={"64x64": 4}
)


class Sent:
    """A run folder with the begin rows of some steps."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.folder.plan.write_text(json.dumps({"profile": PROFILE, "seed": 3}))
        self.folder.facts.write_text(json.dumps(typed_json.to_json(FACTS)))
        self.profile = from_mapping(PROFILE, traffic_registry())
        self.rows = Writer(self.folder.requests(0), "worker")
        self.requests: dict[str, Request] = {}

    def send(self, phase: int, number: int, **wrong: Any) -> dict[str, Any]:
        """Send the n-th step of a phase; gives it as an incident lists it."""
        step: Step = next(s for n, s in enumerate(of_phase(self.profile, 3, phase)) if n == number)
        request = request_builder.build(step, FACTS)
        name = f"lc-{step.index}"
        self.requests[name] = request
        digest = body_hash(request.body)
        row = {"row": "begin", "at_ns": 0, "id": name, "step": step.index, "phase": phase, "len": len(request.body)}
        self.rows.write({**row, "hash": digest, **wrong})
        return {"id": name, "step": step.index, "traffic": step.traffic}

    def body(self, stored: StoredBody) -> bytes:
        return (self.folder.incidents / str(stored.body)).read_bytes()


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return Sent(tmp_path)


def incident(n: int, in_flight: list[Any], admitted: list[Any] | None = None, kind: str = "death") -> IncidentRecord:
    given = {"n": n, "kind": kind, "in_flight": in_flight, "admitted": admitted or []}
    return typed_json.from_json(IncidentRecord, given)


def test_rebuild_stores_the_bodies_that_were_sent_with_images(sent: Sent) -> None:
    in_flight = [sent.send(0, n) for n in (3, 4, 5, 6, 17, 44)] + [sent.send(1, n) for n in (0, 25)]
    bodies = rebuild.store(sent.folder, [incident(1, in_flight, [in_flight[0], sent.send(0, 1)])])[1]
    assert [(t.id, t.in_flight) for t in bodies] == [(f["id"], True) for f in in_flight] + [(bodies[-1].id, False)]
    for t in bodies:
        assert sent.body(t) == sent.requests[t.id].body
        assert (t.why, t.path) == (None, "/v1/chat/completions")
    assert any(b"data:image/" in sent.body(t) for t in bodies)


def test_rebuild_stores_a_shared_body_once(sent: Sent) -> None:
    one, two = sent.send(0, 1), sent.send(0, 2)
    bodies = rebuild.store(sent.folder, [incident(1, [one, two]), incident(2, [two])])
    assert bodies[1][1].body == bodies[2][0].body
    assert len(list((sent.folder.incidents / "bodies").iterdir())) == 2


def test_rebuild_rejects_a_body_that_differs(sent: Sent) -> None:
    one, two = sent.send(0, 1, hash="0" * 16), sent.send(0, 2, len=5)
    bodies = rebuild.store(sent.folder, [incident(1, [one, two])])[1]
    assert [t.body for t in bodies] == [None, None]
    assert all("length or hash differ" in str(t.why) for t in bodies)


def test_rebuild_prefers_deaths_within_its_limit(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, died, admitted = (sent.send(0, n) for n in (1, 2, 3))
    limit = len(sent.requests[died["id"]].body) + 10
    monkeypatch.setattr(rebuild, "MAX_BYTES", limit)
    bodies = rebuild.store(sent.folder, [incident(1, [failed], kind="failure"), incident(2, [died], [admitted])])
    assert bodies[2][0].body is not None
    assert "do not fit" in str(bodies[1][0].why)
    assert "do not fit" in str(bodies[2][1].why)


def test_rebuild_without_time_stores_nothing_and_says_so(sent: Sent) -> None:
    bodies = rebuild.store(sent.folder, [incident(1, [sent.send(0, 1)])], budget_s=-1.0)[1]
    assert bodies[0].body is None
    assert "time" in str(bodies[0].why) or "reach" in str(bodies[0].why)


def test_rebuild_lists_a_request_without_its_begin_row(sent: Sent) -> None:
    bodies = rebuild.store(sent.folder, [incident(1, [{"id": "lc-9", "step": 9, "traffic": "text"}])])[1]
    assert bodies[0].why == "its begin row is not in the ledger"


def test_incident_page_names_the_file_of_each_body_and_how_to_send_it(tmp_path: Path) -> None:
    from loadchaos.report.incident.folder import write

    folder = RunFolder(tmp_path)
    rows = [
        {"id": "a", "in_flight": True, "path": "/v1/chat/completions", "body": "bodies/ab.json", "why": None},
        {"id": "b", "in_flight": False, "path": None, "body": None, "why": "no room"},
    ]
    home = write(folder, from_json(IncidentRecord, {"n": 1, "id": "x", "severity": "engine_death"}), rows)
    page = (home / "incident.md").read_text()
    assert "stored: 1 of 2 requests (1 in flight)" in page
    assert "--data-binary @../bodies/ab.json $SERVER/v1/chat/completions" in page
    assert "not stored: 1, no room" in page
    assert [json.loads(line)["id"] for line in (home / "requests.jsonl").read_text().splitlines()] == ["a", "b"]
