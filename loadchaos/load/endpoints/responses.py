"""The Responses endpoint: /v1/responses, with typed events.

A terminal event (`response.completed`, `response.incomplete`, `response.failed`) ends a stream.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from loadchaos.core.model import Facts
from loadchaos.core.outcome_rules import ErrorObject, error_object
from loadchaos.load.endpoints.base import OF_CONVERSATIONS, ModelEndpoint, content_parts, earlier_messages
from loadchaos.load.endpoints.chat import tail_options
from loadchaos.load.wire.answer_reader import WrongShapeError, int_of, list_of, object_of, usage_of, whole_object
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sse import JsonObject
from loadchaos.load.wire.typed_events import TypedEvents

_TERMINAL = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_ANSWER = ("response.output_text", "response.refusal")
_REASONING = ("response.reasoning_text", "response.reasoning_summary_text", "response.reasoning")
_CALL_BEGINS, _CALL_GROWS = "response.output_item.added", "response.function_call_arguments.delta"


def _body(request: Request, facts: Facts) -> bytes:
    options = tail_options(request, facts)
    options["max_output_tokens"] = options.pop("max_tokens")
    for name in ("stream_options", "min_tokens", "min_new_tokens"):
        options.pop(name, None)
    extra = _translated(dict(request.extra))
    content = _content(request)
    messages = earlier_messages(request)
    asked: object = content if isinstance(content, str) and not messages else [*messages, _user(content)]
    return orjson.dumps({"model": request.model or facts.model, "input": asked, **options, **extra})


def _user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def _content(request: Request) -> object:
    parts = content_parts(request)
    if not parts:
        return request.text
    images = [{"type": "input_image", "image_url": p["image_url"]["url"], "detail": "auto"} for p in parts]
    return [*images, {"type": "input_text", "text": request.text}]


def _translated(extra: JsonObject) -> JsonObject:
    if extra.pop("logprobs", None):
        extra["include"] = ["message.output_text.logprobs"]
    if (effort := extra.pop("reasoning_effort", None)) is not None:
        extra["reasoning"] = {"effort": effort}
    form = extra.pop("response_format", None)
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        extra["text"] = {"format": {"type": "json_schema", **form["json_schema"]}}
    if "tools" in extra:
        extra["tools"] = [{"type": "function", **tool["function"]} for tool in extra["tools"]]
        choice = extra.get("tool_choice")
        if isinstance(choice, Mapping):
            extra["tool_choice"] = {"type": "function", "name": choice["function"]["name"]}
    return extra


class ResponsesAnswer(TypedEvents):
    """An answer of /v1/responses."""

    __slots__ = ()

    FINISH = "a status of its response"
    DONE = "terminal event"

    def read_typed(self, at_ns: int, kind: str, data: JsonObject) -> None:
        """Read one event. Unknown ones are extensions."""
        if "sequence_number" in data:
            self._read_number(data["sequence_number"])
        if kind in _TERMINAL:
            self._terminal(kind, object_of(data, "response"))
        elif kind == "response.created":
            self.keep_id(object_of(data, "response"))
        elif kind.endswith(".delta") and kind.removesuffix(".delta") in (*_ANSWER, *_REASONING):
            answer = kind.removesuffix(".delta") in _ANSWER
            self.add_text(at_ns, data.get("delta"), answer=answer, part=_place(data))
            logprobs = data.get("logprobs")
            if isinstance(logprobs, list) and logprobs:
                self.logprob_entries = (self.logprob_entries or 0) + len(logprobs)
        elif kind == "response.output_text.done":
            self.check_text(_place(data), data.get("text"))
        elif kind == _CALL_BEGINS and object_of(data, "item").get("type") == "function_call":
            self.add_call(at_ns, int_of(data, "output_index"), str(data["item"].get("name")), "")
        elif kind == _CALL_GROWS:
            if not isinstance(data.get("delta"), str):
                raise WrongShapeError("the text of an event is not a string")
            self.add_call(at_ns, int_of(data, "output_index"), "", data["delta"])

    def _terminal(self, kind: str, response: dict[str, object]) -> None:
        self.keep_id(response)
        self._read_usage(response)
        failed = error_object({"error": response.get("error")})
        if failed is not None or kind == "response.failed":
            self._on_error(failed or ErrorObject("the response failed, and does not say why", None, ""))
            return
        self._end(response, kind.removeprefix("response."))
        self.end_stream()

    def _read_whole(self, data: object) -> None:
        data = whole_object(data)
        self.keep_id(data)
        self._read_usage(data)
        for item in list_of(data, "output"):
            kind = item.get("type")
            if kind == "function_call":
                self.whole_call(item.get("name"), str(item.get("arguments") or ""))
            elif kind in ("message", "reasoning"):
                for part in item.get("content") or ():
                    text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
                    self.whole_text(text or "", answer=kind == "message")
        self._end(data, "")

    def _end(self, response: Mapping[str, object], of_event: str) -> None:
        reason = _reason(response, of_event, calls=self.has_calls)
        if reason is None:
            self.finish[0] = None
        else:
            self.set_finish(reason)

    def _read_usage(self, response: Mapping[str, object]) -> None:
        if (usage := usage_of(response)) is None:
            return
        self.usage = {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "total_tokens": usage.get("total_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens_details": usage.get("output_tokens_details"),
        }


def _place(data: Mapping[str, object]) -> tuple[object, object]:
    return data.get("output_index"), data.get("content_index")


def _reason(response: Mapping[str, object], of_event: str, *, calls: bool) -> str | None:
    status = response.get("status") or of_event
    details = response.get("incomplete_details")
    why = details.get("reason") if isinstance(details, dict) else None
    if status == "completed":
        return "tool_calls" if calls else "stop"
    if status == "incomplete":
        return "length" if why in (None, "max_output_tokens", "max_tokens") else str(why)
    if status == "failed":
        return "error"
    if status == "cancelled":
        return "abort"
    if status in ("in_progress", "queued"):
        return None
    raise WrongShapeError(f"status {status!r} is not known")


ENDPOINT = ModelEndpoint(
    path="/v1/responses",
    body=_body,
    payloads=OF_CONVERSATIONS,
    answer=ResponsesAnswer,
    exact_fields=frozenset({"ignore_eos"}),
    lacks=frozenset({"sampling.n", "sampling.prompt_logprobs", "images.uuid"}),
)
