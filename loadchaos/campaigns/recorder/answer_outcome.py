"""Decide the outcome of an answer that a tap saw, by the rules of a run.

The reader of the endpoint reads what the tap kept of the body: all of a short one, the end of a long stream. So a tap
and a run agree on the same bytes. What a tap cannot see:

- What the request asked for: its contract, its number of choices, whether it asked for a stream.
- Which server it is. Refusals and overload of any server count as such, and a stream may end without [DONE] after its
  finish_reason, as those of one server do.
- The start of a long stream: an error there, and choices that ended there or never.
- A long JSON value: only the finish_reason at its end is read.
- The body of an answer in an encoding other than gzip and deflate.
- HTTP that only one of the two parsers takes, such as a head whose lines end with a bare LF.

Of a path that no endpoint of a run has, status and error objects count. Of requests other than POST, only the status.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import orjson

from loadchaos.core.content_encoding import PACKED, inflater
from loadchaos.core.model import Outcome
from loadchaos.core.outcome_rules import End, end_event, error_event_outcome, error_object, finish_outcome
from loadchaos.load.endpoints import ENDPOINTS, known_endpoint_of_path
from loadchaos.load.wire.answer_reader import AnswerRules, begins_stream
from loadchaos.load.wire.decision import KEPT_ERROR_BYTES, ExchangeEnd, ResponseHead, decide
from loadchaos.load.wire.sse import SseParser
from loadchaos.server.dialects import outcome_rules_of_any_server as _rules

STREAM_BYTES = 16 << 10
"""Up to this size a stream is kept whole; of a longer one, the end is kept."""
STREAM_END_BYTES = 8 << 10
JSON_BYTES = KEPT_ERROR_BYTES
"""Up to this size any other body is kept whole."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")
FINISH_REASON = re.compile(rb'"(?:finish_reason|stop_reason)": ?"([a-z_]{1,20})"')


class SeenAnswer(NamedTuple):
    """An answer as a tap saw it. `status` is 0 without a response head. `headers` are values by lower-case name, of
    `retry-after` and `content-encoding`. `body` is what was kept, `whole` says that nothing is left out. `end_ns` is
    the time of the last byte, monotonic.
    """

    post: bool
    path: str
    status: int
    headers: Mapping[str, str]
    declared_stream: bool
    body: bytes
    whole: bool
    end_ns: int


def outcome_of(answer: SeenAnswer, end: End) -> Outcome:
    ended = ExchangeEnd(end, "", answer.end_ns)
    if not answer.status:
        return decide(ended, None, None, b"", _rules())[0][0].outcome
    head = ResponseHead(answer.status, "", answer.headers)
    body = _decoded(answer)
    if not 200 <= answer.status < 300:
        if answer.status < 400 and not answer.post:
            return _ending(end)
        return decide(ended, head, None, body or b"", _rules())[0][0].outcome
    if not answer.post or body is None:
        return _ending(end)
    stream = begins_stream(body, declared=answer.declared_stream)
    name = known_endpoint_of_path(answer.path)
    if name is None:
        return _outcome_of_errors(body, end, stream=stream)
    if not answer.whole and not stream:
        found = FINISH_REASON.findall(body)
        return (finish_outcome(found[-1].decode()) if found else None) or _ending(end)
    reader = ENDPOINTS[name].answer(AnswerRules(_rules()), asked_stream=stream, declared_stream=answer.declared_stream)
    if not answer.whole:
        reader.skip_front()
        boundary = _EVENT_END.search(body)
        body = body[boundary.end() :] if boundary is not None else b""
        if not body:
            return _ending(end)  # the last event is longer than what is kept
    if body:
        reader.feed(answer.end_ns, body)
    return decide(ended, head, reader, b"", _rules())[0][0].outcome


def _ending(end: End) -> Outcome:
    return "ok" if end == "complete" else end_event(end, "").outcome


def _decoded(answer: SeenAnswer) -> bytes | None:
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    if coding in {"", "identity"}:
        return answer.body
    if coding not in PACKED or not answer.whole:
        return None
    try:
        inflate = inflater()
        body = inflate.decompress(answer.body, JSON_BYTES << 4)
    except zlib.error:
        return None
    return None if inflate.unconsumed_tail else body


def _outcome_of_errors(body: bytes, end: End, *, stream: bool) -> Outcome:
    """Outcome of an answer of an unknown protocol: error objects count."""
    texts = [event.data for event in SseParser().feed(body)] if stream else [body]
    for number, text in enumerate(texts):
        try:
            error = error_object(orjson.loads(text))
        except orjson.JSONDecodeError:
            continue
        if error is not None:
            return error_event_outcome(error, after_token=number > 0, rules=_rules()) if stream else "http_error"
    return _ending(end)
