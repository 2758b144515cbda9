"""Messages between master and remote workers, and the compression of rows.

Rows are sent as pieces of the worker's own file: `part` and `offset` are the position of the piece in it, and so its
sequence number. The master appends a piece only where its copy ends, and replies how much it has. Repeated or reordered
pieces change nothing, and in the end both files are equal byte by byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import ClassVar, Protocol

from loadchaos.core import plugins
from loadchaos.core.model import Row
from loadchaos.core.version import __version__
from loadchaos.load.worker.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Worker to master, before Locust knows it. Repeated until `Welcome`, `Wait` or `Refused` arrives."""

    KIND: ClassVar = "loadchaos_hello"
    token: str
    host: str
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """Master to worker: its slot, and what it needs for the load."""

    KIND: ClassVar = "loadchaos_welcome"
    slot: int
    bundle: Bundle


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Master to worker: no slot is free now; it may ask again."""

    KIND: ClassVar = "loadchaos_wait"
    why: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Master to worker: it cannot take part, and the reason."""

    KIND: ClassVar = "loadchaos_refused"
    why: str


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Worker that sent a message: all but `Hello` have it, too."""

    slot: int = -1
    token: str


@dataclass(frozen=True, kw_only=True)
class RowPiece:
    """Worker to master: a compressed piece of its file, sent at `sent_ns` of the master's clock."""

    KIND: ClassVar = "loadchaos_rows"
    part: int = 0
    offset: int
    rows: bytes
    sent_ns: int


@dataclass(frozen=True, kw_only=True)
class Ack:
    """Master to worker: bytes of its file that the master has written. `resend`: it misses an earlier piece."""

    KIND: ClassVar = "loadchaos_ack"
    part: int = 0
    received: int
    resend: bool


@dataclass(frozen=True, kw_only=True)
class Ping:
    """Worker to master: its clock, and how many commands it has."""

    KIND: ClassVar = "loadchaos_ping"
    mine_ns: int
    commands: int


@dataclass(frozen=True, kw_only=True)
class Pong:
    """Master to worker: both clocks."""

    KIND: ClassVar = "loadchaos_pong"
    mine_ns: int
    theirs_ns: int


@dataclass(frozen=True, kw_only=True)
class CommandRows:
    """Master to workers: rows of control.jsonl, from number `first` on."""

    KIND: ClassVar = "loadchaos_control"
    first: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Done:
    """Worker to master: its load has ended, and the master has every row."""

    KIND: ClassVar = "loadchaos_done"
    why: str


Message = Hello | Welcome | Wait | Refused | RowPiece | Ack | Ping | Pong | CommandRows | Done

PIECE_BYTES = 256 * 1024
"""Largest piece of a file in one message, before compression."""


class LocustRunner(Protocol):
    """The part of Locust's MasterRunner and WorkerRunner that is used here. A worker has one client, its master."""

    def send_message(self, msg_type: str, data: object = None, client_id: str | None = None) -> None: ...

    def register_message(self, msg_type: str, listener: Callable[..., None], concurrent: bool = False) -> None:
        """Call `listener(environment, msg)` for messages of a kind."""


def versions() -> dict[str, str]:
    """Versions that must be equal on both."""
    return {"loadchaos": __version__, "locust": version("locust"), **plugins.versions()}


def mismatch(theirs: Mapping[str, str]) -> str | None:
    """Explain why a worker of these versions cannot take part, or None. Locust's messages change with minor versions."""
    for name, ours in versions().items():
        compared = 2 if name == "locust" else None
        if str(theirs.get(name)).split(".")[:compared] != ours.split(".")[:compared]:
            what = name.replace("locust", "Locust")
            return f"the master runs {what} {ours}, this worker {what} {theirs.get(name)}: install the same version on both"
    return None


def compress(data: bytes) -> bytes:
    """Compress rows, fast rather than small: to about a sixth."""
    return zlib.compress(data, 1)


def decompress(data: bytes) -> bytes:
    """Undo `compress`. Raises ValueError for anything else, or for more than one piece."""
    engine = zlib.decompressobj()
    try:
        found = engine.decompress(data, 4 * PIECE_BYTES)
    except zlib.error as e:
        raise ValueError(f"a piece of rows cannot be decompressed: {e}") from e
    if engine.unconsumed_tail:
        raise ValueError("a piece of rows is larger than any worker sends")
    return found
