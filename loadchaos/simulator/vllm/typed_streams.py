"""Answers of /v1/responses and /v1/messages: typed events, or one body. Shapes, order and the behaviour at a death of
the engine are those measured on vLLM 0.32.0.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import orjson

from loadchaos.simulator.body import Body
from loadchaos.simulator.vllm import errors
from loadchaos.simulator.vllm.errors import VllmRefusal
from loadchaos.simulator.vllm.streams import Choice, VllmGeneration
from loadchaos.simulator.vllm.transcription import PATH, TranscriptionGeneration


class _TypedGeneration(VllmGeneration):
    def _event(self, kind: str, data: Body) -> None:
        self._exchange.write(b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data)))


class ResponsesGeneration(_TypedGeneration):
    """A running generation of /v1/responses."""

    def _prepare(self) -> None:
        self._number = 0
        self._item = f"{'fc' if self._tool else 'msg'}_{uuid.uuid4().hex[:16]}"
        self._place = {"item_id": self._item, "output_index": 0}
        self._streamed: list[str] = []
        if self._checked.sampling.stream:
            opening = self._response("in_progress", [])
            for kind in ("response.created", "response.in_progress"):
                self._send(kind, {"response": opening})

    def _fail_stream(self, refusal: VllmRefusal) -> None:
        del refusal  # vLLM breaks a stream off without an error
        self._exchange.cut()

    def _send(self, kind: str, data: Body) -> None:
        self._event(kind, {**data, "sequence_number": self._number, "type": kind})
        self._number += 1

    def _write(self, choice: Choice) -> None:
        text = self._unwritten_text(choice)
        if not choice.written:
            choice.written = True
            self._send("response.output_item.added", {"item": self._output("", "in_progress"), "output_index": 0})
            if not self._tool:
                self._send("response.content_part.added", {"content_index": 0, **self._place, "part": _part("", [])})
        if text:
            self._streamed.append(text)
            if self._tool:
                self._send("response.function_call_arguments.delta", {"delta": text, **self._place})
            else:
                delta = {"content_index": 0, "delta": text, "logprobs": [], **self._place}
                self._send("response.output_text.delta", delta)

    def _end_stream(self) -> None:
        self._write_rest()
        text = "".join(self._streamed)
        if self._tool:
            self._send("response.function_call_arguments.done", {"arguments": text, **self._place})
        else:
            done = {"content_index": 0, "text": text, "logprobs": [], **self._place}
            self._send("response.output_text.done", done)
            self._send("response.content_part.done", {"content_index": 0, **self._place, "part": _part(text, None)})
        item = self._output(text, "completed")
        self._send("response.output_item.done", {"item": item, "output_index": 0})
        self._send("response.completed", {"response": self._ended(text)})  # of an incomplete response, too
        self._exchange.end()

    def _body(self) -> bytes:
        return orjson.dumps(self._ended(self._unwritten_text(self.choices[0])))

    def _ended(self, text: str) -> Body:
        """Return the response, and keep its conversation for the next one."""
        messages = [*self._checked.messages, {"role": "assistant", "content": text}]
        self._server.keep_response(self._checked.request_id, messages)
        status = {"length": "incomplete", "abort": "cancelled"}.get(self.choices[0].finish or "", "completed")
        done = self.choices[0].tokens
        usage = {
            "input_tokens": self.prompt_tokens, "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": done, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + done,
        }  # fmt: skip
        return self._response(status, [self._output(text, "completed")], usage)

    def _output(self, text: str, status: str) -> Body:
        item = {"id": self._item, "status": status}
        if self._tool:
            return {**item, "type": "function_call", "name": self._tool, "arguments": text, "call_id": "call_1"}
        content = [_part(text, None)] if text else []
        return {**item, "type": "message", "role": "assistant", "content": content, "phase": None}

    def _response(self, status: str, output: Sequence[Body], usage: Body | None = None) -> Body:
        sampling = self._checked.sampling
        return {
            "id": self._checked.request_id, "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None, "metadata": None, "model": self._server.model, "object": "response", "output": output,
            "parallel_tool_calls": True, "temperature": sampling.temperature, "tool_choice": "auto", "tools": [],
            "top_p": 1.0, "background": False, "max_output_tokens": sampling.max_tokens, "previous_response_id": None,
            "service_tier": self._server.service_tier or "auto", "status": status, "truncation": "disabled", "usage": usage,
        }  # fmt: skip


def _part(text: str, logprobs: Sequence[Body] | None) -> Body:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


class MessagesGeneration(_TypedGeneration):
    """A running generation of /v1/messages."""

    def _fail_stream(self, refusal: VllmRefusal) -> None:
        # vLLM fails to read its own error, and sends an error about that
        self._send("error", {"error": _misread(refusal)})
        self._exchange.end()

    def _send(self, kind: str, data: Body) -> None:
        self._event(kind, {"type": kind, **data})

    def _write(self, choice: Choice) -> None:
        text = self._unwritten_text(choice)
        if not choice.written:
            choice.written = True
            message = self._message([], None, {"input_tokens": self.prompt_tokens, "output_tokens": 0})
            self._send("message_start", {"message": message})
            self._send("content_block_start", {"content_block": self._block("", empty=True), "index": 0})
        if text:
            kind, name = ("input_json_delta", "partial_json") if self._tool else ("text_delta", "text")
            self._send("content_block_delta", {"delta": {"type": kind, name: text}, "index": 0})

    def _end_stream(self) -> None:
        self._write_rest()
        self._send("content_block_stop", {"index": 0})
        delta = {"stop_reason": self._reason(), "stop_sequence": self.choices[0].stop_text}
        self._send("message_delta", {"delta": delta, "usage": self._tokens_used()})
        self._send("message_stop", {})
        self._exchange.end()

    def _body(self) -> bytes:
        block = self._block(self._unwritten_text(self.choices[0]), empty=False)
        return orjson.dumps(self._message([block], self._reason(), self._tokens_used()))

    def _message(self, content: Sequence[Body], reason: str | None, usage: Body) -> Body:
        return {
            "id": self._checked.request_id, "type": "message", "role": "assistant", "content": content,
            "model": self._server.model, "stop_reason": reason, "stop_sequence": None, "usage": usage,
        }  # fmt: skip

    def _block(self, text: str, *, empty: bool) -> Body:
        if not self._tool:
            return {"type": "text", "text": text}
        return {"type": "tool_use", "id": "call_1", "name": self._tool, "input": {} if empty else orjson.loads(text)}

    def _reason(self) -> str | None:
        choice = self.choices[0]
        if choice.finish == "length":
            return "max_tokens"
        if choice.finish != "stop":
            return None
        return "tool_use" if self._tool else "stop_sequence" if choice.stop_text else "end_turn"

    def _tokens_used(self) -> Body:
        used = {"input_tokens": self.prompt_tokens, "output_tokens": self.choices[0].tokens}
        if self._server.token_details:
            used |= {"input_tokens": self.prompt_tokens - self._cached, "cache_read_input_tokens": self._cached}
        return used


def _misread(refusal: VllmRefusal) -> Body:
    shown = repr({"error": refusal.error})
    if len(shown) > 50:
        shown = f"{shown[:25]}...{shown[-24:]}"
    field = errors.pydantic("Field required", "missing", shown, "dict")
    lines = "\n".join(f"{name}\n{field}" for name in ("model", "choices"))
    return {"type": "internal_error", "message": f"2 validation errors for ChatCompletionStreamResponse\n{lines}"}


GENERATIONS: dict[str, type[VllmGeneration]] = {
    "/v1/responses": ResponsesGeneration,
    "/v1/messages": MessagesGeneration,
    PATH: TranscriptionGeneration,
}
"""Classes of generations by path; all others are chat and text completions."""
