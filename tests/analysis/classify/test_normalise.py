"""Texts that differ in their numbers, ids, hosts or units alone are one kind."""

import pytest

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.classify.normalise import normalise


@pytest.mark.parametrize(
    "texts",
    [
        ("took 3.2s", "took 4.7s", "took 402.3µs", "took 1m2.5s", "took 12ms", "took 3s"),
        ("1.5MiB left", "900KiB left", "12.25GB left"),
        ("at 0x7f2c1a2ea42f", "at 0x7f2c"),
        ("request_id=chatcmpl-Xa9 failed", "request_id=chatcmpl-b1 failed"),
        ("trace_id=4bf92f3577b34da6 x", "trace_id=00f067aa0ba902b7 x"),
        ("from 10.0.0.4:8000", "from 10.9.0.5:80", "from vllm-0.vllm.svc:8000", "from [fd00::1]:8000"),
        ('bad chunk: {"choices":[{"delta":{"content":"ab', 'bad chunk: {"choices":[{"de'),
        ("at 2026-11-26T10:00:01.123Z", "at 2026-11-27 08:15:00,5", "at 2026-12-01T08:15:00+01:00", "at 08:15:00.25"),
        ("Thu, 26 Nov 2026 10:00:01 GMT: no", "Fri, 4 Dec 2026 08:00:59 GMT: no"),
        ("request req_011CSHoEeqs5C35K2", "request req_9zzTwo000000000"),
        ("id 01J9ZQ8X7Y6W5V4T3S2R1Q0P9N", "id 01KAB38X7Y6W5V4T3S2R1Q0P00", "id DEADBEEF1234567"),
        ("trace 7f24ab is lost", "trace 7f2eab is lost", "trace c0ffee1d2 is lost"),
        ("node 5b0c9e1d7a is gone", "node 77aa0c9e1d is gone"),
    ],
    ids=lambda t: t[0],
)
def test_texts_of_one_kind_are_equal(texts: tuple[str, ...]) -> None:
    assert len({normalise(text) for text in texts}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int8 kernel", "fp8 kernel"),
        ("an ada6000 card", "an ada5000 card"),
        ("SIGSEGV in conv2d", "SIGSEGV in conv3d"),
        ('{"a":1} x', '{"b":1} x'),
        ("resp_text", "resp_body"),
    ],
)
def test_names_stay(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


@pytest.mark.parametrize("n", [1, 10, 40])
def test_quick_tracebacks_are_counted(n: int) -> None:
    trace = (
        "(APIServer pid=9) ERROR 07-04 02:10:03 [x.py:2] Traceback (most recent call last):\n"
        '(APIServer pid=9) ERROR 07-04 02:10:03 [x.py:2]   File "/x/app/x.py", line 2, in f\n'
        "(APIServer pid=9) ERROR 07-04 02:10:03 [x.py:2] ValueError: a thing is wrong\n"
    )
    served = '(APIServer pid=9) INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    [failure] = classify_text(served + trace * n + served)
    assert failure.repeats + 1 == n


def test_cause_of_an_echo_that_was_given_is_never_left_out() -> None:
    cause = (
        "Traceback (most recent call last):\n"
        '  File "/x/lmdeploy/serve/openai/api_server.py", line 374, in create\n    choice_data = Choice(\n'
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatCompletionResponseStreamChoice\n"
        "finish_reason\n"
        "  Input should be 'stop' or 'length' [type=literal_error, input_value='error', input_type=str]\n"
    )
    served = 'INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    # One cause without an echo: the ninth cause comes with the eighth echo.
    text = (
        served
        + "ERROR: task failed\n"
        + cause
        + served
        + ("ERROR:    Exception in ASGI application\n" + cause + served) * 8
    )
    assert {f.id for f in classify_text(text)} == {"lmdeploy_input_length_error"}
