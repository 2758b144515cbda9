"""One misbehaving server, one row a behaviour: whatever a server does, the request ends in the outcome it deserves."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.behaviours import BEHAVIOURS
from loadchaos.model import OUTCOMES, Reply
from loadchaos.wire.call import Call, Limits, Progress, Sending, length_of, request_head
from loadchaos.wire.outcome import Rules
from loadchaos.wire.sockets import Slot, Target

VALIDATION = (re.compile(r"maximum context length"), re.compile(r"must be at least"))
SHED = (re.compile(r"engine is currently busy"),)
DEAD = (re.compile(r"EngineCore encountered an issue"),)


def rules(**changes: Any) -> Rules:
    return Rules(validation=VALIDATION, shed=SHED, engine_dead=DEAD, **changes)


def sending(target: Target, *, stream: bool, rules: Rules, limits: Limits, options: Any = None) -> Sending:
    head = request_head(target.path("/v1/chat/completions"), target.host_header, {"X-Request-Id": "t-1"}) + length_of(
        b"{}"
    )
    return Sending(head, b"{}", stream, rules, limits, options)


def ask(
    url: str, *, stream: bool = True, judged_by: Rules | None = None, limits: Limits | None = None, slot: Slot | None = None,
    behaviour: str = "plain", options: Any = None,
) -> Reply:  # fmt: skip
    slot = slot or Slot(Target(url))
    what = sending(slot.target, stream=stream, rules=judged_by or rules(), limits=limits or Limits(), options=options)
    call = Call(what, slot, Progress())
    stop = threading.Event()

    def sweep() -> None:
        while not stop.wait(0.01):
            call.sweep(time.monotonic_ns())

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        return BEHAVIOURS[behaviour].act(call)
    finally:
        stop.set()
        sweeper.join()
        slot.close()


BOTH = [True, False]
TABLE: list[tuple[str, list[bool], str]] = [
    ("good", [True], "ok"),
    ("good_no_done", [True], "truncated"),
    ("error_first", [True], "stream_error"),
    ("error_first_code_400_dead", [True], "stream_error"),
    ("error_after_tokens", [True], "stream_error"),
    ("event_error", [True], "stream_error"),
    ("event_error_no_json", [True], "stream_error"),
    ("error_after_finish", [True], "stream_error"),
    ("error_after_done", [True], "ok"),
    ("finish_error", [True], "finish_error"),
    ("finish_abort", [True], "finish_abort"),
    ("no_finish_no_done", [True], "truncated"),
    ("no_finish_done", [True], "truncated"),
    ("done_only", [True], "truncated"),
    ("no_body", [True], "truncated"),
    ("comments_only", [True], "truncated"),
    ("reset_after_headers", BOTH, "reset"),
    ("reset_after_tokens", [True], "reset"),
    ("reset_mid_frame", [True], "reset"),
    ("closed_mid_frame", [True], "reset"),
    ("closed_without_last_chunk", [True], "reset"),
    ("reset_after_done", [True], "ok"),
    ("no_token_stop", [True], "empty"),
    ("eos_at_once", [True], "ok"),
    ("usage_zero", [True], "ok"),
    ("usage_missing", [True], "ok"),
    ("usage_late", [True], "ok"),
    ("garbage_json", [True], "protocol_error"),
    ("wrong_types", [True], "protocol_error"),
    ("content_is_number", [True], "protocol_error"),
    ("not_sse", BOTH, "protocol_error"),
    ("html", BOTH, "protocol_error"),
    ("sse_as_text_plain", [True], "ok"),
    ("json_for_stream", [True], "protocol_error"),
    ("crlf", [True], "ok"),
    ("cr_only", [True], "ok"),
    ("comments", [True], "ok"),
    ("multi_line_data", [True], "ok"),
    ("line_separators", [True], "ok"),
    ("utf8_split", [True], "ok"),
    ("four_events_a_packet", [True], "ok"),
    ("forty_packets", [True], "ok"),
    ("four_tokens_an_event", [True], "ok"),
    ("reasoning", [True], "ok"),
    ("reasoning_content", [True], "ok"),
    ("reasoning_only", [True], "ok"),
    ("tool_calls", [True], "ok"),
    ("text_completion", [True], "ok"),
    ("lmdeploy_internal", [True], "finish_error"),
    ("lmdeploy_cut", [True], "truncated"),
    ("queue_in_stream", [True], "shed"),
    ("code_429_in_stream", [True], "shed"),
    ("too_long_in_stream", [True], "rejected"),
    ("too_long_after_tokens", [True], "stream_error"),
    ("foreign_nonce", [True], "wrong_output"),
    ("gzip", [True], "ok"),
    ("until_close", [True], "ok"),
    ("until_close_cut_short", [True], "truncated"),
    ("hundred_continue", [True], "ok"),
    ("big_headers", [True], "ok"),
    ("half_a_chunk", [True], "stalled"),
    ("whole", [False], "ok"),
    ("whole_finish_error", [False], "finish_error"),
    ("whole_finish_abort", [False], "finish_abort"),
    ("whole_no_finish", [False], "truncated"),
    ("whole_empty", [False], "empty"),
    ("whole_reasoning_only", [False], "ok"),
    ("whole_tool_calls", [False], "ok"),
    ("whole_wrong_types", [False], "protocol_error"),
    ("whole_not_json", [False], "protocol_error"),
    ("whole_nothing", [False], "protocol_error"),
    ("whole_gzip", [False], "ok"),
    ("whole_cut", [False], "reset"),
    ("whole_until_close", [False], "ok"),
    ("whole_foreign_nonce", [False], "wrong_output"),
    ("whole_sse", [False], "protocol_error"),
    ("error_object_200", BOTH, "http_error"),
    ("error_code_200", BOTH, "http_error"),
    ("status_500_json", BOTH, "http_error"),
    ("status_500_text", BOTH, "http_error"),
    ("status_500_empty", BOTH, "http_error"),
    ("status_503", BOTH, "http_error"),
    ("status_503_retry_after", BOTH, "shed"),
    ("status_503_busy", BOTH, "shed"),
    ("status_429", BOTH, "shed"),
    ("status_400_too_long", BOTH, "rejected"),
    ("status_400_flat", BOTH, "rejected"),
    ("status_400_unknown", BOTH, "http_error"),
    ("status_404", BOTH, "http_error"),
    ("status_401", BOTH, "http_error"),
    ("status_302", BOTH, "http_error"),
    ("not_http", BOTH, "protocol_error"),
    ("bad_chunk_size", BOTH, "protocol_error"),
    ("reset_before_headers", BOTH, "reset"),
    ("closed_before_headers", BOTH, "reset"),
    ("never", BOTH, "stalled"),
]
ROWS = [(mode, stream, expected) for mode, kinds, expected in TABLE for stream in kinds]
SHORT = Limits(first_byte_ns=300_000_000, between_bytes_ns=200_000_000)


@pytest.mark.parametrize(
    ("mode", "stream", "expected"), ROWS, ids=[f"{m}-{'stream' if s else 'whole'}" for m, s, _ in ROWS]
)
def test_each_misbehaviour_ends_in_its_outcome(server: Any, mode: str, stream: bool, expected: str) -> None:
    judged_by = rules(foreign_nonce=lambda text: "zebra-17" if "zebra-17" in text else None)
    limits = SHORT if expected == "stalled" else Limits()
    reply = ask(server.url(mode), stream=stream, judged_by=judged_by, limits=limits)
    assert reply.outcome == expected, reply
    assert reply.bytes_out > 0
    assert (reply.error is None) == (expected == "ok")


def test_the_table_leaves_no_mode_of_the_server_out(server: Any) -> None:
    assert {mode for mode, _, _ in TABLE} == set(server.modes)


def test_status_times_request_id_and_usage_are_kept(server: Any) -> None:
    reply = ask(server.url("good"))
    assert (reply.status, reply.request_id, reply.finish_reason) == (200, "req-9", "stop")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens, reply.chunks) == (17, 3, 16, 3)
    stamps = [reply.sent_ns, reply.first_byte_ns, reply.first_token_ns, reply.last_byte_ns, reply.end_ns]
    known = [s for s in stamps if s is not None]
    assert len(known) == 5
    assert known == sorted(known)


def test_reasoning_is_a_first_token_and_no_first_answer(server: Any) -> None:
    server.modes["slow_answer"] = _in_two_parts()
    reply = ask(server.url("slow_answer"))
    assert reply.first_token_ns is not None
    assert reply.first_answer_ns is not None
    assert reply.first_token_ns < reply.first_answer_ns
    only = ask(server.url("reasoning_only"))
    assert only.detail["reasoning_only"] is True
    assert only.first_answer_ns is None


def _in_two_parts() -> Callable[[Any], None]:
    def act(peer: Any) -> None:
        first = b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}\n\n'
        then = b'data: {"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (first, then):
            peer.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            time.sleep(0.02)  # the gap that is to be measured
        peer.sendall(b"0\r\n\r\n")

    return act


def test_the_first_decisive_event_wins_and_later_ones_are_evidence(server: Any) -> None:
    server.modes["two"] = server.modes["error_after_tokens"][:-5]  # without the last chunk, then silence
    reply = ask(server.url("two"), limits=SHORT)
    assert reply.outcome == "stream_error"
    assert reply.error == "boom"
    assert any(e.startswith("stalled") for e in reply.evidence)


def test_the_body_of_an_error_is_kept_with_its_code(server: Any) -> None:
    reply = ask(server.url("status_500_json"))
    assert reply.error is not None
    assert "EngineCore encountered" in reply.error
    assert reply.error_code == 500
    assert ask(server.url("status_500_text")).error == "Internal Server Error"


def test_a_server_of_unknown_make_rejects_by_status(server: Any) -> None:
    unknown = Rules(plain_validation=frozenset({400, 413, 422}))
    assert ask(server.url("status_400_unknown"), judged_by=unknown).outcome == "rejected"
    assert ask(server.url("status_404"), judged_by=unknown).outcome == "http_error"
    assert ask(server.url("too_long_in_stream"), judged_by=unknown).outcome == "rejected"


def test_a_dialect_without_done_and_an_allowed_empty_answer(server: Any) -> None:
    assert ask(server.url("good_no_done"), judged_by=rules(sends_done=False)).outcome == "ok"
    reply = ask(server.url("no_token_stop"), judged_by=rules(allow_empty=True))
    assert (reply.outcome, reply.detail["no_text"]) == ("ok", True)


def test_nobody_listening_is_a_connect_error(server: Any, unused_port: int) -> None:
    reply = ask(f"http://127.0.0.1:{unused_port}")
    assert (reply.outcome, reply.sent_ns, reply.status) == ("connect_error", None, None)


def test_the_whole_request_limit_ends_an_answer_that_never_ends(server: Any) -> None:
    def drip(peer: Any) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while not server.release.wait(0.02):
            peer.sendall(b": ping\n\n")

    server.modes["drip"] = drip
    reply = ask(server.url("drip"), limits=Limits(total_ns=200_000_000))
    assert reply.outcome == "timeout"


def test_line_separators_of_unicode_stay_inside_the_text(server: Any) -> None:
    assert ask(server.url("line_separators")).text == "a\u2028b\u2029c\u0085d"
    assert ask(server.url("utf8_split")).text == "日本語🙂é"


def test_every_outcome_that_a_call_can_have_is_in_the_table() -> None:
    ours = {"aborted", "missed", "unfinished", "timeout", "connect_error"}  # made by us; tested beside this table
    assert {expected for _, _, expected in TABLE} == set(OUTCOMES) - ours
