"""Build requests for the wire without a plan, as a test needs them."""

from typing import Any

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import Outcome, Output, Step
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.request import Request, WireTimeouts, content_length, request_head
from loadchaos.load.wire.sockets import Origin, Slot

PATH = "/v1/chat/completions"


def wire_request(
    origin: Origin,
    body: bytes = b"{}",
    *,
    path: str = PATH,
    headers: dict[str, str] | None = None,
    stream: bool = True,
    rules: AnswerRules | None = None,
    limits: WireTimeouts | None = None,
    behaviour: str = "plain",
    options: Any = None,
    seed: int = 0,
    fresh: bool = False,
    request_id: str = "",
    reader: type[AnswerReader] = AnswerReader,
) -> Request:
    step = Step(0, 0, 0, None, "test", seed, {}, behaviour, options, Output(), stream)
    head = request_head(origin.path(path), origin.host_header, headers or {}) + content_length(body)
    request = Request(
        step=step, output=step.output, expect=["ok"], stream=stream, path=path, body=body, head=head,
        limits=limits or WireTimeouts(), fresh=fresh, id=request_id,
    )  # fmt: skip
    request.rules, request.reader = rules or AnswerRules(), reader
    return request


def exchange(slot: Slot, **options: Any) -> Exchange:
    """An exchange with the slot's server.

    `options` are those of `wire_request`.
    """
    return Exchange(wire_request(slot.target, **options), slot, Progress())


def end_row(outcome: Outcome = "ok", **changes: Any) -> EndRow:
    """The end row of a request that was not sent, with some changes."""
    row = exchange(Slot(Origin("http://127.0.0.1:1"))).end_row()
    row["outcome"], row["at_ns"], row["detail"] = outcome, 0, {}
    row.update(changes)  # type: ignore[typeddict-item]
    return row
