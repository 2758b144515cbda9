import json
from pathlib import Path

import pytest

from loadchaos.core import resources
from loadchaos.profile import request_trace
from loadchaos.profile.request_trace import Cause, RequestTrace, TraceAbort, TraceAttack, TraceHeader, TraceSend
from tests.schemas import validate

HEADER = TraceHeader(event="trace", version=1, source="runs/x", model="m")
BODY = "0123456789abcdef"


def chain() -> RequestTrace:
    """a, then b after a, then c after b; x at its own time."""
    sends = (
        TraceSend(id="a", body=BODY),
        TraceSend(id="b", at_s=1.0, after=(Cause(request="a", delay_s=0.25),), body=BODY, traffic="images"),
        TraceSend(id="x", at_s=1.5, body=BODY, outcome="ok", expect=("ok", "rejected")),
        TraceSend(id="c", at_s=2.0, after=(Cause(request="b", event="token", token=3),), body=BODY),
    )
    aborts = (TraceAbort(request="b", at_s=1.2, after_token=2),)
    attacks = (TraceAttack(id="reset-1", at_s=1.75, attack={"admin": "reset_mm_cache"}),)
    return RequestTrace(HEADER, sends, aborts, attacks)


def test_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = request_trace.write(chain(), tmp_path)
    found = request_trace.read(file)
    assert (found.header, found.sends, found.aborts, found.attacks) == (
        HEADER, chain().sends, chain().aborts, chain().attacks,
    )  # fmt: skip
    assert found.body_file(found.sends[0]) == tmp_path / "bodies" / f"{BODY}.json"
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events == ["trace", "send", "send", "abort", "send", "attack", "send"]


def test_trace_lines_fit_the_committed_schema(tmp_path: Path) -> None:
    text = (resources.folder("schemas") / "trace.json").read_text()
    assert text == request_trace.schema(), "run `make schemas`"
    for line in request_trace.write(chain(), tmp_path).read_text().splitlines():
        validate(json.loads(line), "trace")


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("{", "trace.jsonl:2:2: not JSON"),
        ('{"event": "send"}', "trace.jsonl:2: id: Field required"),
        ('{"event": "send", "id": "a", "at_s": -1}', "trace.jsonl:2: at_s: "),
        ('{"event": "send", "id": "a", "sent": 1}', "trace.jsonl:2: sent: Extra inputs"),
        ('{"event": "send", "id": "a", "body": "../x"}', "trace.jsonl:2: body: "),
        ('{"event": "sent"}', "trace.jsonl:2: event: "),
        (
            '{"event": "send", "id": "a", "after": [{"request": "b"}]}',
            "trace.jsonl:2: after: the trace has no request 'b'",
        ),
        ('{"event": "abort", "request": "b"}', "trace.jsonl:2: request: the trace has no request 'b'"),
        ('{"event": "send", "id": "a"}\n{"event": "send", "id": "a"}', "trace.jsonl:3: id: another request"),
        ("", "the trace has no requests"),
    ],
)
def test_trace_mistake_has_file_line_and_key(tmp_path: Path, line: str, where: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"event": "trace", "version": 1}\n' + line)
    with pytest.raises(ValueError, match=r"trace\.jsonl") as e:
        request_trace.read(file)
    assert where in str(e.value)


def test_trace_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"event": "trace", "version": 2}\n')
    with pytest.raises(ValueError, match="version: at most 1 was expected"):
        request_trace.read(file)


def test_trace_part_inherits_the_causes_of_what_is_left_out() -> None:
    part = chain().only(["a", "c"])
    assert [s.id for s in part.sends] == ["a", "c"]
    assert part.sends[1].after == (Cause(request="a", delay_s=0.25),)
    assert part.aborts == ()
    assert len(part.attacks) == 1


def test_trace_part_begins_at_its_first_request() -> None:
    part = chain().only(["x", "c"])
    assert [(s.id, s.at_s, s.after) for s in part.sends] == [("x", 0.0, ()), ("c", 0.5, ())]
    assert [a.at_s for a in part.attacks] == [0.25]
