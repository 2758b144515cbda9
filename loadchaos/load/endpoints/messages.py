"""Anthropic's endpoint: /v1/messages.

Its usage counts cached tokens apart from the others; here they are added up, as in chat.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from loadchaos.core.model import Facts
from loadchaos.core.outcome_rules import ErrorObject, OutcomeEvent
from loadchaos.load.endpoints.base import (
    OF_CONVERSATIONS,
    ModelEndpoint,
    all_sampling_but,
    content_parts,
    earlier_messages,
)
from loadchaos.load.wire.answer_reader import WrongShapeError, int_of, list_of, object_of, usage_of, whole_object
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sse import JsonObject
from loadchaos.load.wire.typed_events import TypedEvents

_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_KEPT = ("temperature", "top_p", "top_k", "chat_template_kwargs")
_OWN_FAULTS = ("internal_error", "api_error", "InternalServerError")
"""Types of errors that are never a refusal of the request, whatever their text is."""


def _body(request: Request, facts: Facts) -> bytes:
    content: object = request.text
    if parts := content_parts(request):
        content = [*map(_image, parts), {"type": "text", "text": request.text}]
    body: dict[str, object] = {
        "model": request.model or facts.model,
        "messages": [*earlier_messages(request), {"role": "user", "content": content}],
        "max_tokens": request.output_tokens,
        "temperature": 0,
    }
    if request.stream:
        body["stream"] = True
    return orjson.dumps({**body, **_translated(request.extra)})


def _image(part: JsonObject) -> dict[str, object]:
    head, _, data = part["image_url"]["url"].partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}}


def _translated(extra: JsonObject) -> dict[str, object]:
    found: dict[str, object] = {name: extra[name] for name in _KEPT if name in extra}
    form = extra.get("response_format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        found["output_config"] = {"format": {"type": "json_schema", "schema": form["json_schema"]["schema"]}}
    for tool in extra.get("tools") or ():
        own = tool["function"]
        entry = {"name": own["name"], "description": own["description"], "input_schema": own["parameters"]}
        entry |= {"strict": own["strict"]} if "strict" in own else {}
        found.setdefault("tools", []).append(entry)  # type: ignore[attr-defined]  # a list that was put there here
    choice = extra.get("tool_choice")
    if isinstance(choice, Mapping):
        found["tool_choice"] = {"type": "tool", "name": choice["function"]["name"]}
    elif choice is not None:
        found["tool_choice"] = {"type": _CHOICES[str(choice)]}
    return found


class MessagesAnswer(TypedEvents):
    """An answer of /v1/messages."""

    __slots__ = ()

    FINISH = "a stop_reason"
    DONE = "message_stop"

    def read_typed(self, at_ns: int, kind: str, data: JsonObject) -> None:
        """Read one event. Unknown ones are extensions, such as ping."""
        if kind == "message_start":
            message = object_of(data, "message")
            self.keep_id(message)
            self._read_usage(message)
        elif kind == "content_block_start":
            block = object_of(data, "content_block")
            if block.get("type") == "tool_use":
                self.add_call(at_ns, int_of(data, "index"), str(block.get("name")), "")
            elif text := block.get("text"):
                self.add_text(at_ns, text, answer=True)
        elif kind == "content_block_delta":
            self._delta(at_ns, data, object_of(data, "delta"))
        elif kind == "message_delta":
            self._read_usage(data)
            self._read_stop_reason(object_of(data, "delta"))
        elif kind == "message_stop":
            self.end_stream()

    def _delta(self, at_ns: int, data: JsonObject, delta: JsonObject) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self.add_text(at_ns, delta.get("text"), answer=True)
        elif kind == "thinking_delta":
            self.add_text(at_ns, delta.get("thinking"), answer=False)
        elif kind == "input_json_delta":
            if not isinstance(delta.get("partial_json"), str):
                raise WrongShapeError("partial_json is not a string")
            self.add_call(at_ns, int_of(data, "index"), "", delta["partial_json"])

    def _read_whole(self, data: object) -> None:
        data = whole_object(data)
        self.keep_id(data)
        self._read_usage(data)
        for block in list_of(data, "content"):
            kind = block.get("type")
            if kind == "tool_use":
                self.whole_call(block.get("name"), orjson.dumps(block.get("input")).decode())
            elif kind in ("text", "thinking"):
                self.whole_text(block.get(kind), answer=kind == "text")
        self._read_stop_reason(data)

    def _read_stop_reason(self, holder: Mapping[str, object]) -> None:
        reason = holder.get("stop_reason")
        if reason is None:
            self.finish.setdefault(0, None)
        elif isinstance(reason, str):
            self.set_finish(_REASONS.get(reason, reason))
        else:
            raise WrongShapeError("stop_reason is not a string")

    def _on_error(self, error: ErrorObject) -> None:
        if error.kind in _OWN_FAULTS:
            self.spoil(OutcomeEvent("stream_error", error.text, error.code))
        else:
            super()._on_error(error)

    def _read_usage(self, holder: Mapping[str, object]) -> None:
        if (usage := usage_of(holder)) is None:
            return
        known = {**(self.usage or {}).get("as_sent", {}), **{k: v for k, v in usage.items() if v is not None}}
        cached, created = known.get("cache_read_input_tokens"), known.get("cache_creation_input_tokens")
        fresh = known.get("input_tokens")
        parts = [n for n in (fresh, cached, created) if isinstance(n, int)]
        self.usage = {
            "as_sent": known,
            "prompt_tokens": sum(parts) if isinstance(fresh, int) else None,
            "completion_tokens": known.get("output_tokens"),
            "prompt_tokens_details": {"cached_tokens": cached},
        }


ENDPOINT = ModelEndpoint(
    path="/v1/messages",
    body=_body,
    payloads=OF_CONVERSATIONS,
    answer=MessagesAnswer,
    exact_fields=frozenset(),
    headers={"anthropic-version": "2023-06-01"},
    lacks=all_sampling_but("models", "adapters", "temperature", "top_p", "top_k", "thinking")
    | {"structured.regex", "structured.choices", "images.uuid", "conversation.previous_response"},
)
