"""A server that misbehaves on purpose; the path's first part is the mode."""

import gzip
import json
import socket
import threading
import zlib

from tests.raw_sockets import ConnectionServer, Handler, chunk, read_request, reset

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."


def frame(data: object) -> bytes:
    """One event with LF ends, JSON as vLLM writes it."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + text.encode() + b"\n\n"


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return {"id": "chatcmpl-7", "object": "chat.completion.chunk", "choices": [choice]}


def usage(prompt: int, completion: int) -> bytes:
    return frame({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def error(message: str, code: object = 500, kind: str = "InternalServerError") -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def tool_call(name: str, *arguments: str, index: int = 0) -> list[bytes]:
    """Frames of a tool call: its name, then its arguments piece by piece."""
    head = {"index": index, "id": "call-1", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    return [frame(delta(tool_calls=[call])) for call in (head, *pieces)]


ROLE = frame(delta(role="assistant", content=""))
TOKENS = b"".join(frame(delta(content=t)) for t in ("Hel", "lo", "!"))
USAGE = {
    "prompt_tokens": 17,
    "completion_tokens": 3,
    "total_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 16},
}
STOP = frame(delta(finish="stop"))
USAGE_CHUNK = frame({"id": "chatcmpl-7", "choices": [], "usage": USAGE})
DONE = frame("[DONE]")
TAIL = [STOP, USAGE_CHUNK, DONE]
GOOD = [ROLE, TOKENS, STOP, USAGE_CHUNK, DONE]
HEAD = "HTTP/1.1 {} X\r\nContent-Type: {}\r\nx-request-id: req-9\r\n"

JSON_HEAD = HEAD.format(200, "application/json").encode()


def stream(*parts: bytes, end: bytes = b"0\r\n\r\n", kind: str = "text/event-stream; charset=utf-8") -> bytes:
    head = HEAD.format(200, kind) + "Transfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(chunk(p) for p in parts) + end


def plain(body: bytes | object, status: int = 200, kind: str = "application/json", extra: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (HEAD.format(status, kind) + extra + f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def whole(
    content: object = "Hello!", finish: str | None = "stop", usage: object = USAGE, **fields: object
) -> dict[str, object]:
    message = {"role": "assistant", "content": content, **fields}
    return {"id": "chatcmpl-7", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


def in_packets(data: bytes, count: int) -> Handler:
    def act(peer: socket.socket) -> None:
        size = max(1, -(-len(data) // count))
        for at in range(0, len(data), size):
            peer.sendall(data[at : at + size])

    return act


def then(data: bytes, what: Handler) -> Handler:
    def act(peer: socket.socket) -> None:
        peer.sendall(data)
        what(peer)

    return act


def close(peer: socket.socket) -> None:
    peer.close()


def silent(peer: socket.socket) -> None:
    """Say nothing until the client gives up and closes."""
    peer.recv(1)


def choice(index: int, finish: str | None, **fields: object) -> bytes:
    return frame({"id": "chatcmpl-7", "choices": [{"index": index, "delta": fields, "finish_reason": finish}]})


def idle_close(good: bytes) -> Handler:
    """Close after the first complete answer; keep later connections open."""
    first = threading.Event()

    def act(peer: socket.socket) -> None:
        peer.sendall(good)
        if not first.is_set():
            first.set()
            peer.close()

    return act


def endless_line(peer: socket.socket) -> None:
    """Send one event that never ends, 64 kB at a time."""
    peer.sendall(stream(ROLE, end=b"") + b"%x\r\ndata: " % (1 << 30))
    for _ in range(160):
        peer.sendall(b"x" * 65536)


def gzip_bomb(peer: socket.socket) -> None:
    """Send 80 kB that decode to 80 MB."""
    peer.sendall(plain(zlib.compress(b" " * 80_000_000), extra="Content-Encoding: gzip\r\n"))


LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5}]}
LOGPROBS = frame({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [LOGPROB]}}]})
LMDEPLOY_ERROR = delta(finish="error", role="assistant", content="internal error happened")
TOOL_CALL = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}])
TEXT_CHOICES = [{"index": 0, "text": "Hi", "finish_reason": None}, {"index": 0, "text": "", "finish_reason": "length"}]
TEXT_STREAM = b"".join(frame({"id": "c", "choices": [choice]}) for choice in TEXT_CHOICES)
BIG_HEAD = HEAD.format(200, "text/event-stream") + f"x-trace: {'t' * 100_000}\r\nTransfer-Encoding: chunked\r\n\r\n"
TWO_DATA_LINES = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"a"}}]}\n\n'
SEPARATORS = "a\u2028b\u2029c\u0085d"


def named(model: str) -> bytes:
    return frame({**delta(role="assistant"), "model": model})


MODES: dict[str, bytes | Handler] = {
    # streams
    "good": stream(*GOOD),
    "good_no_done": stream(ROLE, TOKENS, STOP, USAGE_CHUNK),
    "error_first": stream(frame(error(ENGINE_DEAD)), DONE),
    "error_first_code_400_dead": stream(frame(error(ENGINE_DEAD, 400, "BadRequestError")), DONE),
    "error_after_tokens": stream(ROLE, TOKENS, frame(error("boom")), DONE),
    "event_error": stream(ROLE, TOKENS, b'event: error\ndata: {"type":"error","error":{"message":"boom"}}\n\n'),
    "event_error_no_json": stream(ROLE, b"event: error\ndata: it broke\n\n"),
    "error_after_finish": stream(ROLE, TOKENS, STOP, frame(error("late")), DONE),
    "error_after_done": stream(*GOOD, frame(error("too late"))),
    "engine_dead_after_done": stream(*GOOD, frame(error(ENGINE_DEAD))),
    "event_error_after_done": stream(*GOOD, b"event: error\ndata: it broke\n\n"),
    "text_after_done": stream(*GOOD, frame(delta(content="more"))),
    "tokens_of_another_after_done": stream(*GOOD, frame({**delta(content="mine"), "id": "chatcmpl-8"}), DONE),
    "role_after_done": stream(*GOOD, ROLE),
    "text_after_finish": stream(ROLE, TOKENS, STOP, frame(delta(content="more")), USAGE_CHUNK, DONE),
    "many_tokens_after_finish": stream(ROLE, TOKENS, STOP, TOKENS, TOKENS, TOKENS, USAGE_CHUNK, DONE),
    "role_after_finish": stream(ROLE, TOKENS, STOP, ROLE, USAGE_CHUNK, DONE),
    "content_empty_in_every_chunk": stream(ROLE * 16, STOP, usage(9, 16), DONE),
    "one_word_for_16_tokens": stream(ROLE, frame(delta(content="word")), STOP, usage(9, 16), DONE),
    "more_chunks_than_tokens": stream(ROLE, TOKENS, TOKENS, *TAIL),
    "no_text_no_usage": stream(ROLE * 16, STOP, DONE),
    "finish_error": stream(ROLE, TOKENS, frame(delta(finish="error")), DONE),
    "finish_abort": stream(ROLE, TOKENS, frame(delta(finish="abort")), DONE),
    "finish_timeout": stream(ROLE, TOKENS, frame(delta(finish="timeout")), DONE),
    "finish_cancelled": stream(ROLE, TOKENS, frame(delta(finish="cancelled")), DONE),
    "finish_content_filter": stream(ROLE, TOKENS, frame(delta(finish="content_filter")), DONE),
    "finish_eos_token": stream(ROLE, TOKENS, frame(delta(finish="eos_token")), *TAIL[1:]),
    "finish_tool_calls_without_a_call": stream(ROLE, TOKENS, frame(delta(finish="tool_calls")), *TAIL[1:]),
    "tool_calls_without_a_name": stream(
        ROLE, frame(delta(tool_calls=[{"index": 0}])), frame(delta(finish="tool_calls")), *TAIL[1:]
    ),
    "one_choice_of_two": stream(*GOOD),
    "model_of_another": stream(named("tiny-b"), *GOOD),
    "model_with_its_release": stream(named("org/tiny-2026-11-01"), *GOOD),
    "no_logprobs": stream(*GOOD),
    "more_tokens_than_most": stream(ROLE, TOKENS, STOP, usage(9, 33), DONE),
    "more_cached_than_prompt_tokens": stream(
        ROLE, TOKENS, STOP,
        frame({"choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 18}}}), DONE,
    ),
    "thinking": stream(ROLE, frame(delta(thinking="hm")), frame(delta(content="yes")), *TAIL),
    "reasoning_details": stream(
        ROLE, frame(delta(content="", reasoning_details=[{"type": "reasoning.text", "text": "hm"}])),
        frame(delta(content="yes")), *TAIL,
    ),
    "content_in_parts": stream(
        ROLE, frame(delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])),
        frame(delta(content="yes")), *TAIL,
    ),
    "logprob_above_zero": stream(
        ROLE,
        frame({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"logprob": 0.7}]}}]}),
        *TAIL,
    ),
    "no_finish_no_done": stream(ROLE, TOKENS),
    "no_finish_done": stream(ROLE, TOKENS, DONE),
    "done_only": stream(DONE),
    "no_body": stream(),
    "comments_only": stream(b": ping\n\n", b": ping\n\n"),
    "reset_after_headers": then(stream(end=b""), reset),
    "reset_after_tokens": then(stream(ROLE, TOKENS, end=b""), reset),
    "reset_mid_frame": then(stream(ROLE, TOKENS, end=b"") + b'40\r\ndata: {"choi', reset),
    "closed_mid_frame": then(stream(ROLE, TOKENS, end=b"") + b'40\r\ndata: {"choi', close),
    "closed_without_last_chunk": then(stream(*GOOD[:-1], end=b""), close),
    "reset_after_done": then(stream(*GOOD, end=b""), reset),
    "no_token_stop": stream(ROLE, STOP, usage(9, 0), DONE),
    "eos_at_once": stream(ROLE, STOP, usage(9, 1), DONE),
    "usage_zero": stream(ROLE, TOKENS, STOP, usage(0, 0), DONE),
    "usage_missing": stream(ROLE, TOKENS, STOP, DONE),
    "usage_late": stream(ROLE, TOKENS, STOP, DONE, USAGE_CHUNK),
    "garbage_json": stream(ROLE, TOKENS, frame('{"choices": [{'), STOP, DONE),
    "wrong_types": stream(ROLE, frame({"choices": "many"}), DONE),
    "content_is_number": stream(ROLE, frame(delta(content=7)), DONE),
    "not_sse": stream(b"<html><body>welcome</body></html>"),
    "html": plain(b"<html><body>welcome</body></html>", kind="text/html"),
    "sse_as_text_plain": stream(*GOOD, kind="text/plain"),
    "json_for_stream": plain(whole()),
    "crlf": stream(*(p.replace(b"\n", b"\r\n") for p in GOOD)),
    "cr_only": stream(*(p.replace(b"\n", b"\r") for p in GOOD)),
    "comments": stream(b": keep-alive\n\n", ROLE, b":\n\n", TOKENS, b": x\n\n", *TAIL),
    "multi_line_data": stream(ROLE, TWO_DATA_LINES, *TAIL),
    "line_separators": stream(ROLE, frame(delta(content=SEPARATORS)), *TAIL),
    "utf8_split": in_packets(stream(ROLE, frame(delta(content="日本語🙂é")), *TAIL), 300),
    "four_events_a_packet": stream(ROLE + TOKENS, STOP + USAGE_CHUNK + DONE),
    "forty_packets": in_packets(stream(*GOOD), 40),
    "four_tokens_an_event": stream(ROLE, frame(delta(content="one two three four")), *TAIL),
    "reasoning": stream(ROLE, frame(delta(reasoning="hm")), frame(delta(content="yes")), *TAIL),
    "reasoning_content": stream(ROLE, frame(delta(reasoning_content="hm")), frame(delta(content="yes")), *TAIL),
    "reasoning_only": stream(ROLE, frame(delta(reasoning="hm")), frame(delta(finish="length")), *TAIL[1:]),
    "tool_calls": stream(ROLE, frame(TOOL_CALL), frame(delta(finish="tool_calls")), *TAIL[1:]),
    "text_completion": stream(TEXT_STREAM, *TAIL[1:]),
    "lmdeploy_internal": stream(frame(LMDEPLOY_ERROR), DONE),
    "lmdeploy_cut": stream(ROLE, TOKENS, frame(delta(finish=None)), DONE),
    "queue_in_stream": stream(frame(error(BUSY, 503, "Service Unavailable")), DONE),
    "code_429_in_stream": stream(frame(error("slow down", 429, "RateLimit")), DONE),
    "too_long_in_stream": stream(frame(error(TOO_LONG, 400, "BadRequestError")), DONE),
    "too_long_after_tokens": stream(ROLE, TOKENS, frame(error(TOO_LONG, 400, "BadRequestError")), DONE),
    "two_done": stream(*GOOD, DONE),
    "total_is_not_the_sum": stream(ROLE, TOKENS, STOP, frame({"choices": [], "usage": {**USAGE, "total_tokens": 21}}), DONE),
    "more_reasoning_than_completion": stream(
        ROLE, TOKENS, STOP,
        frame({"choices": [], "usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": 197}}}), DONE,
    ),
    "choice_that_was_not_requested": stream(
        ROLE, frame({"choices": [{"index": 5, "delta": {"content": "x"}, "finish_reason": "stop"}]}), *TAIL
    ),
    "numbered_chunks": stream(*(frame({**delta(content="x"), "sequence_number": n}) for n in (4, 5, 6)), *TAIL),
    "numbered_chunk_missing": stream(*(frame({**delta(content="x"), "sequence_number": n}) for n in (4, 6)), *TAIL),
    "numbered_chunk_repeated": stream(*(frame({**delta(content="x"), "sequence_number": n}) for n in (4, 5, 5)), *TAIL),
    "chunk_with_another_id": stream(
        ROLE, TOKENS, frame({**delta(content="x"), "id": "chatcmpl-8"}), *TAIL
    ),
    "schema_obeyed": stream(ROLE, frame(delta(content='{"a":')), frame(delta(content="1}")), *TAIL),
    "schema_violated": stream(ROLE, frame(delta(content='{"a":')), frame(delta(content='"1"}')), *TAIL),
    "schema_answer_is_no_json": stream(ROLE, frame(delta(content='{"a":')), frame(delta(content='{"a":1}')), *TAIL),
    "schema_answer_cut_by_length": stream(
        ROLE, frame(delta(content='{"a":')), frame(delta(finish="length")), USAGE_CHUNK, DONE
    ),
    "whole_schema_violated": plain(whole('{"a": "1"}')),
    "tools_obeyed": stream(ROLE, *tool_call("look_up", '{"a":', "1}"), frame(delta(finish="tool_calls")), USAGE_CHUNK, DONE),
    "tools_arguments_violated": stream(
        ROLE, *tool_call("look_up", "{", "}"), frame(delta(finish="tool_calls")), USAGE_CHUNK, DONE
    ),
    "tools_unknown": stream(ROLE, *tool_call("delete", "{", "}"), frame(delta(finish="tool_calls")), USAGE_CHUNK, DONE),
    "tools_not_called": stream(*GOOD),
    "tools_begin_at_call_1": stream(
        ROLE, *tool_call("look_up", '{"a":', "1}", index=1), frame(delta(finish="tool_calls")), USAGE_CHUNK, DONE
    ),
    "replacement_character": stream(ROLE, frame(delta(content="\ufffd\ufffd")), *TAIL),
    "exclamation_marks": stream(ROLE, *[frame(delta(content="!!"))] * 20, *TAIL),
    "one_token_repeated": stream(ROLE, *[frame(delta(content=" l"))] * 40, *TAIL),
    "fewer_logprobs_than_tokens": stream(
        ROLE, frame({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{}]}}]}), *TAIL
    ),
    "foreign_nonce": stream(ROLE, frame(delta(content="the word is zebra-17")), *TAIL),
    "gzip": plain(gzip.compress(b"".join(GOOD)), kind="text/event-stream", extra="Content-Encoding: gzip\r\n"),
    "until_close": then(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(GOOD), close),
    "until_close_cut_short": then(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + ROLE + TOKENS, close),
    "hundred_continue": b"HTTP/1.1 100 Continue\r\n\r\n" + stream(*GOOD),
    "event_of_4_mb": stream(ROLE, frame(delta(content="x" * 4_000_000)), *TAIL),
    "event_without_end": endless_line,
    "gzip_bomb": gzip_bomb,
    "big_headers": BIG_HEAD.encode() + b"".join(chunk(p) for p in GOOD) + b"0\r\n\r\n",
    # whole bodies
    "whole": plain(whole()),
    "whole_finish_error": plain(whole("internal error happened", "error")),
    "whole_finish_abort": plain(whole(None, "abort")),
    "whole_no_finish": plain(whole(finish=None)),
    "whole_empty": plain(whole("", "length", {"prompt_tokens": 5000, "completion_tokens": 0})),
    "whole_reasoning_only": plain(whole(None, "length", reasoning="hm")),
    "whole_tool_calls": plain(whole(None, "tool_calls", tool_calls=[{"id": "1", "function": {"name": "f"}}])),
    "whole_tool_calls_without_a_name": plain(whole(None, "tool_calls", tool_calls=[{"id": "1"}])),
    "whole_one_choice_of_two": plain(whole()),
    "whole_model_of_another": plain({**whole(), "model": "tiny-b"}),
    "whole_no_logprobs": plain(whole()),
    "whole_finish_content_filter": plain(whole("Hello", "content_filter")),
    "whole_content_in_parts": plain(whole([{"type": "text", "text": "Hello"}])),
    "whole_wrong_types": plain({"choices": {"a": 1}}),
    "whole_not_json": plain(b"certainly!"),
    "whole_nothing": plain(b""),
    "whole_gzip": plain(gzip.compress(json.dumps(whole()).encode()), extra="Content-Encoding: gzip\r\n"),
    "whole_cut": then(plain(whole())[:-10], close),
    "whole_until_close": then(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(whole()).encode(), close),
    "whole_foreign_nonce": plain(whole("the word is zebra-17")),
    "whole_sse": stream(*GOOD),
    # whatever was asked for
    "error_object_200": plain(error("upstream failed", 502)),
    "error_code_200": plain({"error_code": 10402, "error_msg": "no quota"}),
    "status_500_json": plain(error(ENGINE_DEAD), 500),
    "status_500_text": plain(b"Internal Server Error", 500, "text/plain"),
    "status_500_empty": plain(b"", 500, "text/plain"),
    "status_503": plain(error("The inference engine is unavailable.", 503), 503),
    "status_503_retry_after": plain(b"", 503, extra="Retry-After: 5\r\n"),
    "status_503_busy": plain(error(BUSY, 503, "Service Unavailable"), 503),
    "status_429": plain(error("slow down", 429), 429),
    "status_400_too_long": plain(error(TOO_LONG, 400, "BadRequestError"), 400),
    "status_400_flat": plain({"object": "error", "message": TOO_LONG, "type": "invalid_request_error", "code": 400}, 400),
    "status_400_unknown": plain(error("list index out of range", 400, "BadRequestError"), 400),
    "status_404": plain({"detail": "Not Found"}, 404),
    "status_401": plain({"error": "Unauthorized"}, 401),
    "status_302": plain(b"", 302, extra="Location: /login\r\n"),
    "not_http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "bad_chunk_size": stream(ROLE, end=b"zz\r\n"),
    "reset_before_headers": reset,
    "closed_before_headers": close,
    # and more of each
    "one_event_in_forty_packets": in_packets(stream(ROLE, frame(delta(content="a b c " * 40)), *TAIL), 40),
    "byte_order_mark": stream(b"\xef\xbb\xbf" + ROLE, TOKENS, *TAIL),
    "usage_in_every_chunk": stream(ROLE, *(frame({**delta(content=t), "usage": USAGE}) for t in "abc"), STOP, DONE),
    "two_choices": stream(ROLE, choice(1, None, content="b"), TOKENS, STOP, choice(1, "stop"), USAGE_CHUNK, DONE),
    "one_of_two_choices_unfinished": stream(ROLE, choice(1, None, content="b"), TOKENS, STOP, USAGE_CHUNK, DONE),
    "logprobs": stream(ROLE, LOGPROBS, *TAIL),
    "last_blank_line_missing": stream(ROLE, TOKENS, STOP, USAGE_CHUNK, DONE.rstrip()),
    "null_choices_first": stream(frame({"choices": None}), ROLE, TOKENS, *TAIL),
    "error_as_text": stream(ROLE, TOKENS, frame({"error": "it broke"}), DONE),
    "error_code_in_stream": stream(frame({"error_code": 10402, "error_msg": "no quota"}), DONE),
    "broken_gzip": plain(gzip.compress(b"".join(GOOD))[:-30], kind="text/event-stream", extra="Content-Encoding: gzip\r\n"),
    "bytes_behind_the_end": stream(*GOOD) + b"and more",
    "chunk_sizes_with_extensions": stream(end=b"") + b"".join(
        b"%X;name=value\r\n%s\r\n" % (len(p), p) for p in GOOD) + b"0\r\nX-Trailer: 1\r\n\r\n",
    "whole_in_chunks": stream(json.dumps(whole()).encode()[:30], json.dumps(whole()).encode()[30:], kind="application/json"),
    "whole_shorter_than_promised": then(JSON_HEAD + b"Content-Length: 900\r\n\r\n{}", close),
    "content_length_is_no_number": JSON_HEAD + b"Content-Length: many\r\n\r\n{}",
    "whole_hundred_continue": b"HTTP/1.1 100 Continue\r\n\r\n" + plain(whole()),
    "whole_big_headers": plain(whole(), extra=f"x-trace: {'t' * 100_000}\r\n"),
    "whole_reset_mid_body": then(plain(whole())[:-10], reset),
    "whole_usage_zero": plain(whole(usage={"prompt_tokens": 0, "completion_tokens": 0})),
    "whole_usage_missing": plain(whole(usage=None)),
    "whole_no_token_stop": plain(whole("", usage={"prompt_tokens": 9, "completion_tokens": 0})),
    "whole_utf8_split": in_packets(plain(json.dumps(whole("日本語🙂é"), ensure_ascii=False).encode()), 300),
    "status_408": plain(b"", 408),
    "status_413_gateway": plain(b"<html><h1>413 Request Entity Too Large</h1></html>", 413, "text/html"),
    "status_502_html": plain(b"<html><h1>502 Bad Gateway</h1></html>", 502, "text/html"),
    "status_504_gateway": plain(b"upstream request timeout", 504, "text/plain"),
    "status_500_cut": then(plain(error(ENGINE_DEAD), 500)[:-20], close),
    "status_204": HEAD.format(204, "text/plain").encode() + b"\r\n",
    # silence
    "never": silent,
    "tokens_then_silence": then(stream(ROLE, TOKENS, end=b""), silent),
    "headers_then_silence": then(stream(end=b""), silent),
    "whole_half_then_silence": then(plain(whole())[:-10], silent),
    "half_a_chunk": then(stream(ROLE, TOKENS, end=b"") + b"80\r\ndata: {", silent),
}  # fmt: skip


class Misbehaving(ConnectionServer):
    """A running server with every mode; `modes` maps a path's first part to its behaviour.

    A mode of bytes is sent as it is, and the connection is kept.
    """

    def __init__(self) -> None:
        self.modes: dict[str, bytes | Handler] = {
            **MODES,
            "closed_while_idle": idle_close(stream(*GOOD)),
            "whole_closed_while_idle": idle_close(plain(whole())),
        }
        self.requests: list[bytes] = []
        super().__init__(self._behave)

    def url_of(self, mode: str) -> str:
        return f"{self.url}/{mode}"

    def _behave(self, peer: socket.socket) -> None:
        while request := read_request(peer):
            self.requests.append(request)
            answer = self.modes[request.split(b" ")[1].split(b"/")[1].decode()]
            if isinstance(answer, bytes):
                peer.sendall(answer)
            else:
                answer(peer)
