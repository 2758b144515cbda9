from loadchaos.load.worker.replay_order import ReplayOrder
from loadchaos.profile.request_trace import Cause, TraceSend
from tests.rows import S


def due(order: ReplayOrder) -> list[tuple[float, int]]:
    """Hand out everything that is due, with times in seconds."""
    found = []
    while order.next_due_ns is not None:
        at_ns, position = order.pop_due()
        found.append((at_ns / S, position))
    return found


def test_replay_order_sends_at_the_recorded_times_without_causes() -> None:
    order = ReplayOrder([TraceSend(id="a", at_s=2.0), TraceSend(id="b", at_s=1.0)], 10 * S, speed=2.0)
    assert due(order) == [(10.5, 1), (11.0, 0)]
    assert order.done


def test_replay_order_waits_for_the_end_of_another_request() -> None:
    sends = [TraceSend(id="a"), TraceSend(id="b", at_s=5.0, after=(Cause(request="a", delay_s=0.5),))]
    order = ReplayOrder(sends, 0)
    assert due(order) == [(0.0, 0)]
    assert not order.done
    assert not order.note(("a", "begin", 1), 1 * S)
    assert order.note_end("a", 3 * S)
    assert due(order) == [(3.5, 1)]
    assert order.done


def test_replay_order_waits_for_all_causes() -> None:
    both = (Cause(request="a", delay_s=2.0), Cause(request="b"))
    order = ReplayOrder([TraceSend(id="a"), TraceSend(id="b"), TraceSend(id="c", after=both)], 0)
    due(order)
    assert not order.note_end("b", 1 * S)
    assert order.note_end("a", 2 * S)
    assert due(order) == [(4.0, 2)]


def test_replay_order_waits_for_a_token() -> None:
    sends = [TraceSend(id="a"), TraceSend(id="b", after=(Cause(request="a", event="token", token=3),))]
    order = ReplayOrder(sends, 0)
    due(order)
    assert order.waits_for_tokens("a")
    assert not order.note_tokens("a", 2, 1 * S)
    assert order.note_tokens("a", 4, 2 * S)
    assert due(order) == [(2.0, 1)]


def test_replay_order_does_not_wait_for_tokens_that_will_not_come() -> None:
    sends = [TraceSend(id="a"), TraceSend(id="b", after=(Cause(request="a", event="token", token=3),))]
    order = ReplayOrder(sends, 0)
    due(order)
    assert order.note_end("a", 2 * S)
    assert due(order) == [(2.0, 1)]
    assert order.done
