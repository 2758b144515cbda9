"""What one request sends and how long it is borne: head, body, the rules its answer is judged by, limits of silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadchaos.core.model import Request
from loadchaos.core.slotted import slotted_dataclass
from loadchaos.load.wire.outcome import OutcomeRules


@dataclass(frozen=True)
class WireTimeouts:
    """Longest silences we bear, in ns: until the first byte of the body, between bytes, and for the whole request."""

    first_byte_ns: int = 120_000_000_000
    between_bytes_ns: int = 30_000_000_000
    total_ns: int = 600_000_000_000


@dataclass
class Progress:
    """What one worker's calls have brought in since somebody last looked (heartbeats read it and set it to 0)."""

    tokens: int = 0
    bytes_in: int = 0


@slotted_dataclass(frozen=True)
class WireRequest:
    """A request ready to be sent: with its head and id, the rules for its answer, and its timeouts.

    `fresh` asks for a connection that no other request uses.
    """

    request: Request
    head: bytes
    rules: OutcomeRules
    limits: WireTimeouts = field(default_factory=WireTimeouts)
    fresh: bool = False
    request_id: str = ""


def request_head(path: str, host: str, headers: Mapping[str, str]) -> bytes:
    """The begin of a POST with a JSON body; Content-Length and an empty line have to follow, `length_of` makes them.

    Raises ValueError for a header that would break out of its line.
    """
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value or not name.isascii() or ":" in name or "\n" in name:
            raise ValueError(f"header {name!r} cannot be sent")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, ""]).encode("utf-8")


def length_of(body: bytes) -> bytes:
    """The end of a request's head."""
    return b"Content-Length: %d\r\n\r\n" % len(body)
