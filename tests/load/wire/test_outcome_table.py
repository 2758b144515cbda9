import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.histogram import bucket_middle
from loadchaos.core.model import OUTCOMES
from loadchaos.core.outcome_rules import OutcomeRules
from loadchaos.load.wire.answer_reader import AnswerRules
from loadchaos.load.wire.request import WireTimeouts
from tests.load.wire import misbehaving
from tests.load.wire.conformance import SHORT, TABLE, ask, once, render, rules
from tests.load.wire.misbehaving import DONE, GOOD, ROLE, STOP, TOOL_CALL, Misbehaving, delta, frame, usage
from tests.raw_sockets import chunk, reset

SILENT = {"never", "reset_before_headers", "closed_before_headers"}
"""No byte of an answer came."""
OF_THE_BODY = dict.fromkeys(("until_close", "until_close_cut_short", "whole_until_close"), "chatcmpl-7")
IDS: dict[str, str | None] = {**OF_THE_BODY, "not_http": None, **dict.fromkeys(SILENT)}
"""Where the id is not in the header: in the answer itself, or nowhere."""
ROWS = [(mode, stream, expected) for mode, kinds, expected in TABLE for stream in kinds]


@pytest.mark.parametrize(
    ("mode", "stream", "expected"), ROWS, ids=[f"{m}-{'stream' if s else 'whole'}" for m, s, _ in ROWS]
)
def test_outcome_of_each_misbehaviour_is_that_of_the_table(
    server: Misbehaving, mode: str, stream: bool, expected: str
) -> None:
    reply = once(server, mode, stream=stream, expected=expected)
    assert reply["outcome"] == expected, reply
    assert reply["bytes_out"] > 0
    assert (reply["error"] is None) == (expected == "ok")
    assert reply["request_id"] == IDS.get(mode, "req-9")
    assert reply["sent_ns"] is not None
    if mode in SILENT:
        assert (reply["first_byte_ns"], reply["last_byte_ns"], reply["status"]) == (None, None, None)
    else:
        assert reply["first_byte_ns"] is not None
        assert reply["last_byte_ns"] is not None
        assert reply["sent_ns"] <= reply["first_byte_ns"] <= reply["last_byte_ns"] <= reply["at_ns"]
    if reply["first_token_ns"] is not None:
        assert reply["first_byte_ns"] is not None
        assert reply["first_byte_ns"] <= reply["first_token_ns"] <= (reply["last_byte_ns"] or 0)


def test_outcome_reply_keeps_status_times_request_id_and_usage(server: Misbehaving) -> None:
    reply = ask(server.url_of("good"))
    assert (reply["status"], reply["request_id"], reply["finish_reason"]) == (200, "req-9", "stop")
    assert (reply["prompt_tokens"], reply["completion_tokens"], reply["cached_tokens"]) == (17, 3, 16)
    assert reply["chunks"] == 3
    stamps = [reply["sent_ns"], reply["first_byte_ns"], reply["first_token_ns"], reply["last_byte_ns"], reply["at_ns"]]
    known = [s for s in stamps if s is not None]
    assert len(known) == 5
    assert known == sorted(known)


@pytest.mark.parametrize("mode", ["reasoning", "thinking", "reasoning_details", "content_in_parts"])
def test_outcome_reply_reasoning_is_a_first_token_but_no_first_answer(server: Misbehaving, mode: str) -> None:
    _, whole = misbehaving.OF_STREAMS[mode]
    assert isinstance(whole, bytes)
    at = whole.index(chunk(frame(delta(content="yes"))))

    def answer_late(peer: socket.socket) -> None:
        peer.sendall(whole[:at])
        time.sleep(0.05)
        peer.sendall(whole[at:])

    server.modes["late"] = answer_late
    row = ask(server.url_of("late"))
    assert (row["chunks"], row["text"]) == (2, "hmyes")
    assert row["first_token_ns"] is not None
    assert row["first_answer_ns"] is not None
    assert row["first_token_ns"] < row["first_answer_ns"]


def test_a_call_without_a_name_is_missing_even_in_an_answer_of_all_its_tokens(server: Misbehaving) -> None:
    calls = [frame(delta(tool_calls=[{"index": 0}]))] * 3
    end = [frame(delta(finish="tool_calls")), usage(9, 32), DONE]
    server.modes["nameless"] = misbehaving.stream(ROLE, *calls, *end)
    server.modes["cut_before_its_call"] = misbehaving.stream(ROLE, frame(delta(content="x")), *end)
    assert ask(server.url_of("nameless"), judged_by=rules(most_tokens=32))["outcome"] == "wrong_output"
    assert ask(server.url_of("cut_before_its_call"), judged_by=rules(most_tokens=32))["outcome"] == "ok"


def test_outcome_reply_of_reasoning_alone_has_no_first_answer(server: Misbehaving) -> None:
    reply = ask(server.url_of("reasoning_only"))
    assert reply["detail"]["reasoning_only"] is True
    assert reply["first_answer_ns"] is None


def test_outcome_first_decisive_event_wins_and_others_are_evidence(server: Misbehaving) -> None:
    whole = misbehaving.stream(ROLE, misbehaving.TOKENS, frame(misbehaving.error("boom")), DONE)
    server.modes["two"] = whole[:-5]  # without the last chunk, then silence
    reply = ask(server.url_of("two"), limits=SHORT)
    assert reply["outcome"] == "stream_error"
    assert reply["error"] == "boom"
    assert any(e.startswith("stalled") for e in reply["evidence"])


def test_outcome_error_keeps_body_and_code(server: Misbehaving) -> None:
    reply = ask(server.url_of("status_500_json"))
    assert reply["error"] is not None
    assert "EngineCore encountered" in reply["error"]
    assert reply["error_code"] == 500
    assert ask(server.url_of("status_500_text"))["error"] == "Internal Server Error"


def test_outcome_of_an_unknown_server_is_rejected_by_status(server: Misbehaving) -> None:
    unknown = AnswerRules(OutcomeRules(plain_validation=frozenset({400, 413, 422})))
    assert ask(server.url_of("status_400_unknown"), judged_by=unknown)["outcome"] == "rejected"
    assert ask(server.url_of("status_404"), judged_by=unknown)["outcome"] == "http_error"
    assert ask(server.url_of("too_long_in_stream"), judged_by=unknown)["outcome"] == "rejected"


def test_outcome_rules_allow_no_done(server: Misbehaving) -> None:
    assert ask(server.url_of("good_no_done"), judged_by=rules(OutcomeRules(sends_done=False)))["outcome"] == "ok"


def test_outcome_without_a_listener_is_connect_error(server: Misbehaving, unused_port: int) -> None:
    reply = ask(f"http://127.0.0.1:{unused_port}")
    assert (reply["outcome"], reply["sent_ns"], reply["status"]) == ("connect_error", None, None)


def test_outcome_reply_keeps_unicode_line_separators(server: Misbehaving) -> None:
    assert ask(server.url_of("line_separators"))["text"] == "a\u2028b\u2029c\u0085d"
    assert (
        ask(server.url_of("utf8_split"))["text"]
        == ask(server.url_of("whole_utf8_split"), stream=False)["text"]
        == "日本語🙂é"
    )


@pytest.mark.parametrize(
    ("mode", "counted"), [("usage_zero", (0, 0)), ("usage_missing", (None, None)), ("no_token_stop", (9, 0))]
)
def test_outcome_reply_usage_is_the_servers_streamed_or_not(server: Misbehaving, mode: str, counted: Any) -> None:
    for url, stream in ((mode, True), (f"whole_{mode}", False)):
        reply = ask(server.url_of(url), stream=stream)
        assert (reply["prompt_tokens"], reply["completion_tokens"]) == counted


def test_outcome_table_contains_every_outcome() -> None:
    ours = {"aborted", "missed", "unfinished", "timeout", "connect_error"}  # made by us; tested beside this table
    assert {expected for _, _, expected in TABLE} == set(OUTCOMES) - ours


def test_outcome_page_of_the_docs_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "conformance.md"
    assert page.read_text(encoding="utf-8") == render(), "run `make conformance`"


def test_outcome_details_of_answers_that_hold_less_than_their_tokens(server: Misbehaving) -> None:
    def detail(mode: str) -> dict[str, Any]:
        found = ask(server.url_of(mode))["detail"]
        return {k: v for k, v in found.items() if k not in ("connect_ns", "send_ns")}  # both are noted when slow

    assert detail("content_empty_in_every_chunk") == {"no_text": True}
    assert detail("one_word_for_16_tokens") == {"thin_text": 4}
    assert detail("more_chunks_than_tokens") == {"extra_chunks": 3}
    hidden = {"prompt_tokens": 9, "completion_tokens": 16, "completion_tokens_details": {"reasoning_tokens": 12}}
    word = frame(delta(content="word"))
    server.modes["hidden_reasoning"] = misbehaving.stream(
        ROLE, word, STOP, frame({"choices": [], "usage": hidden}), DONE
    )
    server.modes["long_word"] = misbehaving.stream(ROLE, frame(delta(content="w" * 16)), STOP, usage(9, 16), DONE)
    server.modes["call"] = misbehaving.stream(
        ROLE, frame(TOOL_CALL), frame(delta(finish="tool_calls")), usage(9, 16), DONE
    )
    for healthy in ("good", "four_tokens_an_event", "hidden_reasoning", "long_word", "call", "reasoning"):
        assert detail(healthy) == {}, healthy


@pytest.mark.parametrize(("mode", "named"), [("model_of_another", "tiny-b"), ("model_with_its_release", None)])
def test_outcome_detail_names_the_model_of_an_answer_if_it_is_another(
    server: Misbehaving, mode: str, named: str | None
) -> None:
    row = ask(server.url_of(mode), judged_by=rules(model="tiny"))
    assert (row["outcome"], row["detail"].get("other_model")) == ("ok", named)


def test_outcome_of_text_after_the_end_does_not_quote_the_model(server: Misbehaving) -> None:
    server.modes["quoting"] = misbehaving.stream(*GOOD, frame(delta(content="EngineDeadError")))
    reply = ask(server.url_of("quoting"))
    assert (reply["outcome"], reply["error"], reply["text"], reply["chunks"]) == (
        "wrong_output",
        "text follows the [DONE] of its answer",
        "Hello!",
        3,
    )
    another = ask(server.url_of("tokens_of_another_after_done"))
    assert (another["text"], another["completion_tokens"]) == ("Hello!", 3)


def _gaps_s(reply: Any) -> list[float]:
    return sorted(bucket_middle(i) / 1e9 for i, n in reply["itl_hist"].items() for _ in range(n))


def _frozen(then: Callable[[Any], None]) -> Callable[[Any], None]:
    """Send tokens 10 ms apart, freeze for 300 ms, and go on with `then`."""

    def act(peer: socket.socket) -> None:
        peer.sendall(misbehaving.stream(end=b""))
        for word in ("a", "b", "c"):
            peer.sendall(chunk(frame(delta(content=word))))
            time.sleep(0.01)
        time.sleep(0.3)
        then(peer)

    return act


def _finish(peer: socket.socket) -> None:
    for part in (frame(delta(content="d")), STOP, usage(9, 4), DONE):
        peer.sendall(chunk(part))
    peer.sendall(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("then", "outcome"),
    [
        (_finish, "ok"),
        (reset, "reset"),
        (misbehaving.close, "reset"),
        (lambda peer: peer.sendall(chunk(frame(misbehaving.error("boom")))), "stream_error"),
        (lambda peer: peer.sendall(b"0\r\n\r\n"), "truncated"),
        (lambda peer: time.sleep(1), "stalled"),
    ],
)
def test_outcome_gap_of_a_freeze_is_among_the_gaps(
    server: Misbehaving, then: Callable[[Any], None], outcome: str
) -> None:
    server.modes["frozen"] = _frozen(then)
    limits = WireTimeouts(between_bytes_ns=290_000_000 if outcome == "stalled" else 5_000_000_000)
    reply = ask(server.url_of("frozen"), limits=limits)
    assert reply["outcome"] == outcome
    gaps = _gaps_s(reply)
    assert len(gaps) in (2, 3)  # chunks that arrive together on a busy machine are one arrival
    assert gaps[-1] > 0.28
    assert reply["largest_gap_ns"] > 280_000_000


def test_outcome_open_gap_counts_only_where_it_is_the_longest(server: Misbehaving) -> None:
    def act(peer: socket.socket) -> None:
        _frozen(lambda peer: peer.sendall(chunk(frame(delta(content="d")))))(peer)
        reset(peer)

    server.modes["frozen_before"] = act
    reply = ask(server.url_of("frozen_before"))
    assert reply["outcome"] == "reset"
    assert len(_gaps_s(reply)) == 3
