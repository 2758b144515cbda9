"""What one request came to: status, headers and body in, exactly one outcome out, first decisive event in byte order.

Sans-I/O. The texts by which servers say "your fault", "too busy" and "my engine is dead" come in as `OutcomeRules`, because
they differ from server to server; everything else here is HTTP and the OpenAI protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from re import Pattern
from typing import Any, Literal, NamedTuple

import orjson

from loadchaos.core.model import Outcome
from loadchaos.core.slotted import slotted_dataclass

End = Literal["complete", "cut", "unreached", "stalled", "timeout", "hung_up", "not_http"]
"""How the exchange ended: the body ended as promised (`complete`); the connection was closed or reset before
(`cut`); no connection came about (`unreached`); our limits (`stalled`, `timeout`); we hung up as planned; no HTTP."""

MAX_ERROR_CHARS = 4000
_NO_CODE = (None, "", 0, "0")
_OF_END: Mapping[End, Outcome] = {
    "cut": "reset", "unreached": "connect_error", "stalled": "stalled", "timeout": "timeout", "hung_up": "aborted",
    "not_http": "protocol_error",
}  # fmt: skip


@slotted_dataclass(frozen=True)
class OutcomeRules:
    """What an answer is judged by. The regexes are searched in error texts as the server sent them.

    `plain_validation` are statuses that mean "the client's fault" by themselves when the body is a JSON error object
    (a server of unknown make). `sends_done`: streams end with `data: [DONE]`. `allow_empty`: an answer without a token
    is right. `foreign_nonce` gets the answer's text and says which other request's word is in it, or None.
    """

    validation: Sequence[Pattern[str]] = ()
    shed: Sequence[Pattern[str]] = ()
    engine_dead: Sequence[Pattern[str]] = ()
    plain_validation: frozenset[int] = frozenset()
    sends_done: bool = True
    allow_empty: bool = False
    foreign_nonce: Callable[[str], str | None] | None = None

    def for_one(self, foreign_nonce: Callable[[str], str | None]) -> OutcomeRules:
        """The same rules with the check of one request's answer."""
        return OutcomeRules(
            self.validation,
            self.shed,
            self.engine_dead,
            self.plain_validation,
            self.sends_done,
            self.allow_empty,
            foreign_nonce,
        )


class OutcomeEvent(NamedTuple):
    """One thing in the answer that would decide it: which outcome, the server's text, and its code where it has one."""

    outcome: Outcome
    text: str = ""
    code: int | str | None = None


class ErrorObject(NamedTuple):
    """An error as the server sent it, whatever its shape."""

    text: str
    code: int | str | None
    kind: str


def error_object(data: object) -> ErrorObject | None:
    """The error in a JSON value, None when it is none.

    Shapes: OpenAI `{"error": {"message", "type", "code"}}`, flat `{"object": "error", "message", "code"}` (LMDeploy,
    vLLM up to 0.8), `{"error": "text"}`, `{"error_code": 10402, ...}` (gateways), FastAPI's `{"detail": ...}`.
    """
    if not isinstance(data, dict):
        return None
    error = data.get("error")
    if isinstance(error, dict) and error:
        return _named(error)
    if error:  # null, false, "" and {} stand beside a right answer at some gateways
        return ErrorObject(str(error), _code(data.get("code")), "")
    if data.get("object") == "error" or data.get("type") == "error":
        return _named(data)
    if data.get("error_code") not in _NO_CODE or (data.get("error_msg") and "choices" not in data):
        text = data.get("error_msg") or data.get("message") or data.get("text") or _json_text(data)
        return ErrorObject(str(text), _code(data.get("error_code")), "")
    if "choices" not in data and "detail" in data:
        detail = data["detail"]
        return ErrorObject(detail if isinstance(detail, str) else _json_text(detail), None, "")
    if "choices" not in data and isinstance(data.get("message"), str) and "code" in data:
        return _named(data)
    return None


def error_answer(
    status: int, reason: str, headers: Mapping[str, str], body: bytes, rules: OutcomeRules
) -> OutcomeEvent:
    """What an answer whose status is no 2xx comes to."""
    try:
        error = error_object(orjson.loads(body))
    except orjson.JSONDecodeError:
        error = None
    text = body.decode("utf-8", "replace")
    told = (error.text if error else text) or f"{status} {reason}"
    return OutcomeEvent(of_error_answer(status, headers, error, text, rules), told, error.code if error else None)


def of_error_answer(
    status: int, headers: Mapping[str, str], error: ErrorObject | None, text: str, rules: OutcomeRules
) -> Outcome:
    """The outcome of an answer whose status is no 2xx; `text` is the whole body, `error` what was found in it."""
    full = f"{error.text}\n{text}" if error else text
    if matches(rules.engine_dead, full):
        return "http_error"
    if status == 429 or (status == 503 and "retry-after" in headers):
        return "shed"
    if status >= 400 and matches(rules.shed, full):
        return "shed"
    if 400 <= status < 500 and matches(rules.validation, full):
        return "rejected"
    if status in rules.plain_validation and error is not None:
        return "rejected"
    return "http_error"


def of_error_event(error: ErrorObject, *, after_token: bool, rules: OutcomeRules) -> Outcome:
    """The outcome of an error inside a 200 stream; a refusal can only come before the first token."""
    if after_token or matches(rules.engine_dead, error.text):
        return "stream_error"
    if error.code == 429 or matches(rules.shed, error.text):
        return "shed"
    if matches(rules.validation, error.text):
        return "rejected"
    # A code from 500 on is the server's own fault, whatever its text; without a code the text alone has spoken above.
    return "rejected" if error.code in rules.plain_validation else "stream_error"


def of_end(end: End, why: str) -> OutcomeEvent:
    """What the way it ended means where nothing before decided; not for `complete`."""
    return OutcomeEvent(_OF_END[end], why)


def in_words(error: OSError) -> str:
    """What the system says of it."""
    return f"{type(error).__name__}: {error.strerror or error}"


def matches(patterns: Sequence[Pattern[str]], text: str) -> bool:
    """Whether any pattern is found."""
    return any(p.search(text) for p in patterns)


def _named(error: Mapping[str, Any]) -> ErrorObject:
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
