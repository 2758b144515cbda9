"""A request ready for the wire: head bytes, answer rules and timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadchaos.core.model import Request
from loadchaos.core.slotted import slotted_dataclass
from loadchaos.load.wire.outcome import OutcomeRules


@dataclass(frozen=True)
class WireTimeouts:
    """Longest silences allowed, in ns.

    Until the first body byte, between bytes, and for the whole request. A request is sent again only if its connection
    had been idle for longer than `retry_idle_ns`.
    """

    first_byte_ns: int = 120_000_000_000
    between_bytes_ns: int = 30_000_000_000
    total_ns: int = 600_000_000_000
    retry_idle_ns: int = 500_000_000


@dataclass
class Progress:
    """Tokens and bytes that one worker received since its last heartbeat."""

    tokens: int = 0
    bytes_in: int = 0


@slotted_dataclass(frozen=True)
class WireRequest:
    """A request ready to be sent: its head, id, answer rules and timeouts.

    It exists from just before the due time until the answer is read. `fresh` asks for a connection that no other
    request uses.
    """

    request: Request
    head: bytes
    rules: OutcomeRules
    limits: WireTimeouts = field(default_factory=WireTimeouts)
    fresh: bool = False
    request_id: str = ""
