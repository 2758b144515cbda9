"""Limits of an exchange and its silences, in virtual time."""

from typing import Any

import pytest

from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.request import WireTimeouts
from loadchaos.load.wire.sockets import Origin, Slot
from tests.load.wire.misbehaving import delta, frame
from tests.load.wire.requests import exchange
from tests.rows import S

LIMITS = WireTimeouts(first_byte_ns=5 * S, between_bytes_ns=2 * S, total_ns=20 * S)


def sent_at(at_ns: int, **options: Any) -> Exchange:
    """An exchange without a connection that was begun and sent at a time."""
    call = exchange(Slot(Origin("http://127.0.0.1:9")), limits=LIMITS, **options)
    call.begun_ns = call.sent_ns = call._sent_all_ns = at_ns
    return call


def ended_at(call: Exchange, bytes_s: list[float], until_s: float = 40) -> tuple[float, str, str] | None:
    """Sweep ten times a second from 1 s on; returns when it ended, its outcome and why."""
    arrivals = [round(s * 10) for s in bytes_s]
    for tenth in range(10, round(until_s * 10)):
        now_ns = tenth * S // 10
        if tenth in arrivals:
            call.first_byte_ns = call.first_body_ns = call.first_body_ns or now_ns
            call.last_byte_ns = now_ns
        call.sweep(now_ns)
        if call._ended_from_outside:
            reply = call.end_row()
            return tenth / 10, reply["outcome"], str(reply["error"])
    return None


@pytest.mark.parametrize(
    ("bytes_s", "expected"),
    [
        ([], (6.1, "stalled", "no byte of the answer arrived for 5 s")),
        ([2], (4.1, "stalled", "no further byte arrived for 2 s")),
        ([5.9, 7.8], (9.9, "stalled", "no further byte arrived for 2 s")),
        ([s / 2 for s in range(3, 80)], (21.1, "timeout", "the request did not finish within 20 s")),
    ],
)
def test_exchange_ends_at_its_limits(bytes_s: list[float], expected: tuple[float, str, str]) -> None:
    assert ended_at(sent_at(1 * S), bytes_s) == expected


def test_exchange_is_hung_up_when_planned() -> None:
    call = sent_at(1 * S)
    call.sweep(2 * S)
    call._hang_up_at_ns, call._next_check_ns = 3 * S, 0
    assert ended_at(call, [])[:2] == (3.0, "aborted")  # type: ignore[index]


def test_exchange_that_pauses_does_not_stall() -> None:
    call = sent_at(1 * S)
    call._pausing = True
    assert ended_at(call, [], until_s=20) is None


def chunk(text: str, finish: str | None = None) -> bytes:
    return frame(delta(finish, content=text))


def test_token_silence_counts_from_the_newest_token() -> None:
    call = sent_at(1 * S)
    assert call.token_silence_ns(4 * S) == 3 * S
    call.answer = AnswerReader(AnswerRules(), asked_stream=True, declared_stream=True)
    call.last_byte_ns = 5 * S  # a head or a comment is no token
    assert call.token_silence_ns(6 * S) == 5 * S
    call.answer.feed(6 * S, chunk("a"))
    assert call.token_silence_ns(8 * S) == 2 * S
    call.answer.feed(9 * S, chunk("", "stop"))
    assert call.token_silence_ns(30 * S) == 0  # it is complete: only [DONE] is missing


@pytest.mark.parametrize("options", [{"stream": False}, {"behaviour": "slow_reader"}])
def test_token_silence_of_other_requests_proves_nothing(options: dict[str, Any]) -> None:
    assert sent_at(1 * S, **options).token_silence_ns(60 * S) == 0


def test_token_silence_of_a_request_that_is_not_sent_is_none() -> None:
    call = sent_at(1 * S)
    call.sent_ns, call._sent_all_ns = None, 0
    assert call.token_silence_ns(60 * S) == 0


def test_exchange_ends_at_bytes_that_are_not_http() -> None:
    call = sent_at(1 * S)
    assert call._feed(2 * S, b"SSH-2.0-OpenSSH_9\r\n") is False
    assert call.end_row()["outcome"] == "protocol_error"


@pytest.mark.parametrize(
    "alive",
    [
        b": ping\n\n",
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}]}\n\n',
        b'event: ping\ndata: {"type": "ping"}\n\n',
    ],
    ids=["comment", "role", "empty delta", "empty tool call", "ping"],
)
@pytest.mark.parametrize("tokens", [0, 2])
def test_bytes_without_a_token_are_no_progress(alive: bytes, tokens: int) -> None:
    call = sent_at(1 * S)
    call.answer = AnswerReader(AnswerRules(), asked_stream=True, declared_stream=True)
    for i in range(tokens):
        assert call.answer.feed((2 + i) * S, chunk(f"a{i}"))
    for second in range(4, 21):
        call.first_byte_ns = call.first_body_ns = call.first_body_ns or second * S
        call.last_byte_ns = second * S
        assert call.answer.feed(second * S, alive) == 0
        call.sweep(second * S)
    silent_s = 21.5 - (3 if tokens else 1)
    call.sweep(43 * S // 2)
    assert call.token_silence_ns(43 * S // 2) == silent_s * S
    row = call.end_row()
    assert row["outcome"] == "timeout"
    assert row["last_token_ns"] == (3 * S if tokens else None)
    assert row["without_token"] == 17
    assert str(row["error"]).startswith(
        f"the request did not finish within 20 s; no token for {silent_s:.3g} s: the server kept the stream alive with 17"
    )


def test_timeout_of_an_answer_with_tokens_names_no_other_bytes() -> None:
    call = sent_at(1 * S)
    call.answer = AnswerReader(AnswerRules(), asked_stream=True, declared_stream=True)
    for second in range(2, 22):
        call.first_byte_ns = call.first_body_ns = call.first_body_ns or second * S
        call.last_byte_ns = second * S
        call.answer.feed(second * S, chunk(f"a{second}"))
        call.sweep(second * S)
    call.sweep(43 * S // 2)
    row = call.end_row()
    assert (row["outcome"], row["error"]) == ("timeout", "the request did not finish within 20 s")
    assert "without_token" not in row
