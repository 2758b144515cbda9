import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.campaigns.replay import bodies
from loadchaos.campaigns.replay.expected import choose, guilty_frame
from loadchaos.campaigns.replay.from_run import trace_of_run
from loadchaos.campaigns.replay.servers import of_source
from loadchaos.campaigns.replay.sources import read_source, without_later
from loadchaos.core import typed_json
from loadchaos.core.body_hash import body_hash, store_body
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json
from loadchaos.load import request_builder
from loadchaos.load.registry import traffic_registry
from loadchaos.load.wire.request import Request
from loadchaos.profile import request_trace
from loadchaos.profile.profile import from_mapping
from loadchaos.profile.steps import steps

MS = 1_000_000
PROFILE: dict[str, Any] = {
    "name": "t",
    "traffic": [
        {"name": "text", "payload": {"text": {"tokens": "16..64"}}, "output": {"max": 8}},
        {"name": "leaving", "payload": {"text": {"tokens": 16}}, "behaviour": {"abort": {"at_token": "1..9"}}},
    ],
    "load": [{"users": 2, "requests": 4, "rounds": 2}, {"rate": "10/s", "for": "1s"}],
    "attacks": [{"admin": "pause", "every": "2s", "params": {"mode": "keep"}}],
}
FACTS = Facts(base_url="http://h", admin_url="http://h", dialect="vllm", model="m")


class Recorded:
    """A run folder with the rows of some requests, in milliseconds from the start of the load."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.folder = RunFolder(path)
        self.folder.plan.write_text(json.dumps({"profile": PROFILE, "seed": 3}))
        self.folder.facts.write_text(json.dumps(typed_json.to_json(FACTS)))
        self.events, self.rows = Writer(self.folder.events, "run"), Writer(self.folder.requests(0), "worker")
        self.steps = {s.index: s for s in steps(from_mapping(PROFILE, traffic_registry()), 3)}
        self.zero_ns = 1_000 * MS
        self.events.write({"row": "facts", "at_ns": 1, "facts": typed_json.to_json(FACTS)})
        self.rows.write({"row": "load", "at_ns": self.zero_ns, "what": "begin"})

    def request(self, index: int, begin_ms: float, end_ms: float | None, **end: Any) -> Request:
        step = self.steps[index]
        request = request_builder.build(step, FACTS)
        at_ns = self.zero_ns + int(begin_ms * MS)
        row = {
            "row": "begin", "id": f"lc-7-{index}", "step": index, "phase": step.phase, "round": step.round,
            "traffic": step.traffic, "at_ns": at_ns, "len": len(request.body), "hash": body_hash(request.body),
            "behaviour": step.behaviour, "expect": ["ok"], "images": 0, "max_tokens": request.max_tokens, "seed": step.seed,
        }  # fmt: skip
        self.rows.write(row)
        if end_ms is not None:
            at_ns = self.zero_ns + int(end_ms * MS)
            self.rows.write({"row": "end", "id": f"lc-7-{index}", "at_ns": at_ns, "outcome": "ok", "chunks": 8, **end})
        return request

    def later(self, name: str, begin_ms: int, end_ms: int, behaviour: str = "plain") -> None:
        """A request that follows the first one in its session or pipeline."""
        row = {
            "row": "begin", "id": name, "step": 0, "phase": 0, "round": 0, "traffic": "text", "len": 1, "hash": "0" * 16,
            "at_ns": self.zero_ns + begin_ms * MS, "behaviour": behaviour, "expect": ["ok"],
        }  # fmt: skip
        self.rows.write(row)
        at_ns = self.zero_ns + end_ms * MS
        self.rows.write({"row": "end", "id": name, "at_ns": at_ns, "outcome": "ok", "chunks": 8})


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "t-1")


def causes(folder: RunFolder) -> dict[str, list[tuple[str, float]]]:
    found = trace_of_run(folder).sends
    return {s.id: [(c.request, c.delay_s) for c in s.after] for s in found}


def test_trace_of_users_names_the_answer_that_freed_the_user(run: Recorded) -> None:
    run.request(0, 1, 100)
    run.request(1, 2, 300)
    run.request(2, 101, 250)
    run.request(3, 251, 400)
    assert causes(run.folder) == {
        "lc-7-0": [], "lc-7-1": [], "lc-7-2": [("lc-7-0", 0.001)], "lc-7-3": [("lc-7-2", 0.001)],
    }  # fmt: skip


def test_trace_of_users_waits_for_the_last_answer_of_a_session(run: Recorded) -> None:
    """A session of the first user is not over when the second user has its answer."""
    run.request(0, 1, 100)
    run.request(1, 2, 110)
    run.request(2, 111, 150)
    run.later("lc-7-0-r1", 120, 140)
    run.request(3, 141, None)
    found = causes(run.folder)
    assert found["lc-7-2"] == [("lc-7-1", 0.001)]
    assert found["lc-7-3"] == [("lc-7-0-r1", 0.001)]


def test_trace_of_users_waits_for_the_first_answer_of_a_pipeline(run: Recorded) -> None:
    """The followers of a pipeline are not in the trace: the replay sends them again with their first request."""
    run.request(0, 1, 100)
    run.later("lc-7-0.1", 2, 140, "pipeline")
    run.request(1, 101, None)
    run.request(2, 141, 250)
    assert causes(run.folder) == {"lc-7-0": [], "lc-7-1": [("lc-7-0", 0.001)], "lc-7-2": [("lc-7-0", 0.041)]}


def test_trace_of_a_session_waits_for_the_answer_before_in_its_path(run: Recorded) -> None:
    run.request(0, 1, 100)
    run.request(1, 2, 190)
    run.later("lc-7-0-r1", 200, 300)
    run.later("lc-7-0-b1r1", 301, 400)
    run.later("lc-7-0-b2r1", 302, 500)
    run.later("lc-7-0-b1r2", 900, 950)
    assert causes(run.folder) == {
        "lc-7-0": [], "lc-7-1": [], "lc-7-0-r1": [("lc-7-0", 0.1)], "lc-7-0-b1r1": [("lc-7-0-r1", 0.001)],
        "lc-7-0-b2r1": [("lc-7-0-r1", 0.002)], "lc-7-0-b1r2": [("lc-7-0-b1r1", 0.5)],
    }  # fmt: skip


def test_trace_of_a_new_round_waits_for_the_end_of_the_round_before(run: Recorded) -> None:
    run.request(0, 1, 100)
    run.request(1, 2, 300)
    run.request(4, 310, 400)
    run.request(5, 320, None)
    found = causes(run.folder)
    assert found["lc-7-4"] == [("lc-7-1", 0.01)]
    assert found["lc-7-5"] == [("lc-7-1", 0.02)]


def test_trace_of_an_open_phase_has_times_after_the_phase_before(run: Recorded) -> None:
    first = 1_000_000_000
    run.request(0, 1, 100)
    run.request(first, 150, 900)
    run.request(first + 1, 250, 950)
    found = causes(run.folder)
    assert found[f"lc-7-{first}"] == [("lc-7-0", 0.05)]
    assert found[f"lc-7-{first + 1}"] == [("lc-7-0", 0.15)]


def test_trace_keeps_aborts_and_attacks_with_their_length(run: Recorded) -> None:
    leaving = next(i for i, s in run.steps.items() if s.behaviour == "abort")
    run.request(leaving, 0, 80, outcome="aborted", chunks=5, sent_ns=run.zero_ns)
    attack = {"row": "attack", "attack": "pause", "kind": "admin", "n": 1, "replica": "server", "text": ""}
    run.events.write({**attack, "at_ns": run.zero_ns + 2_000 * MS, "what": "begin"})
    run.events.write({**attack, "at_ns": run.zero_ns + 3_500 * MS, "what": "undo"})
    found = trace_of_run(run.folder)
    assert [(a.request, a.after_token) for a in found.aborts] == [(f"lc-7-{leaving}", 5)]
    assert [(a.at_s, dict(a.attack)) for a in found.attacks] == [
        (2.0, {"admin": "pause", "params": {"mode": "keep"}, "for": "1500ms"})
    ]
    assert bodies.with_aborts(found).sends[0].behaviour == {"abort": {"at_token": 5}}


def test_bodies_of_a_trace_are_those_that_were_sent(run: Recorded, tmp_path: Path) -> None:
    sent = [run.request(i, i, i + 10).body for i in range(3)]
    found = bodies.stored(trace_of_run(run.folder), tmp_path / "out")
    assert [found.body_file(s).read_bytes() for s in found.sends] == sent
    assert [s.body for s in found.sends] == [body_hash(b) for b in sent]
    again = request_trace.read(request_trace.write(found, tmp_path / "out"))
    assert bodies.stored(again, tmp_path / "out").sends == found.sends


def test_body_that_differs_from_the_sent_one_is_refused(run: Recorded, tmp_path: Path) -> None:
    run.request(0, 1, 2)
    found = trace_of_run(run.folder)
    other = found.sends[0].model_copy(update={"plan": found.sends[0].plan.model_copy(update={"hash": "0" * 16})})  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="length or hash differ"):
        bodies.stored(request_trace.RequestTrace(found.header, (other,), folder=found.folder), tmp_path / "out")


def test_body_that_an_incident_stored_stands_for_one_that_cannot_be_built(run: Recorded, tmp_path: Path) -> None:
    run.request(0, 1, 2)
    found = trace_of_run(run.folder)
    kept = run.folder.incidents / "bodies"
    name = store_body(kept, b'{"model": "m", "messages": []}')
    planned = found.sends[0].plan.model_copy(update={"hash": name})  # type: ignore[union-attr]
    other = found.sends[0].model_copy(update={"plan": planned})
    again = bodies.stored(request_trace.RequestTrace(found.header, (other,), folder=found.folder), tmp_path / "out")
    assert again.sends[0].body == name


def test_trace_of_a_run_without_newer_fields_is_made(run: Recorded, tmp_path: Path) -> None:
    """Rows of older versions lack fields; a killed run lacks ends and a verdict."""
    rows = [json.loads(line) for line in run.folder.requests(0).read_text().splitlines()]
    old = {"row": "begin", "id": "lc-7-0", "step": 0, "phase": 0, "at_ns": run.zero_ns, "traffic": "text"}
    run.folder.requests(0).write_text("".join(json.dumps(r) + "\n" for r in [*rows, old]) + '{"row": "beg')
    found = bodies.stored(trace_of_run(run.folder), tmp_path / "out")
    assert [(s.id, s.outcome) for s in found.sends] == [("lc-7-0", None)]
    assert found.body_file(found.sends[0]).is_file()


def test_requests_that_came_after_the_failure_are_left_out(run: Recorded, tmp_path: Path) -> None:
    for i in range(3):
        run.request(i, 100 * i, 100 * i + 50)
    for n, (name, at_ms) in enumerate([("other", 50), ("death", 150), ("death", 950)]):
        folder = run.folder.incidents / f"{n:03}-{name}"
        folder.mkdir(parents=True)
        (folder / "incident.json").write_text(json.dumps({"id": name, "opened_ns": run.zero_ns + at_ms * MS}))
    whole = read_source(run.folder.path, tmp_path)
    assert [s.id for s in without_later(run.folder.path, whole, "death").sends] == ["lc-7-0", "lc-7-1"]
    assert without_later(run.folder.path, whole, "unseen").sends == whole.sends
    assert without_later(tmp_path / "trace.jsonl", whole, "death").sends == whole.sends


def test_failure_before_every_request_keeps_them_all(run: Recorded, tmp_path: Path) -> None:
    run.request(0, 100, 150)
    (run.folder.incidents / "001-death").mkdir(parents=True)
    (run.folder.incidents / "001-death/incident.json").write_text(json.dumps({"id": "death", "opened_ns": run.zero_ns}))
    whole = read_source(run.folder.path, tmp_path)
    assert without_later(run.folder.path, whole, "death").sends == whole.sends


def test_trace_without_requests_is_refused(run: Recorded) -> None:
    with pytest.raises(OptionError, match="sent no request"):
        trace_of_run(run.folder)


def test_run_whose_server_died_of_the_first_question_has_it_as_its_trace(run: Recorded, tmp_path: Path) -> None:
    target = {"launch": {"command": ["serve", "--port", "1"], "url": "http://127.0.0.1:1"}}
    (run.folder.path / "profile.yaml").write_text(json.dumps({"target": target}))
    run.events.write({"row": "run", "at_ns": 2, "what": "begin", "target": {"kind": "launched"}})
    run.folder.verdict.write_text(json.dumps({"failures": [{"id": "x", "severity": "engine_death"}]}))
    (tmp_path / "out").mkdir()
    found = bodies.stored(read_source(run.folder.path, tmp_path / "out"), tmp_path / "out")
    (sent,) = found.sends
    assert json.loads(found.body_file(sent).read_bytes())["messages"] == [{"role": "user", "content": "Hello"}]
    assert of_source(found).describe() == "serve --port 1"
    run.folder.verdict.write_text(json.dumps({"failures": [{"id": "x", "severity": "startup"}]}))
    with pytest.raises(OptionError, match="sent no request"):
        read_source(run.folder.path, tmp_path / "out")


def test_source_openai_batch_is_eight_side_by_side(tmp_path: Path) -> None:
    batch = tmp_path / "batch.jsonl"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    rows = [{"custom_id": str(i), "url": "/v1/chat/completions", "body": body} for i in range(10)]
    batch.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_source(batch, tmp_path / "out")
    assert [[c.request for c in s.after] for s in found.sends] == [[]] * 8 + [["r0"], ["r1"]]
    assert json.loads(found.body_file(found.sends[9]).read_bytes())["messages"] == body["messages"]


def test_source_mooncake_keeps_lengths_times_and_shared_prefixes(tmp_path: Path) -> None:
    file = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [7, 8]},
        {"timestamp": 500, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]},
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    found = read_source(file, tmp_path / "out")
    texts = [json.loads(found.body_file(s).read_bytes())["messages"][0]["content"].split() for s in found.sends]
    assert [s.at_s for s in found.sends] == [0.0, 0.5]
    assert [len(t) for t in texts] == [600, 700]
    assert texts[0][:512] == texts[1][:512]
    assert texts[0][512:600] != texts[1][512:600]


def test_source_without_bodies_and_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"event": "trace", "version": 1}\n{"event": "send", "id": "a"}\n')
    with pytest.raises(OptionError, match="request a has neither a body nor a step of a plan"):
        read_source(file, tmp_path / "out")


def death(**changes: Any) -> FailureResult:
    frames = ["a.py:1 f", "b.py:20 g"]
    return from_json(FailureResult, {"id": "x", "severity": "engine_death", "title": "X", "frames": frames, **changes})


def test_expected_failure_is_matched_by_id_and_frame_without_line_numbers() -> None:
    expected = choose([death()], None, "run")
    assert expected.frame == "b.py g"
    assert expected.matches(death(frames=["a.py:1 f", "b.py:21 g"]))
    assert not expected.matches(death(frames=["a.py:1 f", "c.py:20 g"]))
    assert not expected.matches(death(id="y"))
    assert guilty_frame(death(frame="a.py:1 f")) == "a.py f"
    assert guilty_frame(death(frame="")) == ""


def test_expected_failure_is_read_back_from_a_trace() -> None:
    expected = choose([death()], None, "run")
    assert choose([from_json(FailureResult, expected.to_json())], None, "trace") == expected


def test_expected_failure_any_death_matches_every_death() -> None:
    expected = choose([death()], None, "run", any_death=True)
    assert expected.matches(death(id="y", frames=[]))
    assert not expected.matches(death(severity="request"))


def test_expected_failure_is_asked_for_where_two_could_be_meant() -> None:
    other = death(id="y", title="Y", severity="request")
    with pytest.raises(OptionError, match=r"choose one with --failure ID: x \(engine_death: X\), y \(request: Y\)"):
        choose([death(), other], None, "run")
    assert choose([death(), other], "y", "run").id == "y"
    assert choose([death(), replace(other, attribution="injected")], None, "run").id == "x"
    with pytest.raises(OptionError, match="--failure z: run has x"):
        choose([death()], "z", "run")


def test_expected_failure_of_a_run_without_one_is_refused() -> None:
    with pytest.raises(OptionError, match="the run has no failure"):
        choose([death(before_load=True)], None, "run")


def test_damaged_row_of_a_run_is_told_in_one_line(run: Recorded, tmp_path: Path) -> None:
    request = run.request(0, 1, 100)
    rows = run.folder.requests(0)
    rows.write_text(rows.read_text().replace(body_hash(request.body), "zz"))
    with pytest.raises(OptionError) as told:
        read_source(run.folder.path, tmp_path)
    begin = rf"{run.folder.path}: hash: [^\n]* \(got 'zz'\); give a run folder, "
    assert re.match(begin, str(told.value)), told.value
    assert "\n" not in str(told.value)
