from typing import Any

import pytest

from loadchaos.analysis.failure import Failure, evidence, of_signature


def failure(id_: str, title: str, **more: Any) -> Failure:
    return Failure(id_, "request", title, evidence("client", title), **more)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (failure("oom", "out of memory: 3 GB"), failure("oom", "another text"), True),
        (failure("unexplained_http_error", "slot 3 is odd"), failure("unexplained_http_error", "slot 4 is odd"), True),
        (failure("unexplained_http_error", "slot is odd"), failure("unexplained_http_error", "no such flux"), False),
        (failure("unknown_exception", "FluxError"), failure("unknown_exception", "SlotError"), False),
        (failure("oom", "x"), failure("oom", "x", before_load=True), False),
        (failure("oom", "x"), failure("oom", "x", attribution="expected"), False),
    ],
)
def test_failures_are_equal_by_id_standing_and_text_of_unexplained_ones(
    one: Failure, other: Failure, equal: bool
) -> None:
    assert (one.key == other.key) is equal


def test_failure_of_a_signature_keeps_its_layer() -> None:
    assert of_signature("tls_connections_fail", evidence("signs", "every request fails")).layer == "network"
    assert of_signature("answer_repeated", evidence("signs", "")).layer == "gateway"
