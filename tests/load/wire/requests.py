"""Build requests for the wire without a plan, as a test needs them."""

from typing import Any

from loadchaos.core.model import Output, Request, Step
from loadchaos.load.wire.answer_rules import AnswerRules
from loadchaos.load.wire.completion import Completion
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.headers import content_length, request_head
from loadchaos.load.wire.request import WireRequest, WireTimeouts
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
    reader: type[Completion] = Completion,
) -> WireRequest:
    step = Step(0, 0, 0, None, "test", seed, {}, behaviour, options, Output(), stream)
    head = request_head(origin.path(path), origin.host_header, headers or {}) + content_length(body)
    request = Request(step, path, body, stream, None)
    return WireRequest(request, head, rules or AnswerRules(), limits or WireTimeouts(), fresh, request_id, reader)


def exchange(slot: Slot, **options: Any) -> Exchange:
    """An exchange with the slot's server.

    `options` are those of `wire_request`.
    """
    return Exchange(wire_request(slot.target, **options), slot, Progress())
