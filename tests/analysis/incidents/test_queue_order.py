from typing import Any

import pytest

from loadchaos.analysis.incidents.bad_answers import BadAnswer, BadAnswerQueue, failure_of
from loadchaos.analysis.incidents.queue_order import QueueOrder
from loadchaos.core.units import NS_PER_S as S

NO_BYTE = "no byte of the answer arrived for 60 s"
Served = tuple[float, float, float]
"""When a request was sent, had its first token and its last byte, in seconds."""


def row(served: Served) -> Any:
    sent_s, token_s, last_s = served
    times = {"sent_ns": int(sent_s * S), "first_token_ns": int(token_s * S), "last_byte_ns": int(last_s * S)}
    return {"row": "end", "at_ns": int(last_s * S), **times}


def stalled(**more: Any) -> BadAnswer:
    """A request that was sent at 100 s and had no byte at 160 s; the client may notice it later."""
    given: dict[str, Any] = {"outcome": "stalled", "text": NO_BYTE, **more}
    return BadAnswer(
        given.get("noticed_s", 160) * S,
        100 * S,
        "chat",
        given["outcome"],
        given["text"],
        1,
        {},  # type: ignore[typeddict-item]
        given.get("began", False),
    )


IN_ORDER = [(99.0, 110.0, 112.0), (99.5, 150.0, 158.0), (100.4, 155.0, 159.0)]


@pytest.mark.parametrize(
    ("served", "more", "waited"),
    [
        (IN_ORDER, {}, True),
        (IN_ORDER, {"outcome": "timeout"}, True),
        ([(99.0, 120.0, 170.0)], {}, True),  # one stream all the time
        ([*IN_ORDER, (130.0, 165.0, 166.0)], {}, True),  # served after this one gave up
        ([*IN_ORDER, (130.0, 161.0, 166.0)], {"noticed_s": 162}, True),  # by then another was served
        ([*IN_ORDER, (130.0, 161.0, 166.0)], {"noticed_s": 162, "text": "no byte"}, False),  # of an unknown limit
        ([*IN_ORDER, (130.0, 150.0, 166.0)], {}, False),  # it came later and was served first
        ([(99.0, 110.0, 112.0)], {}, False),  # nobody had a token: the server stood still, or this one was lost
        ([], {}, False),
        (IN_ORDER, {"began": True}, False),
        (IN_ORDER, {"outcome": "reset"}, False),
    ],
)
def test_wait_in_the_queue_is_told_from_a_lost_request(
    served: list[Served], more: dict[str, Any], waited: bool
) -> None:
    order = QueueOrder()
    for one in served:
        order.on_end(row(one))
    order.on_end({"row": "end", "at_ns": 200 * S, "sent_ns": 120 * S, "first_token_ns": None})  # type: ignore[typeddict-item]  # as a row without a token
    assert order.waited(stalled(**more)) is waited


def test_wait_in_the_queue_is_a_failure_of_its_own_with_a_remedy() -> None:
    bad = stalled()
    assert failure_of(bad).id == "unexplained_stalled"
    bad.waited = True
    failure = failure_of(bad)
    assert (failure.id, failure.severity) == ("queue_wait", "request")
    assert "limits.first_byte" in failure.remedy


def test_times_of_a_long_run_are_forgotten() -> None:
    order = QueueOrder()
    for second in range(10_000):
        order.on_end(row((second, second + 0.5, second + 1)))
    assert max(len(times) for times in vars(order).values()) <= 1_801


@pytest.mark.parametrize(("text", "began"), [(NO_BYTE, False), ("no further byte arrived for 30 s", True)])
def test_token_that_came_while_the_client_gave_up_began_no_answer(text: str, began: bool) -> None:
    queue = BadAnswerQueue()
    end: Any = {"row": "end", "at_ns": 160 * S, "sent_ns": 100 * S, "first_token_ns": 160 * S, "error": text}
    queue.add(end, "stalled")
    assert [bad.began for bad in queue.poll(None)] == [began]
