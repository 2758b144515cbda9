"""Make a trace of AIPerf's `mooncake_trace` with sessions (`session_id`, `delay`): each turn waits for the answer before it.

A turn has one of `input_length` (with or without `hash_ids`), `text_input`, `messages` and `payload`. The first two are the
new words of the user: the turns before go with them, with made-up answers of their `output_length`, where AIPerf sends the
server's own answers back. The other two are whole requests, sent as they are. A turn is sent `delay` milliseconds after the
answer before it, or at its `timestamp` where it has one and the answer has come. Read from the code of AIPerf 0.13.0
(dataset/loader/mooncake_trace.py, timing/strategies/fixed_schedule.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from loadchaos.campaigns.replay.made_texts import made_text
from loadchaos.campaigns.replay.row_values import number_of
from loadchaos.core.body_hash import store_body
from loadchaos.core.model import DEFAULT_OUTPUT_TOKENS
from loadchaos.profile.request_trace import BODIES, VERSION, Cause, RequestTrace, TraceHeader, TraceSend

Row = Mapping[str, object]

_MODES = ("input_length", "text_input", "messages", "payload")
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_MS = 0.001


@dataclass
class _Session:
    first: TraceSend | None = None
    newest: str = ""
    begun_ms: float | None = None
    messages: list[dict[str, object]] = field(default_factory=list)


def are_turns(rows: Iterable[tuple[str, object]]) -> bool:
    """True for rows of which one names its session."""
    return any(isinstance(r, dict) and "session_id" in r and any(mode in r for mode in _MODES) for _, r in rows)


def trace_of_turns(rows: Sequence[tuple[str, object]], source: Path, scratch: Path, most_idle: int) -> RequestTrace:
    """Make the trace; of sessions without times `most_idle` go on side by side. Raises ValueError with file and line."""
    sessions: dict[str, _Session] = {}
    sends: list[TraceSend] = []
    turns: dict[str, list[str]] = {}
    times = [at for where, row in rows if (at := number_of(where, row, "timestamp", "milliseconds")) is not None]
    for number, (where, row) in enumerate(rows):
        if not isinstance(row, dict) or sum(row.get(mode) is not None for mode in _MODES) != 1:
            raise ValueError(f"{where}: a turn with one of {', '.join(_MODES)} was expected")
        name = f"r{number}"
        key = str(row.get("session_id") or name)
        session = sessions.setdefault(key, _Session())
        try:
            body = _body(row, session, number)
        except (TypeError, ValueError) as e:
            raise ValueError(f"{where}: {e}") from e
        at_ms, delay_ms = (
            number_of(where, row, "timestamp", "milliseconds"),
            number_of(where, row, "delay", "milliseconds"),
        )
        after: list[Cause] = []
        if session.newest:
            wait_s = 0.0 if at_ms is not None else (delay_ms or 0.0) * _MS
            after.append(Cause(request=session.newest, delay_s=wait_s))
            if at_ms is not None and session.first is not None and session.begun_ms is not None:
                later_s = max(0.0, at_ms - session.begun_ms) * _MS
                after.append(Cause(request=session.first.id, event="begin", delay_s=later_s))
        turns.setdefault(key, []).append(name)
        send = TraceSend(
            id=name,
            at_s=0.0 if at_ms is None else (at_ms - min(times)) * _MS,
            after=tuple(after),
            body=store_body(scratch / BODIES, orjson.dumps(body)),
            stream=bool(body.get("stream")),
            max_tokens=limit if isinstance(limit := body.get("max_tokens"), int) else None,
        )
        if session.first is None:
            session.first, session.begun_ms = send, at_ms
        session.newest = name
        sends.append(send)
    untimed = [key for key, session in sessions.items() if session.begun_ms is None]
    last = {turns[key][0]: turns[before][-1] for before, key in zip(untimed, untimed[most_idle:], strict=False)}
    placed = [s.model_copy(update={"after": (Cause(request=last[s.id]),)}) if s.id in last else s for s in sends]
    return RequestTrace(TraceHeader(event="trace", version=VERSION, source=str(source)), tuple(placed), folder=scratch)


def _body(row: Row, session: _Session, number: int) -> dict[str, object]:
    output = row.get("output_length")
    if output is not None and (type(output) is not int or output < 1):
        raise ValueError(f"output_length: a whole number of at least 1 was expected (got {output!r:.40})")
    extra = row.get("extra") or {}
    if not isinstance(extra, Mapping):
        raise ValueError("extra: an object was expected")
    if (payload := row.get("payload")) is not None:
        if not isinstance(payload, Mapping) or "messages" not in payload:
            raise ValueError("payload: a chat request, an object with messages, was expected")
        return {**payload, **extra}
    limits: dict[str, object] = {"max_tokens": output or DEFAULT_OUTPUT_TOKENS}
    if (messages := row.get("messages")) is not None:
        tools = {"tools": row["tools"]} if row.get("tools") else {}
        return {"model": "", "messages": messages, **tools, **limits, **_STREAMED, **extra}
    text = row.get("text_input")
    if text is None:
        length, blocks = row["input_length"], row.get("hash_ids") or ()
        if type(length) is not int or length < 1 or not isinstance(blocks, list | tuple):
            raise ValueError("input_length and hash_ids: a number of tokens and a list of numbers were expected")
        text = made_text(length, blocks, number)
        if output:
            limits |= {"ignore_eos": True, "min_tokens": output}
    session.messages.append({"role": "user", "content": text})
    body = {"model": "", "messages": list(session.messages), **limits, **_STREAMED, **extra}
    answer = made_text(output or DEFAULT_OUTPUT_TOKENS, (), -2 - number)
    session.messages.append({"role": "assistant", "content": answer})
    return body
