"""Translate bodies of /v1/responses and /v1/messages to chat bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from loadchaos.simulator.body import Body, inside, objects
from loadchaos.simulator.vllm.errors import VllmRefusal, missing

Kept = Callable[[str], Sequence[Body] | None]
"""Finds the messages of an earlier response."""


def responses_to_chat(data: Body, kept: Kept) -> Body:
    """Translate a body of /v1/responses. Raises VllmRefusal for a bad body, or an unknown earlier response."""
    if "input" not in data:
        raise missing("input", data)
    asked = data["input"]
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else [_item(i) for i in objects(asked)]
    if (earlier := data.get("previous_response_id")) is not None:
        before = kept(str(earlier))
        if before is None:
            text = f"Response with id '{earlier}' not found."
            raise VllmRefusal(text, "invalid_request_error", "response_id", 404)
        messages = [*before, *messages]
    chat = {key: value for key, value in data.items() if key not in {"input", "text", "max_output_tokens", "tools"}}
    chat |= {"messages": messages, "max_tokens": data.get("max_output_tokens"), "temperature": data.get("temperature")}
    form = inside(inside(data.get("text")).get("format"))
    if form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    if tools := objects(data.get("tools")):
        chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
        if isinstance(choice := data.get("tool_choice"), Mapping):
            chat["tool_choice"] = _named(choice)
    return chat


def _item(item: Body) -> Body:
    content = item.get("content")
    parts = [_part(part) for part in objects(content)]
    return {"role": item.get("role", "user"), "content": parts if isinstance(content, list) else content}


def _part(part: Body) -> Body:
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url", "")}}
    return part


def messages_to_chat(data: Body) -> Body:
    """Translate a body of /v1/messages. Raises VllmRefusal for a body without its required fields."""
    for name in ("messages", "max_tokens"):
        if name not in data:
            raise missing(name, data)
    messages = [{"role": m.get("role"), "content": _content(m.get("content"))} for m in objects(data["messages"])]
    if isinstance(data.get("system"), str):
        messages.insert(0, {"role": "system", "content": data["system"]})
    kept = ("model", "max_tokens", "stream", "temperature", "top_p")
    chat = {name: data[name] for name in kept if name in data}
    chat |= {"messages": messages, "stop": data.get("stop_sequences")}
    form = inside(data.get("output_config")).get("format")
    if isinstance(form, Mapping):
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    if tools := objects(data.get("tools")):
        functions = [{"name": tool.get("name"), "parameters": tool.get("input_schema")} for tool in tools]
        chat["tools"] = [{"type": "function", "function": function} for function in functions]
        chat["tool_choice"] = _tool_choice(inside(data.get("tool_choice")))
    return chat


def _tool_choice(choice: Body) -> object:
    kind = choice.get("type")
    return _named(choice) if kind == "tool" else "required" if kind == "any" else kind


def _named(choice: Body) -> Body:
    return {"type": "function", "function": {"name": choice.get("name")}}


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [_image(part) if isinstance(part, Mapping) else part for part in content]


def _image(part: Body) -> Body:
    source = inside(part.get("source"))
    if not source or part.get("type") != "image":
        return part
    url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}
