"""A request ready for the wire: head bytes, answer rules and timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadchaos.core.model import Request
from loadchaos.core.slotted import slotted_dataclass
from loadchaos.load.wire.answer_rules import AnswerRules
from loadchaos.load.wire.completion import Completion
from loadchaos.profile.client_limits import ClientLimits

_DEFAULT = ClientLimits()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


@dataclass(frozen=True)
class WireTimeouts:
    """Longest silences allowed, in ns.

    Until the first body byte, between bytes, and for the whole request. A request is sent again only if its connection
    had been idle for longer than `retry_idle_ns`. The defaults are those of `ClientLimits`.
    """

    first_byte_ns: int = _ns(_DEFAULT.first_byte)
    between_bytes_ns: int = _ns(_DEFAULT.between_bytes)
    total_ns: int = _ns(_DEFAULT.total)
    retry_idle_ns: int = _ns(_DEFAULT.retry_idle)

    @classmethod
    def of(cls, limits: ClientLimits) -> WireTimeouts:
        """Convert the limits of a profile to ns."""
        seconds = (limits.first_byte, limits.between_bytes, limits.total, limits.retry_idle)
        return cls(*(_ns(s) for s in seconds))


@dataclass
class Progress:
    """Tokens and bytes that one worker received since its last heartbeat."""

    tokens: int = 0
    bytes_in: int = 0


@slotted_dataclass(frozen=True)
class WireRequest:
    """A request ready to be sent: its head, id, answer rules and timeouts.

    It exists from just before the due time until the answer is read. `fresh` asks for a connection that no other
    request uses. `reader` reads its answer.
    """

    request: Request
    head: bytes
    rules: AnswerRules
    limits: WireTimeouts = field(default_factory=WireTimeouts)
    fresh: bool = False
    request_id: str = ""
    reader: type[Completion] = Completion
