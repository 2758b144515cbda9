"""Answers of endpoints other than chat, right and wrong.

A `Shape` writes the events and bodies of one endpoint; `behave` makes an answer of a behaviour, or None where the endpoint
has no such thing. Right answers are as vLLM 0.32.0 writes them.
"""

from collections.abc import Mapping
from typing import Any

from tests.load.wire.misbehaving import (
    BUSY,
    DONE,
    ENGINE_DEAD,
    TOO_LONG,
    close,
    error,
    frame,
    plain,
    silent,
    stream,
    then,
)
from tests.raw_sockets import Handler, reset

Answer = bytes | Handler
TEXT = ("Hel", "lo", "!")
NONCE = "zebra-17"


def event(kind: str, **data: Any) -> bytes:
    return b"event: %s\n" % kind.encode() + frame({"type": kind, **data})


class Shape:
    """Events and bodies of an endpoint that streams text."""

    streams = True
    misread: bytes | None = None
    """An error event in which a server did not read its own error."""

    def opening(self) -> list[bytes]:
        return []

    def token(self, text: str) -> bytes:
        raise NotImplementedError

    def ending(self, text: str, finish: str | None = "stop", usage: Mapping[str, int] | None = None) -> list[bytes]:
        """Frames behind the last token; `usage` changes figures of the right one."""
        raise NotImplementedError

    def error_frame(self, text: str, code: int) -> bytes:
        return frame(error(text, code))

    def call(self, name: str, arguments: str) -> list[bytes] | None:
        return None

    def whole(self, text: str = "Hello!", finish: str | None = "stop") -> dict[str, Any]:
        raise NotImplementedError

    def answer(self, *pieces: str, finish: str | None = "stop", usage: Mapping[str, int] | None = None) -> list[bytes]:
        return [*self.opening(), *map(self.token, pieces), *self.ending("".join(pieces), finish, usage)]

    def behave(self, behaviour: str) -> Answer | None:
        return self._whole(behaviour) if behaviour.startswith("whole") else self._streamed(behaviour)

    def _streamed(self, behaviour: str) -> Answer | None:
        begin = [*self.opening(), *map(self.token, TEXT)]
        good = self.answer(*TEXT)
        frames: list[bytes] | None
        match behaviour:
            case "good":
                frames = good
            case "cut_by_length":
                frames = self.answer(*TEXT, finish="length")
            case "answer_failed":
                frames = self.answer(*TEXT, finish="error")
            case "answer_aborted":
                frames = self.answer(*TEXT, finish="abort")
            case "no_end":
                frames = begin
            case "no_finish":
                frames = self.answer(*TEXT, finish=None)
            case "no_event":
                frames = []
            case "no_token":
                frames = self.answer(usage={"completion": 0})
            case "engine_dead_first":
                frames = [*self.opening(), self.error_frame(ENGINE_DEAD, 500)]
            case "engine_dead_after_tokens":
                frames = [*begin, self.error_frame(ENGINE_DEAD, 500)]
            case "busy_first":
                frames = [*self.opening(), self.error_frame(BUSY, 503)]
            case "too_long_first":
                frames = [*self.opening(), self.error_frame(TOO_LONG, 400)]
            case "error_that_was_not_read":
                frames = None if self.misread is None else [self.misread]
            case "text_after_the_end":
                frames = [*good, self.token("more")]
            case "foreign_nonce":
                frames = self.answer("of ", NONCE)
            case "two_ends":
                frames = [*good, good[-1]]
            case "total_is_not_the_sum":
                frames = self.answer(*TEXT, usage={"total": 99})
            case "garbage_json":
                frames = [*self.opening(), b"data: {nothing\n\n"]
            case "text_is_number":
                frames = [*self.opening(), self.token("7").replace(b'"7"', b"7")]
            case "schema_violated":
                frames = self.answer('{"a": ', '"1"}')
            case "tools_violated":
                called = self.call("look_up", "{}")
                frames = None if called is None else [*self.opening(), *called, *self.ending("", "tool_calls")]
            case "html":
                return stream(b"<html>welcome</html>", kind="text/html")
            case "json_for_stream":
                return plain(self.whole())
            case "reset_after_tokens":
                return then(stream(*begin, end=b""), reset)
            case "closed_mid_frame":
                return then(stream(*begin, self.token("x")[:20], end=b""), close)
            case "silence":
                return then(stream(*begin, end=b""), silent)
            case _:
                frames = self.own(behaviour)
        return None if frames is None else stream(*frames)

    def own(self, behaviour: str) -> list[bytes] | None:
        """A behaviour that only this endpoint can have."""
        return None

    def _whole(self, behaviour: str) -> Answer | None:
        good = plain(self.whole())
        match behaviour:
            case "whole":
                return good
            case "whole_failed":
                return plain(self.whole(finish="error"))
            case "whole_no_finish":
                return plain(self.whole(finish=None))
            case "whole_empty":
                return plain(self.whole(text=""))
            case "whole_foreign_nonce":
                return plain(self.whole(text=NONCE))
            case "whole_schema_violated":
                return plain(self.whole(text='{"a": "1"}'))
            case "whole_error_under_200":
                return plain(error(ENGINE_DEAD))
            case "whole_engine_dead":
                return plain(error(ENGINE_DEAD), 500)
            case "whole_too_long":
                return plain(error(TOO_LONG, 400), 400)
            case "whole_busy":
                return plain(error(BUSY, 503), 503)
            case "whole_wrong_types":
                return plain(["no", "object"])
            case "whole_not_json":
                return plain(b"certainly!")
            case "whole_cut":
                return then(good[:-9], close)
            case "whole_but_a_stream":
                return stream(*self.answer(*TEXT)) if self.streams else None
        return self.own_whole(behaviour)

    def own_whole(self, behaviour: str) -> Answer | None:
        """A whole answer that only this endpoint can have."""
        return None


def _counts(usage: Mapping[str, int] | None) -> tuple[int, int, int]:
    known = {"prompt": 17, "completion": 3, **(usage or {})}
    return known["prompt"], known["completion"], known.get("total", known["prompt"] + known["completion"])


class CompletionsShape(Shape):
    def token(self, text: str) -> bytes:
        return frame({"id": "cmpl-7", "choices": [{"index": 0, "text": text, "finish_reason": None}]})

    def ending(self, text: str, finish: str | None = "stop", usage: Mapping[str, int] | None = None) -> list[bytes]:
        last = frame({"id": "cmpl-7", "choices": [{"index": 0, "text": "", "finish_reason": finish}]})
        counted = frame({"id": "cmpl-7", "choices": [], "usage": self.usage(usage)})
        return [last, counted, DONE]

    @staticmethod
    def usage(usage: Mapping[str, int] | None) -> dict[str, int]:
        return dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), _counts(usage), strict=True))

    def whole(self, text: str = "Hello!", finish: str | None = "stop") -> dict[str, Any]:
        usage = self.usage({"completion": 3 if text else 0})
        return {"id": "cmpl-7", "choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": usage}


class ResponsesShape(Shape):
    def opening(self) -> list[bytes]:
        return [event("response.created", sequence_number=0, response=self._response("in_progress", "", None))]

    def token(self, text: str) -> bytes:
        return event("response.output_text.delta", item_id="m", output_index=0, content_index=0, delta=text)

    def ending(self, text: str, finish: str | None = "stop", usage: Mapping[str, int] | None = None) -> list[bytes]:
        done = event("response.output_text.done", item_id="m", output_index=0, content_index=0, text=text)
        if finish is None:
            return [done]
        kind = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "error": "failed"}.get(
            finish, "cancelled"
        )
        response = self._response(kind, text, _counts(usage))
        if finish == "error":
            response["error"] = {"code": "server_error", "message": "internal error happened"}
        return [*([done] if text else []), event(f"response.{kind}", response=response)]

    def call(self, name: str, arguments: str) -> list[bytes]:
        item = {"type": "function_call", "name": name, "arguments": "", "call_id": "c"}
        return [
            event("response.output_item.added", output_index=0, item=item),
            event("response.function_call_arguments.delta", output_index=0, delta=arguments),
        ]

    def own(self, behaviour: str) -> list[bytes] | None:
        numbered = [self._numbered(n, text) for n, text in enumerate(TEXT)]
        match behaviour:
            case "event_number_missing":
                return [numbered[0], numbered[2], *self.ending(TEXT[0] + TEXT[2])]
            case "event_number_repeated":
                return [numbered[0], numbered[1], numbered[1], *self.ending("Hellolo")]
            case "text_differs_from_its_pieces":
                return [*self.opening(), *map(self.token, TEXT), *self.ending("Hello?")]
            case "reasoning":
                thought = event("response.reasoning_text.delta", output_index=0, content_index=0, delta="hm")
                return [*self.opening(), thought, *map(self.token, TEXT), *self.ending("".join(TEXT))]
        return None

    @staticmethod
    def _numbered(number: int, text: str) -> bytes:
        return event("response.output_text.delta", output_index=0, content_index=0, delta=text, sequence_number=number)

    @staticmethod
    def _response(status: str, text: str, counts: tuple[int, int, int] | None) -> dict[str, Any]:
        part = {"type": "output_text", "text": text}
        output = [{"type": "message", "role": "assistant", "content": [part]}] if text else []
        response: dict[str, Any] = {"id": "resp_7", "object": "response", "status": status, "output": output}
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if counts is not None:
            response["usage"] = dict(zip(("input_tokens", "output_tokens", "total_tokens"), counts, strict=True))
            response["usage"]["input_tokens_details"] = {"cached_tokens": 16}
        return response

    def whole(self, text: str = "Hello!", finish: str | None = "stop") -> dict[str, Any]:
        status = {"stop": "completed", "error": "failed", None: "in_progress"}[finish]
        return self._response(status, text, _counts({"completion": 3 if text else 0}))


class MessagesShape(Shape):
    misread = event(
        "error",
        error={
            "type": "internal_error",
            "message": "4 validation errors for ChatCompletionStreamResponse\nid\n  Field required, maximum context length",
        },
    )

    def opening(self) -> list[bytes]:
        message = {
            "id": "chatcmpl-7",
            "type": "message",
            "content": [],
            "usage": {"input_tokens": 17, "output_tokens": 0},
        }
        return [
            event("message_start", message=message),
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event("ping"),
        ]

    def token(self, text: str) -> bytes:
        return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def ending(self, text: str, finish: str | None = "stop", usage: Mapping[str, int] | None = None) -> list[bytes]:
        if usage and "total" in usage:
            return []  # there is no total
        reason = self._reason(finish)
        counted = {"input_tokens": 1, "output_tokens": _counts(usage)[1], "cache_read_input_tokens": 16}
        return [
            event("content_block_stop", index=0),
            event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=counted),
            event("message_stop"),
        ]

    @staticmethod
    def _reason(finish: str | None) -> str | None:
        return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}.get(str(finish))

    def error_frame(self, text: str, code: int) -> bytes:
        return event("error", error={"type": "invalid_request_error", "message": text})

    def call(self, name: str, arguments: str) -> list[bytes]:
        block = {"type": "tool_use", "id": "c", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": arguments}
        return [
            event("content_block_start", index=1, content_block=block),
            event("content_block_delta", index=1, delta=delta),
        ]

    def own(self, behaviour: str) -> list[bytes] | None:
        if behaviour != "reasoning":
            return None
        thought = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
        return [*self.opening(), thought, *map(self.token, TEXT), *self.ending("Hello!")]

    def _streamed(self, behaviour: str) -> Answer | None:
        return None if behaviour == "total_is_not_the_sum" else super()._streamed(behaviour)

    def whole(self, text: str = "Hello!", finish: str | None = "stop") -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 3 if text else 0, "cache_read_input_tokens": 16}
        content = [{"type": "text", "text": text}]
        reason = self._reason(finish)
        return {"id": "chatcmpl-7", "type": "message", "content": content, "stop_reason": reason, "usage": usage}


class TranscriptionsShape(Shape):
    """/v1/audio/transcriptions as vLLM streams it."""

    def token(self, text: str) -> bytes:
        return frame({"id": "trsc-7", "choices": [{"delta": {"content": text}, "finish_reason": None}]})

    def ending(self, text: str, finish: str | None = "stop", usage: Mapping[str, int] | None = None) -> list[bytes]:
        last = frame({"id": "trsc-7", "choices": [{"delta": {"content": ""}, "finish_reason": finish}]})
        counted = frame({"id": "trsc-7", "choices": [], "usage": CompletionsShape.usage(usage)})
        return [last, counted, DONE]

    def own(self, behaviour: str) -> list[bytes] | None:
        typed = [frame({"type": "transcript.text.delta", "delta": text}) for text in TEXT]
        done = frame(
            {"type": "transcript.text.done", "text": "Hello!", "usage": {"input_tokens": 17, "output_tokens": 3}}
        )
        match behaviour:
            case "typed_events":
                return [*typed, done]
            case "typed_events_without_end":
                return typed
            case "typed_text_after_the_end":
                return [*typed, done, typed[0]]
            case "several_parts":  # of 30 s of audio each
                part = [*map(self.token, TEXT), self.ending("", "length")[0]]
                counted = {"completion": 96}  # max_tokens in each part
                return [*part, *part, *map(self.token, TEXT), *self.ending("Hello!", usage=counted)]
            case "part_without_finish":
                part = [*map(self.token, TEXT), self.ending("", "length")[0]]
                return [*part, *map(self.token, TEXT), *self.ending("Hello!")[1:]]
        return None

    def whole(self, text: str = "Hello!", finish: str | None = "stop") -> dict[str, Any]:
        return {"text": text, "usage": {"type": "duration", "seconds": 2}}

    def own_whole(self, behaviour: str) -> Answer | None:
        return None

    def _whole(self, behaviour: str) -> Answer | None:
        return None if behaviour in {"whole_failed", "whole_no_finish"} else super()._whole(behaviour)


class ResultShape(Shape):
    """An endpoint whose answers are results without text.

    Args:
        key: name of the list of results.
        field: name of a result's value.
        values: right values of two texts, and wrong ones.
    """

    streams = False

    def __init__(self, key: str, field: str, right: list[Any], nothing: Any) -> None:
        self._key, self._field, self._right, self._nothing = key, field, right, nothing

    def _streamed(self, behaviour: str) -> Answer | None:
        return None

    def whole(self, text: str = "Hello!", finish: str | None = "stop") -> dict[str, Any]:
        return self._body([*enumerate(self._right)])

    def _body(self, results: list[tuple[object, Any]]) -> dict[str, Any]:
        usage = {"prompt_tokens": 17, "total_tokens": 17, "completion_tokens": 0}
        return {
            "id": "embd-7", self._key: [{"index": n, self._field: value} for n, value in results], "usage": usage,
        }  # fmt: skip

    def _whole(self, behaviour: str) -> Answer | None:
        one, two = self._right
        match behaviour:
            case "whole_empty" | "whole_no_finish":
                return plain(self._body([])) if behaviour == "whole_no_finish" else None
            case "whole_failed" | "whole_foreign_nonce" | "whole_schema_violated":
                return None
            case "whole_but_a_stream":
                return stream(frame(self.whole()))
            case "whole_result_missing":
                return plain(self._body([(0, one)]))
            case "whole_result_twice":
                return plain(self._body([(0, one), (0, two)]))
            case "whole_result_without_number":
                return plain(self._body([(0, self._nothing), (1, two)]))
            case "whole_results_out_of_order":
                return plain(self._body([(0, two), (1, one)])) if self._key == "results" else None
            case "whole_vector_of_zeros":
                return plain(self._body([(0, [0.0, 0.0]), (1, two)])) if self._key == "data" and one != 0.9 else None
        return super()._whole(behaviour)


SHAPES: Mapping[str, Shape] = {
    "completions": CompletionsShape(),
    "responses": ResponsesShape(),
    "messages": MessagesShape(),
    "embeddings": ResultShape("data", "embedding", [[0.5, -0.5], [0.25, 1]], [None, 0.5]),
    "rerank": ResultShape("results", "relevance_score", [0.9, 0.25], None),
    "score": ResultShape("data", "score", [0.9, 0.25], None),
    "transcriptions": TranscriptionsShape(),
}
OUTCOMES_OF_BEHAVIOURS = {
    "good": "ok", "cut_by_length": "ok", "reasoning": "ok", "answer_failed": "finish_error",
    "answer_aborted": "finish_abort", "no_end": "truncated", "no_finish": "truncated", "no_event": "truncated",
    "no_token": "empty", "engine_dead_first": "stream_error", "engine_dead_after_tokens": "stream_error",
    "busy_first": "shed", "too_long_first": "rejected", "error_that_was_not_read": "stream_error",
    "text_after_the_end": "wrong_output", "foreign_nonce": "wrong_output", "two_ends": "wrong_output",
    "total_is_not_the_sum": "wrong_output", "event_number_missing": "wrong_output",
    "event_number_repeated": "wrong_output", "text_differs_from_its_pieces": "wrong_output",
    "schema_violated": "wrong_output", "tools_violated": "wrong_output", "garbage_json": "protocol_error",
    "text_is_number": "protocol_error", "html": "protocol_error", "json_for_stream": "protocol_error",
    "reset_after_tokens": "reset", "closed_mid_frame": "reset", "silence": "stalled", "whole": "ok",
    "whole_failed": "finish_error", "whole_no_finish": "truncated", "whole_empty": "empty",
    "whole_foreign_nonce": "wrong_output", "whole_schema_violated": "wrong_output",
    "whole_error_under_200": "http_error", "whole_engine_dead": "http_error", "whole_too_long": "rejected",
    "whole_busy": "shed", "whole_wrong_types": "protocol_error", "whole_not_json": "protocol_error",
    "whole_cut": "reset", "whole_but_a_stream": "protocol_error", "whole_result_missing": "wrong_output",
    "whole_result_twice": "wrong_output", "whole_result_without_number": "wrong_output",
    "whole_results_out_of_order": "wrong_output", "whole_vector_of_zeros": "wrong_output", "typed_events": "ok",
    "typed_events_without_end": "truncated", "typed_text_after_the_end": "wrong_output",
    "several_parts": "ok", "part_without_finish": "truncated",
}  # fmt: skip
"""The outcome of a request that an endpoint answers so; few endpoints have another one."""
