"""Base class of the toxic types, and a toxic as plain data.

A toxic type declares what it is (name, attributes, effects) and overrides the hooks that it needs. Our proxy (proxy.py)
calls the hooks for every connection that the toxic hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

SLOW = ("stalled", "timeout", "alive_but_hung")
CUT = ("reset", "truncated", "protocol_error", "connect_error", "stream_error")
"""Outcomes and failure ids that a slow network and a cut connection cause by themselves."""


@dataclass(frozen=True)
class Toxic:
    """One network fault in force on a proxy, as the ledger stores it.

    `share` (0..1) of the connections is hit, in the direction `stream`; `seed` decides which connections.
    """

    name: str
    type: str
    stream: str
    share: float
    attributes: Mapping[str, float]
    seed: int = 0


@dataclass(frozen=True)
class Attribute:
    """A number that a profile may set, with its default and unit."""

    name: str
    default: float
    unit: str


@dataclass(frozen=True)
class Chunking:
    """Sizes and pace of the data that is passed on.

    The size of a piece, the pause after each, and a rate in bytes/s (0: no limit).
    """

    size: int
    pause_s: float = 0.0
    rate: float = 0.0


class ToxicType:
    """One type of toxic; an instance is one toxic in force.

    Every hook does nothing by default.
    """

    name: ClassVar[str]
    attributes: ClassVar[Sequence[Attribute]] = ()
    effects: ClassVar[Sequence[str]]
    """Outcomes and failure ids that it may cause by itself."""

    refuses: ClassVar[bool] = False
    """The proxy does not listen, and resets every connection, while this toxic is in force."""
    blocks: ClassVar[bool] = False
    """No data passes while this toxic is in force."""

    def __init__(self, toxic: Toxic) -> None:
        self.toxic = toxic
        self.values = toxic.attributes

    def delay_s(self) -> float:
        """Return the delay of data and of the end of the stream, in seconds."""
        return 0.0

    def close_after_s(self) -> float | None:
        """Return how long data may be blocked before the connection closes.

        Returns None for no limit.
        """
        return None

    def reset_after_s(self) -> float | None:
        """Return the time until a hit connection is reset, in seconds.

        It counts from the connection's start or the toxic's. Returns None for never.
        """
        return None

    def chunk(self, chunking: Chunking) -> Chunking:
        """Return how data is cut and paced, given the other toxics' result."""
        return chunking

    def bytes_left(self, passed: int) -> int | None:
        """Return how many bytes may still pass before the connection closes.

        Returns None for no limit.
        """
        del passed
        return None

    def end_delay_s(self) -> float:
        """Return the extra delay before the end of a stream is passed on."""
        return 0.0
