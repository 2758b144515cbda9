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


def numbered(*numbers: int) -> list[bytes]:
    """Chunks with these numbers of the sequence."""
    return [frame({**delta(content="x"), "sequence_number": n}) for n in numbers]


def named(model: str) -> bytes:
    return frame({**delta(role="assistant"), "model": model})


def usage_chunk(**changes: object) -> bytes:
    return frame({"choices": [], "usage": {**USAGE, **changes}})


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
    peer.sendall(plain(zlib.compress(b" " * 80_000_000), extra=GZIP))


LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5}]}
LOGPROBS = frame({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [LOGPROB]}}]})
LMDEPLOY_ERROR = delta(finish="error", role="assistant", content="internal error happened")
TOOL_CALL = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}])
TEXT_CHOICES = [{"index": 0, "text": "Hi", "finish_reason": None}, {"index": 0, "text": "", "finish_reason": "length"}]
TEXT_STREAM = b"".join(frame({"id": "c", "choices": [choice]}) for choice in TEXT_CHOICES)
BIG_HEAD = HEAD.format(200, "text/event-stream") + f"x-trace: {'t' * 100_000}\r\nTransfer-Encoding: chunked\r\n\r\n"
TWO_DATA_LINES = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"a"}}]}\n\n'
SEPARATORS = "a\u2028b\u2029c\u0085d"
CALLED = [frame(delta(finish="tool_calls")), USAGE_CHUNK, DONE]
ERROR_EVENT = b'event: error\ndata: {"type":"error","error":{"message":"boom"}}\n\n'
OF_ANOTHER = frame({**delta(content="mine"), "id": "chatcmpl-8"})
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
WHOLE_BODY = json.dumps(whole()).encode()
GZIP = "Content-Encoding: gzip\r\n"
Modes = dict[str, tuple[str, bytes | Handler]]
"""The outcome of a request and the answer that it gets, by the mode; bytes are sent as they are."""

OF_STREAMS: Modes = {
    "good": ("ok", stream(*GOOD)),
    "good_no_done": ("truncated", stream(ROLE, TOKENS, STOP, USAGE_CHUNK)),
    "error_first": ("stream_error", stream(frame(error(ENGINE_DEAD)), DONE)),
    "error_first_code_400_dead": ("stream_error", stream(frame(error(ENGINE_DEAD, 400, "BadRequestError")), DONE)),
    "error_after_tokens": ("stream_error", stream(ROLE, TOKENS, frame(error("boom")), DONE)),
    "event_error": ("stream_error", stream(ROLE, TOKENS, ERROR_EVENT)),
    "event_error_no_json": ("stream_error", stream(ROLE, b"event: error\ndata: it broke\n\n")),
    "error_after_finish": ("stream_error", stream(ROLE, TOKENS, STOP, frame(error("late")), DONE)),
    "error_after_done": ("stream_error", stream(*GOOD, frame(error("too late")))),
    "engine_dead_after_done": ("stream_error", stream(*GOOD, frame(error(ENGINE_DEAD)))),
    "event_error_after_done": ("stream_error", stream(*GOOD, b"event: error\ndata: it broke\n\n")),
    "broken_json_after_done": ("protocol_error", stream(*GOOD, b"data: {\"cut\n\n")),
    "text_after_done": ("wrong_output", stream(*GOOD, frame(delta(content="more")))),
    "tokens_of_another_after_done": ("wrong_output", stream(*GOOD, OF_ANOTHER, DONE)),
    "role_after_done": ("ok", stream(*GOOD, ROLE)),
    "text_after_finish": ("wrong_output", stream(ROLE, TOKENS, STOP, frame(delta(content="more")), USAGE_CHUNK, DONE)),
    "many_tokens_after_finish": ("wrong_output", stream(ROLE, TOKENS, STOP, TOKENS, TOKENS, TOKENS, USAGE_CHUNK, DONE)),
    "role_after_finish": ("ok", stream(ROLE, TOKENS, STOP, ROLE, USAGE_CHUNK, DONE)),
    "content_empty_in_every_chunk": ("ok", stream(ROLE * 16, STOP, usage(9, 16), DONE)),
    "one_word_for_16_tokens": ("ok", stream(ROLE, frame(delta(content="word")), STOP, usage(9, 16), DONE)),
    "more_chunks_than_tokens": ("ok", stream(ROLE, TOKENS, TOKENS, *TAIL)),
    "no_text_no_usage": ("empty", stream(ROLE * 16, STOP, DONE)),
    "finish_error": ("finish_error", stream(ROLE, TOKENS, frame(delta(finish="error")), DONE)),
    "finish_abort": ("finish_abort", stream(ROLE, TOKENS, frame(delta(finish="abort")), DONE)),
    "finish_timeout": ("finish_abort", stream(ROLE, TOKENS, frame(delta(finish="timeout")), DONE)),
    "finish_cancelled": ("finish_abort", stream(ROLE, TOKENS, frame(delta(finish="cancelled")), DONE)),
    "finish_content_filter": ("finish_abort", stream(ROLE, TOKENS, frame(delta(finish="content_filter")), DONE)),
    "finish_eos_token": ("ok", stream(ROLE, TOKENS, frame(delta(finish="eos_token")), *TAIL[1:])),
    "finish_tool_calls_without_a_call": ("wrong_output", stream(ROLE, TOKENS, *CALLED)),
    "tool_calls_without_a_name": ("wrong_output", stream(ROLE, frame(delta(tool_calls=[{"index": 0}])), *CALLED)),
    "one_choice_of_two": ("wrong_output", stream(*GOOD)),
    "model_of_another": ("ok", stream(named("tiny-b"), *GOOD)),
    "model_with_its_release": ("ok", stream(named("org/tiny-2026-11-01"), *GOOD)),
    "no_logprobs": ("wrong_output", stream(*GOOD)),
    "length_after_5_tokens_of_32": ("wrong_output", stream(ROLE, TOKENS, frame(delta(finish="length")), usage(9, 5), DONE)),
    "length_after_5_tokens_in_a_full_context": (
        "ok", stream(ROLE, TOKENS, frame(delta(finish="length")), usage(2042, 5), DONE),
    ),
    "more_tokens_than_most": ("wrong_output", stream(ROLE, TOKENS, STOP, usage(9, 33), DONE)),
    "more_cached_than_prompt_tokens": ("wrong_output", stream(
        ROLE, TOKENS, STOP,
        usage_chunk(prompt_tokens_details={"cached_tokens": 18}), DONE,
    )),
    "thinking": ("ok", stream(ROLE, frame(delta(thinking="hm")), frame(delta(content="yes")), *TAIL)),
    "reasoning_details": ("ok", stream(
        ROLE, frame(delta(content="", reasoning_details=[{"type": "reasoning.text", "text": "hm"}])),
        frame(delta(content="yes")), *TAIL,
    )),
    "content_in_parts": ("ok", stream(
        ROLE, frame(delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])),
        frame(delta(content="yes")), *TAIL,
    )),
    "logprob_above_zero": ("wrong_output", stream(
        ROLE,
        frame({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"logprob": 0.7}]}}]}),
        *TAIL,
    )),
    "no_finish_no_done": ("truncated", stream(ROLE, TOKENS)),
    "no_finish_done": ("truncated", stream(ROLE, TOKENS, DONE)),
    "done_only": ("truncated", stream(DONE)),
    "no_body": ("truncated", stream()),
    "comments_only": ("truncated", stream(b": ping\n\n", b": ping\n\n")),
    "reset_after_tokens": ("reset", then(stream(ROLE, TOKENS, end=b""), reset)),
    "reset_mid_frame": ("reset", then(stream(ROLE, TOKENS, end=b"") + b'40\r\ndata: {"choi', reset)),
    "closed_mid_frame": ("reset", then(stream(ROLE, TOKENS, end=b"") + b'40\r\ndata: {"choi', close)),
    "closed_without_last_chunk": ("reset", then(stream(*GOOD[:-1], end=b""), close)),
    "reset_after_done": ("ok", then(stream(*GOOD, end=b""), reset)),
    "no_token_stop": ("empty", stream(ROLE, STOP, usage(9, 0), DONE)),
    "eos_at_once": ("ok", stream(ROLE, STOP, usage(9, 1), DONE)),
    "usage_zero": ("ok", stream(ROLE, TOKENS, STOP, usage(0, 0), DONE)),
    "usage_missing": ("ok", stream(ROLE, TOKENS, STOP, DONE)),
    "usage_late": ("ok", stream(ROLE, TOKENS, STOP, DONE, USAGE_CHUNK)),
    "garbage_json": ("protocol_error", stream(ROLE, TOKENS, frame('{"choices": [{'), STOP, DONE)),
    "wrong_types": ("protocol_error", stream(ROLE, frame({"choices": "many"}), DONE)),
    "content_is_number": ("protocol_error", stream(ROLE, frame(delta(content=7)), DONE)),
    "sse_as_text_plain": ("ok", stream(*GOOD, kind="text/plain")),
    "json_for_stream": ("protocol_error", plain(whole())),
    "crlf": ("ok", stream(*(p.replace(b"\n", b"\r\n") for p in GOOD))),
    "cr_only": ("ok", stream(*(p.replace(b"\n", b"\r") for p in GOOD))),
    "comments": ("ok", stream(b": keep-alive\n\n", ROLE, b":\n\n", TOKENS, b": x\n\n", *TAIL)),
    "multi_line_data": ("ok", stream(ROLE, TWO_DATA_LINES, *TAIL)),
    "line_separators": ("ok", stream(ROLE, frame(delta(content=SEPARATORS)), *TAIL)),
    "utf8_split": ("ok", in_packets(stream(ROLE, frame(delta(content="日本語🙂é")), *TAIL), 300)),
    "four_events_a_packet": ("ok", stream(ROLE + TOKENS, STOP + USAGE_CHUNK + DONE)),
    "forty_packets": ("ok", in_packets(stream(*GOOD), 40)),
    "four_tokens_an_event": ("ok", stream(ROLE, frame(delta(content="one two three four")), *TAIL)),
    "reasoning": ("ok", stream(ROLE, frame(delta(reasoning="hm")), frame(delta(content="yes")), *TAIL)),
    "reasoning_content": ("ok", stream(ROLE, frame(delta(reasoning_content="hm")), frame(delta(content="yes")), *TAIL)),
    "reasoning_only": ("ok", stream(ROLE, frame(delta(reasoning="hm")), frame(delta(finish="length")), *TAIL[1:])),
    "tool_calls": ("ok", stream(ROLE, frame(TOOL_CALL), *CALLED)),
    "text_completion": ("ok", stream(TEXT_STREAM, *TAIL[1:])),
    "lmdeploy_internal": ("finish_error", stream(frame(LMDEPLOY_ERROR), DONE)),
    "lmdeploy_cut": ("truncated", stream(ROLE, TOKENS, frame(delta(finish=None)), DONE)),
    "queue_in_stream": ("shed", stream(frame(error(BUSY, 503, "Service Unavailable")), DONE)),
    "code_429_in_stream": ("shed", stream(frame(error("slow down", 429, "RateLimit")), DONE)),
    "too_long_in_stream": ("rejected", stream(frame(error(TOO_LONG, 400, "BadRequestError")), DONE)),
    "too_long_after_tokens": ("stream_error", stream(ROLE, TOKENS, frame(error(TOO_LONG, 400, "BadRequestError")), DONE)),
    "two_done": ("wrong_output", stream(*GOOD, DONE)),
    "total_is_not_the_sum": ("wrong_output", stream(ROLE, TOKENS, STOP, usage_chunk(total_tokens=21), DONE)),
    "fewer_tokens_than_none": ("wrong_output", stream(
        ROLE, TOKENS, STOP, usage_chunk(prompt_tokens=-3, total_tokens=0), DONE,
    )),
    "more_tokens_than_any_context": ("wrong_output", stream(
        ROLE, TOKENS, STOP, usage_chunk(prompt_tokens=10**15, total_tokens=10**15 + 3), DONE,
    )),
    "more_reasoning_than_completion": ("wrong_output", stream(
        ROLE, TOKENS, STOP,
        usage_chunk(completion_tokens_details={"reasoning_tokens": 197}), DONE,
    )),
    "choice_that_was_not_requested": ("wrong_output", stream(
        ROLE, frame({"choices": [{"index": 5, "delta": {"content": "x"}, "finish_reason": "stop"}]}), *TAIL
    )),
    "numbered_chunks": ("ok", stream(*numbered(4, 5, 6), *TAIL)),
    "numbered_chunk_missing": ("wrong_output", stream(*numbered(4, 6), *TAIL)),
    "numbered_chunk_repeated": ("wrong_output", stream(*numbered(4, 5, 5), *TAIL)),
    "chunk_with_another_id": ("ok", stream(ROLE, TOKENS, OF_ANOTHER, *TAIL)),
    "schema_obeyed": ("ok", stream(ROLE, frame(delta(content='{"a":')), frame(delta(content="1}")), *TAIL)),
    "schema_violated": ("wrong_output", stream(ROLE, frame(delta(content='{"a":')), frame(delta(content='"1"}')), *TAIL)),
    "schema_answer_is_no_json": ("wrong_output", stream(ROLE, frame(delta(content='{"a":{"a":1}')), *TAIL)),
    "schema_answer_cut_by_length": ("ok", stream(
        ROLE, frame(delta(content='{"a":')), frame(delta(finish="length")), USAGE_CHUNK, DONE
    )),
    "tools_obeyed": ("ok", stream(ROLE, *tool_call("look_up", '{"a":', "1}"), *CALLED)),
    "tools_arguments_violated": ("wrong_output", stream(ROLE, *tool_call("look_up", "{", "}"), *CALLED)),
    "tools_unknown": ("wrong_output", stream(ROLE, *tool_call("delete", "{", "}"), *CALLED)),
    "tools_not_called": ("wrong_output", stream(*GOOD)),
    "tools_auto_arguments_broken": ("wrong_output", stream(ROLE, *tool_call("look_up", '{"a":', "1"), *CALLED)),
    "tools_auto_unknown": ("wrong_output", stream(ROLE, *tool_call("delete", "{", "}"), *CALLED)),
    "tools_auto_not_called": ("ok", stream(*GOOD)),
    "tools_none_called": ("wrong_output", stream(ROLE, *tool_call("look_up", '{"a":', "1}"), *CALLED)),
    "tools_begin_at_call_1": ("wrong_output", stream(ROLE, *tool_call("look_up", '{"a":', "1}", index=1), *CALLED)),
    "replacement_character": ("ok", stream(ROLE, frame(delta(content="\ufffd\ufffd")), *TAIL)),
    "exclamation_marks": ("ok", stream(ROLE, *[frame(delta(content="!!"))] * 20, *TAIL)),
    "one_token_repeated": ("ok", stream(ROLE, *[frame(delta(content=" l"))] * 40, *TAIL)),
    "fewer_logprobs_than_tokens": ("ok", stream(
        ROLE, frame({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{}]}}]}), *TAIL
    )),
    "foreign_nonce": ("wrong_output", stream(ROLE, frame(delta(content="the word is zebra-17")), *TAIL)),
    "gzip": ("ok", plain(gzip.compress(b"".join(GOOD)), kind="text/event-stream", extra=GZIP)),
    "until_close": ("ok", then(UNTIL_CLOSE + b"".join(GOOD), close)),
    "until_close_cut_short": ("truncated", then(UNTIL_CLOSE + ROLE + TOKENS, close)),
    "hundred_continue": ("ok", b"HTTP/1.1 100 Continue\r\n\r\n" + stream(*GOOD)),
    "event_of_4_mb": ("ok", stream(ROLE, frame(delta(content="x" * 4_000_000)), *TAIL)),
    "event_without_end": ("protocol_error", endless_line),
    "big_headers": ("ok", BIG_HEAD.encode() + b"".join(chunk(p) for p in GOOD) + b"0\r\n\r\n"),
    "one_event_in_forty_packets": ("ok", in_packets(stream(ROLE, frame(delta(content="a b c " * 40)), *TAIL), 40)),
    "byte_order_mark": ("ok", stream(b"\xef\xbb\xbf" + ROLE, TOKENS, *TAIL)),
    "usage_in_every_chunk": ("ok", stream(ROLE, *(frame({**delta(content=t), "usage": USAGE}) for t in "abc"), STOP, DONE)),
    "two_choices": ("ok", stream(ROLE, choice(1, None, content="b"), TOKENS, STOP, choice(1, "stop"), USAGE_CHUNK, DONE)),
    "one_of_two_choices_unfinished": ("truncated", stream(ROLE, choice(1, None, content="b"), TOKENS, *TAIL)),
    "logprobs": ("ok", stream(ROLE, LOGPROBS, *TAIL)),
    "last_blank_line_missing": ("ok", stream(ROLE, TOKENS, STOP, USAGE_CHUNK, DONE.rstrip())),
    "null_choices_first": ("protocol_error", stream(frame({"choices": None}), ROLE, TOKENS, *TAIL)),
    "error_as_text": ("stream_error", stream(ROLE, TOKENS, frame({"error": "it broke"}), DONE)),
    "error_code_in_stream": ("stream_error", stream(frame({"error_code": 10402, "error_msg": "no quota"}), DONE)),
    "broken_gzip": ("protocol_error", plain(gzip.compress(b"".join(GOOD))[:-30], kind="text/event-stream", extra=GZIP)),
    "bytes_behind_the_end": ("ok", stream(*GOOD) + b"and more"),
    "chunk_sizes_with_extensions": ("ok", stream(end=b"") + b"".join(
        b"%X;name=value\r\n%s\r\n" % (len(p), p) for p in GOOD) + b"0\r\nX-Trailer: 1\r\n\r\n"),
    "status_204": ("truncated", HEAD.format(204, "text/plain").encode() + b"\r\n"),
    "tokens_then_silence": ("stalled", then(stream(ROLE, TOKENS, end=b""), silent)),
    "half_a_chunk": ("stalled", then(stream(ROLE, TOKENS, end=b"") + b"80\r\ndata: {", silent)),
}  # fmt: skip
OF_WHOLE_ANSWERS: Modes = {
    "whole_schema_violated": ("wrong_output", plain(whole('{"a": "1"}'))),
    "whole": ("ok", plain(whole())),
    "whole_finish_error": ("finish_error", plain(whole("internal error happened", "error"))),
    "whole_finish_abort": ("finish_abort", plain(whole(None, "abort"))),
    "whole_no_finish": ("truncated", plain(whole(finish=None))),
    "whole_empty": ("empty", plain(whole("", "length", {"prompt_tokens": 5000, "completion_tokens": 0}))),
    "whole_reasoning_only": ("ok", plain(whole(None, "length", reasoning="hm"))),
    "whole_tool_calls": ("ok", plain(whole(None, "tool_calls", tool_calls=[{"id": "1", "function": {"name": "f"}}]))),
    "whole_tool_calls_without_a_name": ("wrong_output", plain(whole(None, "tool_calls", tool_calls=[{"id": "1"}]))),
    "whole_one_choice_of_two": ("wrong_output", plain(whole())),
    "whole_model_of_another": ("ok", plain({**whole(), "model": "tiny-b"})),
    "whole_no_logprobs": ("wrong_output", plain(whole())),
    "whole_finish_content_filter": ("finish_abort", plain(whole("Hello", "content_filter"))),
    "whole_content_in_parts": ("ok", plain(whole([{"type": "text", "text": "Hello"}]))),
    "whole_wrong_types": ("protocol_error", plain({"choices": {"a": 1}})),
    "whole_not_json": ("protocol_error", plain(b"certainly!")),
    "whole_nothing": ("protocol_error", plain(b"")),
    "whole_gzip": ("ok", plain(gzip.compress(WHOLE_BODY), extra=GZIP)),
    "whole_cut": ("reset", then(plain(whole())[:-10], close)),
    "whole_until_close": ("ok", then(b"HTTP/1.0 200 OK\r\n\r\n" + WHOLE_BODY, close)),
    "whole_foreign_nonce": ("wrong_output", plain(whole("the word is zebra-17"))),
    "whole_sse": ("protocol_error", stream(*GOOD)),
    "whole_in_chunks": ("ok", stream(WHOLE_BODY[:30], WHOLE_BODY[30:], kind="application/json")),
    "whole_shorter_than_promised": ("reset", then(JSON_HEAD + b"Content-Length: 900\r\n\r\n{}", close)),
    "whole_hundred_continue": ("ok", b"HTTP/1.1 100 Continue\r\n\r\n" + plain(whole())),
    "whole_big_headers": ("ok", plain(whole(), extra=f"x-trace: {'t' * 100_000}\r\n")),
    "whole_reset_mid_body": ("reset", then(plain(whole())[:-10], reset)),
    "whole_usage_zero": ("ok", plain(whole(usage={"prompt_tokens": 0, "completion_tokens": 0}))),
    "whole_usage_missing": ("ok", plain(whole(usage=None))),
    "whole_no_token_stop": ("empty", plain(whole("", usage={"prompt_tokens": 9, "completion_tokens": 0}))),
    "whole_utf8_split": ("ok", in_packets(plain(json.dumps(whole("日本語🙂é"), ensure_ascii=False).encode()), 300)),
    "whole_status_204": ("protocol_error", HEAD.format(204, "text/plain").encode() + b"\r\n"),
    "whole_half_then_silence": ("stalled", then(plain(whole())[:-10], silent)),
}  # fmt: skip
OF_BOTH: Modes = {
    "reset_after_headers": ("reset", then(stream(end=b""), reset)),
    "not_sse": ("protocol_error", stream(b"<html><body>welcome</body></html>")),
    "html": ("protocol_error", plain(b"<html><body>welcome</body></html>", kind="text/html")),
    "gzip_bomb": ("protocol_error", gzip_bomb),
    "error_object_200": ("http_error", plain(error("upstream failed", 502))),
    "error_code_200": ("http_error", plain({"error_code": 10402, "error_msg": "no quota"})),
    "status_500_json": ("http_error", plain(error(ENGINE_DEAD), 500)),
    "status_500_text": ("http_error", plain(b"Internal Server Error", 500, "text/plain")),
    "status_500_empty": ("http_error", plain(b"", 500, "text/plain")),
    "status_503": ("http_error", plain(error("The inference engine is unavailable.", 503), 503)),
    "status_503_retry_after": ("shed", plain(b"", 503, extra="Retry-After: 5\r\n")),
    "status_503_busy": ("shed", plain(error(BUSY, 503, "Service Unavailable"), 503)),
    "status_429": ("shed", plain(error("slow down", 429), 429)),
    "status_400_too_long": ("rejected", plain(error(TOO_LONG, 400, "BadRequestError"), 400)),
    "status_400_flat": ("rejected", plain({"object": "error", "message": TOO_LONG, "type": "bad", "code": 400}, 400)),
    "status_400_unknown": ("http_error", plain(error("list index out of range", 400, "BadRequestError"), 400)),
    "status_404": ("http_error", plain({"detail": "Not Found"}, 404)),
    "status_401": ("http_error", plain({"error": "Unauthorized"}, 401)),
    "status_302": ("http_error", plain(b"", 302, extra="Location: /login\r\n")),
    "not_http": ("protocol_error", b"SSH-2.0-OpenSSH_9.2\r\n"),
    "bad_chunk_size": ("protocol_error", stream(ROLE, end=b"zz\r\n")),
    "reset_before_headers": ("reset", reset),
    "closed_before_headers": ("reset", close),
    "content_length_is_no_number": ("protocol_error", JSON_HEAD + b"Content-Length: many\r\n\r\n{}"),
    "status_408": ("http_error", plain(b"", 408)),
    "status_413_gateway": ("http_error", plain(b"<html><h1>413 Request Entity Too Large</h1></html>", 413, "text/html")),
    "status_502_html": ("http_error", plain(b"<html><h1>502 Bad Gateway</h1></html>", 502, "text/html")),
    "status_504_gateway": ("http_error", plain(b"upstream request timeout", 504, "text/plain")),
    "status_500_cut": ("http_error", then(plain(error(ENGINE_DEAD), 500)[:-20], close)),
    "never": ("stalled", silent),
    "headers_then_silence": ("stalled", then(stream(end=b""), silent)),
}  # fmt: skip


class Misbehaving(ConnectionServer):
    """A running server with every mode; `modes` maps a path's first part to its behaviour.

    A mode of bytes is sent as it is, and the connection is kept.
    """

    def __init__(self) -> None:
        self.modes: dict[str, bytes | Handler] = {
            **{mode: answer for mode, (_, answer) in {**OF_STREAMS, **OF_WHOLE_ANSWERS, **OF_BOTH}.items()},
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
