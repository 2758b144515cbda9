"""Translate bodies of /v1/responses and /v1/messages to chat bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loadchaos.simulator.vllm.errors import VllmRefusal, validation

Kept = Callable[[str], list[dict[str, Any]] | None]
"""Finds the messages of an earlier response."""


def responses_to_chat(data: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """Translate a body of /v1/responses. Raises VllmRefusal for a bad body, or an unknown earlier response."""
    if "input" not in data:
        raise validation("missing", "body.input", "Field required", f"<dict of {len(data)} items>")
    asked = data["input"]
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else [_item(item) for item in asked]
    if (earlier := data.get("previous_response_id")) is not None:
        before = kept(str(earlier))
        if before is None:
            text = f"Response with id '{earlier}' not found."
            raise VllmRefusal(text, "invalid_request_error", "response_id", 404)
        messages = [*before, *messages]
    chat = {key: value for key, value in data.items() if key not in {"input", "text", "max_output_tokens", "tools"}}
    chat |= {"messages": messages, "max_tokens": data.get("max_output_tokens"), "temperature": data.get("temperature")}
    form = (data.get("text") or {}).get("format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    if data.get("tools"):
        chat["tools"] = [{"type": "function", "function": tool} for tool in data["tools"]]
        choice = data.get("tool_choice")
        if isinstance(choice, Mapping):
            chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    return chat


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    content = item.get("content")
    if isinstance(content, list):
        content = [_part(part) for part in content]
    return {"role": item.get("role", "user"), "content": content}


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url", "")}}
    return part


def messages_to_chat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of /v1/messages. Raises VllmRefusal for a body without its required fields."""
    for name in ("messages", "max_tokens"):
        if name not in data:
            raise validation("missing", f"body.{name}", "Field required", f"<dict of {len(data)} items>")
    messages = [{"role": m.get("role"), "content": _content(m.get("content"))} for m in data["messages"]]
    if isinstance(data.get("system"), str):
        messages.insert(0, {"role": "system", "content": data["system"]})
    kept = ("model", "max_tokens", "stream", "temperature", "top_p")
    chat: dict[str, Any] = {name: data[name] for name in kept if name in data}
    chat |= {"messages": messages, "stop": data.get("stop_sequences")}
    form = (data.get("output_config") or {}).get("format")
    if isinstance(form, Mapping):
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    if data.get("tools"):
        chat["tools"] = [
            {"type": "function", "function": {"name": t.get("name"), "parameters": t.get("input_schema")}}
            for t in data["tools"]
        ]
        chat["tool_choice"] = _tool_choice(data.get("tool_choice"))
    return chat


def _tool_choice(choice: object) -> object:
    if not isinstance(choice, Mapping):
        return None
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return {"any": "required"}.get(str(choice.get("type")), choice.get("type"))


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        source = part.get("source") if isinstance(part, Mapping) and part.get("type") == "image" else None
        if isinstance(source, Mapping):
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
            part = {"type": "image_url", "image_url": {"url": url}}
        parts.append(part)
    return parts
