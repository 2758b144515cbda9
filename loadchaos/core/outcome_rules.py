"""Classify the end of a request by its HTTP status, headers and error texts: `shed`, `rejected`, `http_error` and so on.

The first decisive event in byte order wins. Sans-I/O. The load, the recorder and questions beside the load use these
rules. The texts by which servers report invalid requests, overload and a dead engine come in as `OutcomeRules`, because
they differ from server to server. Everything else here is HTTP and the OpenAI protocol. What the body of an answer says
is read by load/wire/answer_reader.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from re import Pattern
from typing import Any, Literal, NamedTuple

import orjson

from loadchaos.core.model import Outcome
from loadchaos.core.slotted import slotted_dataclass

End = Literal["complete", "cut", "unreached", "stalled", "timeout", "hung_up", "not_http"]
"""End of an exchange: the body ended as promised (`complete`); the connection was closed or reset before
(`cut`); no connection came about (`unreached`); our limits (`stalled`, `timeout`); we hung up as planned; no HTTP."""

SHED_STATUSES = frozenset({429})
"""HTTP statuses, and codes of errors in a stream, that count as `shed`."""
UNAVAILABLE_STATUS = 503
"""Counts as `shed` only with a Retry-After, or with a text that says that the server is busy; else as `http_error`."""
MAX_ERROR_CHARS = 4000
CLOSED_UNANNOUNCED = (
    "the server closed the kept-alive connection as this request came, without a `Connection: close` before: it closed it "
    "after its last answer, or dropped this request"
)
"""Error text of a `reset` that two faults explain."""
TEXT_AFTER_DONE = "text follows the [DONE] of its answer"
TEXT_OF_OTHER_AFTER_DONE = "text of another answer follows the [DONE]"
WORD_OF_ANOTHER = "the word of another request is in the answer"
TEXT_AFTER_FINISH = "text follows the finish_reason of its answer"
"""Error texts of outcome `wrong_output`. The text itself is the model's, which is no evidence."""
ENDS_WELL = frozenset({
    "stop", "length", "tool_calls", "tool_call", "tool_use", "function_call", "stop_sequence", "stop_str", "stop_token",
    "eos", "eos_token", "end_turn", "max_tokens", "completed", "complete", "repetition",
})  # fmt: skip
"""Values of finish_reason, in lower case, of answers that ended as the request allows: those of OpenAI, and words for
the same of text-generation-inference (eos_token), Anthropic (end_turn), vLLM (repetition) and gateways."""
_NO_CODE = (None, "", 0, "0")
ANSWER_KEYS = frozenset({
    "id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "prompt_logprobs",
    "prompt_token_ids", "prompt_text", "kv_transfer_params",
})  # fmt: skip
"""Keys of an answer that tell no error, no draft count and no number."""
_OUTCOME_OF_END: Mapping[End, Outcome] = {
    "cut": "reset", "unreached": "connect_error", "stalled": "stalled", "timeout": "timeout", "hung_up": "aborted",
    "not_http": "protocol_error",
}  # fmt: skip


@slotted_dataclass(frozen=True)
class OutcomeRules:
    """Rules by which the answers of one server are judged. The regexes are searched in its error texts. A status of
    `plain_validation` means a client error by itself when the body is a JSON error object (a server of unknown make).
    `sends_done`: streams end with `data: [DONE]`.
    """

    validation: Sequence[Pattern[str]] = ()
    shed: Sequence[Pattern[str]] = ()
    engine_dead: Sequence[Pattern[str]] = ()
    plain_validation: frozenset[int] = frozenset()
    sends_done: bool = True


class OutcomeEvent(NamedTuple):
    """An event in an exchange that can decide its outcome; the first one does. It exists from the moment the event is
    read until the reply is made. `text` and `code` are the server's.
    """

    outcome: Outcome
    text: str = ""
    code: int | str | None = None


class ErrorObject(NamedTuple):
    """An error as the server sent it, whatever its shape."""

    text: str
    code: int | str | None
    kind: str


def retry_after_s(value: str, now: float) -> float | None:
    """Parse a Retry-After, which has seconds or a date: seconds from `now` (Unix time), at least 0. None for others."""
    if value.isascii() and value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None


def error_object(data: object) -> ErrorObject | None:
    """Find the error in a JSON value; None when there is none. Shapes: OpenAI `{"error": {"message", "type", "code"}}`,
    flat `{"object": "error", "message", "code"}` (LMDeploy, vLLM up to 0.8), `{"error": "text"}`, `{"error_code":
    10402, ...}` (gateways), FastAPI's `{"detail": ...}`.
    """
    if not isinstance(data, dict):
        return None
    if data.keys() <= ANSWER_KEYS and "choices" in data and data.get("object") != "error":
        return None  # nearly every answer: nothing below can hold
    error = data.get("error")
    if isinstance(error, dict) and error:
        return _error_from_fields(error)
    if error:  # null, false, "" and {} stand beside a right answer at some gateways
        return ErrorObject(str(error), _code(data.get("code")), "")
    if data.get("object") == "error" or data.get("type") == "error":
        return _error_from_fields(data)
    if data.get("error_code") not in _NO_CODE or (data.get("error_msg") and "choices" not in data):
        text = data.get("error_msg") or data.get("message") or data.get("text") or _json_text(data)
        return ErrorObject(str(text), _code(data.get("error_code")), "")
    if "choices" not in data and "detail" in data:
        detail = data["detail"]
        return ErrorObject(detail if isinstance(detail, str) else _json_text(detail), None, "")
    if "choices" not in data and isinstance(data.get("message"), str) and "code" in data:
        return _error_from_fields(data)
    return None


def error_response_event(
    status: int, reason: str, headers: Mapping[str, str], body: bytes, rules: OutcomeRules
) -> OutcomeEvent:
    try:
        error = error_object(orjson.loads(body))
    except orjson.JSONDecodeError:
        error = None
    text = body.decode("utf-8", "replace")
    error_text = (error.text if error else text) or f"{status} {reason}"
    return OutcomeEvent(
        error_response_outcome(status, headers, error, text, rules), error_text, error.code if error else None
    )


def error_response_outcome(
    status: int, headers: Mapping[str, str], error: ErrorObject | None, text: str, rules: OutcomeRules
) -> Outcome:
    """Classify an answer whose status is not 2xx, by its headers (names in lower case), the error object of its body,
    if any, and its whole text.
    """
    full = f"{error.text}\n{text}" if error else text
    if matches(rules.engine_dead, full):
        return "http_error"
    if status in SHED_STATUSES or (status == UNAVAILABLE_STATUS and "retry-after" in headers):
        return "shed"
    if status >= 400 and matches(rules.shed, full):
        return "shed"
    if 400 <= status < 500 and matches(rules.validation, full):
        return "rejected"
    if status in rules.plain_validation and error is not None:
        return "rejected"
    return "http_error"


def error_event_outcome(error: ErrorObject, *, after_token: bool, rules: OutcomeRules) -> Outcome:
    """Classify an error inside a 200 stream. Only before the first token can it be a refusal."""
    if after_token or matches(rules.engine_dead, error.text):
        return "stream_error"
    if error.code in SHED_STATUSES or matches(rules.shed, error.text):
        return "shed"
    if matches(rules.validation, error.text):
        return "rejected"
    # A code from 500 on is the server's own fault, whatever its text; without a code the text alone has spoken above.
    return "rejected" if error.code in rules.plain_validation else "stream_error"


def finish_outcome(finish_reason: str) -> Outcome | None:
    """Classify a finish_reason; None for one that ends a right answer. Any other than ENDS_WELL ended the answer for a
    reason that is not the request's: abort, cancelled, timeout, content_filter, insufficient_system_resource.
    """
    reason = finish_reason.lower()
    if reason in ENDS_WELL:
        return None
    return "finish_error" if "error" in reason else "finish_abort"


def end_event(end: End, why: str) -> OutcomeEvent:
    return OutcomeEvent(_OUTCOME_OF_END[end], why)


def describe_os_error(error: OSError) -> str:
    """Describe a network error by its class and the system's message."""
    return f"{type(error).__name__}: {error.strerror or error}"


def matches(patterns: Sequence[Pattern[str]], text: str) -> bool:
    return any(p.search(text) for p in patterns)


def _error_from_fields(error: Mapping[str, Any]) -> ErrorObject:
    text = error.get("message")
    if isinstance(text, dict):  # a proxy that wraps the server's error as its own message
        inner = error_object(text)
        text = inner.text if inner else _json_text(text)
    kind = error.get("type")
    return ErrorObject(
        str(text) if text else _json_text(error),
        _code(error.get("code")),
        kind if isinstance(kind, str) else "",
    )


def _code(value: object) -> int | str | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text[:100]


def _json_text(value: object) -> str:
    return orjson.dumps(value).decode("utf-8", "replace")[:MAX_ERROR_CHARS]
