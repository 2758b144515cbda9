"""Answers of /v1/responses and /v1/messages: typed events, or one body.

Shapes, order and the behaviour at a death of the engine are those measured on vLLM 0.32.0.
"""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.vllm import errors
from loadchaos.simulator.vllm.errors import VllmRefusal
from loadchaos.simulator.vllm.requests import CheckedRequest
from loadchaos.simulator.vllm.streams import Choice, VllmContext, VllmGeneration
from loadchaos.simulator.vllm.transcription import PATH, TranscriptionGeneration


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))


class ResponsesGeneration(VllmGeneration):
    """A running generation of /v1/responses."""

    def __init__(
        self, server: VllmContext, exchange: HttpExchange, checked: CheckedRequest, engine_id: str, seeds: list[int]
    ) -> None:
        super().__init__(server, exchange, checked, engine_id, seeds)
        self._number = 0
        self._item = f"{'fc' if self._tool else 'msg'}_{uuid.uuid4().hex[:16]}"
        self._streamed: list[str] = []
        if checked.sampling.stream:
            opening = self._response("in_progress", [], None)
            for kind in ("response.created", "response.in_progress"):
                self._send(kind, {"response": opening})

    def fail(self, refusal: VllmRefusal) -> None:
        """End with an error; vLLM breaks a stream off without one."""
        if self._checked.sampling.stream and not self.finished:
            self.finished = True
            self._server.abort_in_engine(self.ids)
            self._exchange.cut()
            self._server.generation_ended(self)
        else:
            super().fail(refusal)

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        self._exchange.write(_event(kind, {**data, "sequence_number": self._number, "type": kind}))
        self._number += 1

    def _write(self, choice: Choice) -> None:
        text = self._unwritten_text(choice)
        place = {"item_id": self._item, "output_index": 0}
        part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        if not choice.written:
            choice.written = True
            self._send("response.output_item.added", {"item": self._output("", "in_progress"), "output_index": 0})
            if not self._tool:
                self._send("response.content_part.added", {"content_index": 0, **place, "part": part})
        if text:
            self._streamed.append(text)
            if self._tool:
                self._send("response.function_call_arguments.delta", {"delta": text, **place})
            else:
                self._send("response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": [], **place})

    def _end_stream(self) -> None:
        (choice,) = self.choices
        if choice.pending or not choice.written:
            self._write(choice)
        text = "".join(self._streamed)
        place: dict[str, Any] = {"item_id": self._item, "output_index": 0}
        if self._tool:
            self._send("response.function_call_arguments.done", {"arguments": text, **place})
        else:
            self._send("response.output_text.done", {"content_index": 0, "text": text, "logprobs": [], **place})
        item = self._output(text, "completed")
        if not self._tool:
            part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
            self._send("response.content_part.done", {"content_index": 0, **place, "part": part})
        self._send("response.output_item.done", {"item": item, "output_index": 0})
        response = self._response(self._status(), [item], self._tokens_used())
        self._send("response.completed", {"response": response})  # of an incomplete response, too
        self._exchange.end()
        self._keep(text)

    def _body(self) -> bytes:
        text = self._unwritten_text(self.choices[0])
        self._keep(text)
        return orjson.dumps(self._response(self._status(), [self._output(text, "completed")], self._tokens_used()))

    def _keep(self, text: str) -> None:
        self._server.keep_response(self._checked.request_id, [*self._checked.messages, _assistant(text)])

    def _status(self) -> str:
        reason = self.choices[0].finish
        return "incomplete" if reason == "length" else "cancelled" if reason == "abort" else "completed"

    def _output(self, text: str, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item, "status": status}
        if self._tool:
            return {**item, "type": "function_call", "name": self._tool, "arguments": text, "call_id": "call_1"}
        part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
        return {**item, "type": "message", "role": "assistant", "content": [part] if text else [], "phase": None}

    def _tokens_used(self) -> dict[str, Any]:
        done = self.choices[0].tokens
        return {
            "input_tokens": self.prompt_tokens, "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": done, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + done,
        }  # fmt: skip

    def _response(self, status: str, output: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        sampling = self._checked.sampling
        return {
            "id": self._checked.request_id, "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None, "metadata": None, "model": self._server.model, "object": "response", "output": output,
            "parallel_tool_calls": True, "temperature": sampling.temperature, "tool_choice": "auto", "tools": [],
            "top_p": 1.0, "background": False, "max_output_tokens": sampling.max_tokens, "previous_response_id": None,
            "service_tier": self._server.service_tier or "auto", "status": status, "truncation": "disabled", "usage": usage,
        }  # fmt: skip


class MessagesGeneration(VllmGeneration):
    """A running generation of /v1/messages."""

    def fail(self, refusal: VllmRefusal) -> None:
        """End with an error. In a stream vLLM fails to read its own error, and sends an error about that."""
        if not self._checked.sampling.stream or self.finished:
            super().fail(refusal)
            return
        self.finished = True
        self._server.abort_in_engine(self.ids)
        self._exchange.write(_event("error", {"type": "error", "error": _misread(refusal)}))
        self._exchange.end()
        self._server.generation_ended(self)

    def _write(self, choice: Choice) -> None:
        text = self._unwritten_text(choice)
        if not choice.written:
            choice.written = True
            message = {**self._message([], None), "usage": {"input_tokens": self.prompt_tokens, "output_tokens": 0}}
            self._exchange.write(_event("message_start", {"type": "message_start", "message": message}))
            begin = {"type": "content_block_start", "content_block": self._block("", empty=True), "index": 0}
            self._exchange.write(_event("content_block_start", begin))
        if text:
            kind, name = ("input_json_delta", "partial_json") if self._tool else ("text_delta", "text")
            data = {"type": "content_block_delta", "delta": {"type": kind, name: text}, "index": 0}
            self._exchange.write(_event("content_block_delta", data))

    def _end_stream(self) -> None:
        (choice,) = self.choices
        if choice.pending or not choice.written:
            self._write(choice)
        self._exchange.write(_event("content_block_stop", {"type": "content_block_stop", "index": 0}))
        delta = {"stop_reason": self._reason(), "stop_sequence": choice.stop_text}
        last = {"type": "message_delta", "delta": delta, "usage": self._tokens_used()}
        self._exchange.write(_event("message_delta", last))
        self._exchange.write(_event("message_stop", {"type": "message_stop"}))
        self._exchange.end()

    def _body(self) -> bytes:
        text = self._unwritten_text(self.choices[0])
        body = {**self._message([self._block(text, empty=False)], self._reason()), "usage": self._tokens_used()}
        return orjson.dumps(body)

    def _message(self, content: list[Any], reason: str | None) -> dict[str, Any]:
        return {
            "id": self._checked.request_id, "type": "message", "role": "assistant", "content": content,
            "model": self._server.model, "stop_reason": reason, "stop_sequence": None,
        }  # fmt: skip

    def _block(self, text: str, *, empty: bool) -> dict[str, Any]:
        if not self._tool:
            return {"type": "text", "text": text}
        return {"type": "tool_use", "id": "call_1", "name": self._tool, "input": {} if empty else orjson.loads(text)}

    def _reason(self) -> str | None:
        """The stop_reason; vLLM has none for an aborted request."""
        choice = self.choices[0]
        if choice.finish == "length":
            return "max_tokens"
        if choice.finish != "stop":
            return None
        return "tool_use" if self._tool else "stop_sequence" if choice.stop_text else "end_turn"

    def _tokens_used(self) -> dict[str, int]:
        used = {"input_tokens": self.prompt_tokens, "output_tokens": self.choices[0].tokens}
        if self._server.token_details:
            used |= {"input_tokens": self.prompt_tokens - self._cached, "cache_read_input_tokens": self._cached}
        return used


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _misread(refusal: VllmRefusal) -> dict[str, str]:
    shown = repr({"error": refusal.error})
    if len(shown) > 50:
        shown = f"{shown[:25]}...{shown[-24:]}"
    field = f"  Field required [type=missing, input_value={shown}, input_type=dict]\n{errors.PYDANTIC}missing"
    lines = "\n".join(f"{name}\n{field}" for name in ("model", "choices"))
    return {"type": "internal_error", "message": f"2 validation errors for ChatCompletionStreamResponse\n{lines}"}


GENERATIONS: dict[str, type[VllmGeneration]] = {
    "/v1/responses": ResponsesGeneration,
    "/v1/messages": MessagesGeneration,
    PATH: TranscriptionGeneration,
}
"""Classes of generations by path; all others are chat and text completions."""
