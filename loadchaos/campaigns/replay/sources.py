"""Make a trace of a run, an incident, a trace file or another tool's file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import orjson
from pydantic import ValidationError

from loadchaos.campaigns.recorder.from_recording import recording_of, trace_of_recording
from loadchaos.campaigns.replay import from_agents, from_sessions
from loadchaos.campaigns.replay.from_run import trace_of_run
from loadchaos.campaigns.replay.made_texts import made_text
from loadchaos.core.body_hash import store_body
from loadchaos.core.errors import OptionError
from loadchaos.core.foreign_json import json_object
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.model import DEFAULT_OUTPUT_TOKENS
from loadchaos.core.own_folder import inside
from loadchaos.core.urls import CHAT_PATH
from loadchaos.load.payloads import requests_file
from loadchaos.profile import request_trace
from loadchaos.profile import trace as arrivals
from loadchaos.profile.json_lines import json_lines, read_text
from loadchaos.profile.request_trace import (
    BODIES,
    FILE,
    VERSION,
    Cause,
    RequestTrace,
    TraceHeader,
    TraceSend,
    first_mistake,
)

_SIDE_BY_SIDE = 8
"""Requests in flight of a file that has no times."""
_MOONCAKE_UNIT_S = 0.001


def read_source(path: Path, scratch: Path) -> RequestTrace:
    """Read a trace; its own bodies are stored under `scratch`. Raises OptionError where there is nothing to replay."""
    if not path.is_dir() and not path.is_file():
        raise OptionError(f"{path}: no such run folder, incident folder or trace; `loadchaos runs` lists the runs here")
    try:
        return _of_folder(path, scratch) if path.is_dir() else _of_file(path, scratch)
    except ValueError as e:
        why = f"{path}: {first_mistake(e)}" if isinstance(e, ValidationError) else e
        raise OptionError(f"{why}; give a run folder, an incident folder or a trace") from e


def _of_folder(path: Path, scratch: Path) -> RequestTrace:
    if (path / "events.jsonl").exists() or (path / "events.jsonl.parquet").exists():
        return trace_of_run(RunFolder(path), scratch=scratch)
    if (path / "incident.json").is_file():
        return _of_incident(path, scratch)
    if (path / FILE).is_file():
        return read_source(path / FILE, scratch)
    if (recording := recording_of(path)) is not None:
        return trace_of_recording(recording, scratch)
    raise OptionError(
        f"{path}: neither a run folder (events.jsonl) nor an incident (incident.json) nor a trace ({FILE}) "
        "nor a recording; "
        "`loadchaos runs` lists the runs here"
    )


def _of_incident(path: Path, scratch: Path) -> RequestTrace:
    incident = json.loads((path / "incident.json").read_bytes())
    failure = {"id": incident.get("id"), "severity": incident.get("severity"), "title": incident.get("title")}
    run = RunFolder(path.parent.parent)
    if run.events.exists():
        whole = trace_of_run(run, incident.get("opened_ns"), scratch)
        return _with_failure(whole, failure, str(path))
    file = path / "requests.jsonl"
    rows = [orjson.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
    sends = []
    for row in rows:
        stored = inside(path.parent, str(row.get("body")))
        if row.get("body") and stored.is_file():
            name = store_body(scratch / BODIES, stored.read_bytes())
            data = orjson.loads(stored.read_bytes())
            sends.append(
                TraceSend(
                    id=str(row["id"]), traffic=str(row.get("traffic") or "replay"), path=row.get("path") or CHAT_PATH,
                    body=name, stream=bool(data.get("stream")),
                )
            )  # fmt: skip
    if not sends:
        raise OptionError(
            f"{path}: no body of a request is stored here, and the run that it belongs to is not beside it: give the run "
            "folder"
        )
    header = TraceHeader(
        event="trace", version=VERSION, source=str(path), model=_model(scratch, sends), failure=failure
    )
    return RequestTrace(header, tuple(sends), folder=scratch)


def without_later(source: Path, trace: RequestTrace, failure: str) -> RequestTrace:
    """Trace of a run without requests after its failure first came; they cannot have caused it."""
    if trace.header.plan is None or not source.is_dir():
        return trace
    found = [json.loads(file.read_bytes()) for file in RunFolder(source).incidents.glob("*/incident.json")]
    opened = [i["opened_ns"] for i in found if i.get("id") == failure and i.get("opened_ns") is not None]
    try:
        return trace_of_run(RunFolder(source), until_ns=min(opened)) if opened else trace
    except OptionError:  # every request came later
        return trace


def _with_failure(trace: RequestTrace, failure: Mapping[str, object], source: str) -> RequestTrace:
    known = trace.header.failure
    if known is None or known.get("id") != failure["id"]:
        known = failure
    header = trace.header.model_copy(update={"failure": known, "source": source})
    return replace(trace, header=header)


def _model(folder: Path, sends: Sequence[TraceSend]) -> str:
    data = orjson.loads((folder / BODIES / f"{sends[0].body}.json").read_bytes())
    return str(data.get("model") or "")


def _of_file(path: Path, scratch: Path) -> RequestTrace:
    text = read_text(path)
    first = json_object(text.lstrip("\ufeff\n\r ").partition("\n")[0])
    if first.get("event") == "trace":
        found = request_trace.read(path)
        _require_bodies(found, path)
        return found
    rows = _json_rows(path, text) if '"session_id"' in text or '"requests"' in text else []
    if from_agents.are_agents(rows):
        return from_agents.trace_of_agents(rows, path, scratch, _SIDE_BY_SIDE)
    if from_sessions.are_turns(rows):
        return from_sessions.trace_of_turns(rows, path, scratch, _SIDE_BY_SIDE)
    if {"timestamp", "input_length"} <= first.keys():
        return _of_arrivals(path, scratch)
    return _of_bodies(path, scratch)


def _json_rows(path: Path, text: str) -> list[tuple[str, object]]:
    try:
        return list(json_lines(path, text))
    except ValueError:
        whole = json_object(text)  # JSON over many lines
        return [(str(path), whole)] if whole else []


def _require_bodies(trace: RequestTrace, path: Path) -> None:
    for send in trace.sends:
        if send.body is not None and not trace.body_file(send).is_file() and send.plan is None:
            raise OptionError(
                f"{path}: the body of request {send.id} is missing: move {trace.body_file(send)} there from the machine "
                "of the trace"
            )
        if send.body is None and (send.plan is None or trace.header.plan is None):
            raise OptionError(
                f"{path}: request {send.id} has neither a body nor a step of a plan (the header's key plan): it cannot be "
                "sent. Make the trace of a run folder, or store the bodies"
            )


def _of_bodies(path: Path, scratch: Path) -> RequestTrace:
    """Trace of an OpenAI batch, ShareGPT or AIPerf file, without times: some are sent side by side, in order."""
    sends: list[TraceSend] = []
    for i, request in enumerate(requests_file.read(str(path))):
        stream = request.stream is not False
        body = orjson.dumps({"model": request.model or ""})[:-1]
        limits = request.limits or ({"max_tokens": DEFAULT_OUTPUT_TOKENS} if request.open_ended else {})
        for field, limit in limits.items():
            body += b',"%b":%d' % (field.encode(), limit)
        if stream:
            body += b',"stream":true' + (b"" if request.stream_options else b',"stream_options":{"include_usage":true}')
        name = store_body(scratch / BODIES, body + b"," + request.rest + b"}")
        after = (Cause(request=f"r{i - _SIDE_BY_SIDE}"),) if i >= _SIDE_BY_SIDE else ()
        sends.append(
            TraceSend(id=f"r{i}", after=after, path=request.path, body=name, stream=stream, images=request.images)
        )
    model = next((r.model for r in requests_file.read(str(path)) if r.model), "")
    header = TraceHeader(event="trace", version=VERSION, source=str(path), model=model)
    return RequestTrace(header, tuple(sends), folder=scratch)


def _of_arrivals(path: Path, scratch: Path) -> RequestTrace:
    """Trace of recorded arrivals; equal blocks have equal words, so that shared prefixes survive."""
    sends = []
    for i, arrival in enumerate(arrivals.read(str(path))):
        text = made_text(arrival.input_tokens, arrival.blocks, i)
        body = {
            "model": "", "messages": [{"role": "user", "content": text}], "max_tokens": arrival.output_tokens,
            "ignore_eos": True, "min_tokens": arrival.output_tokens, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        name = store_body(scratch / BODIES, orjson.dumps(body))
        sends.append(
            TraceSend(id=f"r{i}", at_s=arrival.at * _MOONCAKE_UNIT_S, body=name, max_tokens=arrival.output_tokens)
        )
    header = TraceHeader(event="trace", version=VERSION, source=str(path))
    return RequestTrace(header, tuple(sends), folder=scratch)
