"""Messages between master and remote workers, and the compression of rows.

Rows are sent as pieces of the worker's own file: `part` and `offset` are the position of the piece in it, and so its
sequence number. The master appends a piece only where its copy ends, and replies how much it has. Repeated or reordered
pieces change nothing, and in the end both files are equal byte by byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Protocol

from loadchaos.core.version import __version__

HELLO = "loadchaos_hello"
"""Worker to master, before Locust knows it: versions and host. Repeated until WELCOME, WAIT or REFUSED arrives."""
WELCOME = "loadchaos_welcome"
"""Master to worker: its slot, the plan, the server's facts, and the files that the profile names."""
WAIT = "loadchaos_wait"
"""Master to worker: no slot is free now; it may ask again."""
REFUSED = "loadchaos_refused"
"""Master to worker: it cannot take part, and the reason."""
ROWS = "loadchaos_rows"
"""Worker to master: a piece of its file."""
ACK = "loadchaos_ack"
"""Master to worker: how many bytes of its file the master has written."""
PING = "loadchaos_ping"
PONG = "loadchaos_pong"
CONTROL = "loadchaos_control"
"""Master to workers: rows of control.jsonl."""
DONE = "loadchaos_done"
"""Worker to master: its load has ended, and the master has every row."""

PIECE_BYTES = 256 * 1024
"""Largest piece of a file in one message, before compression."""


class LocustRunner(Protocol):
    """The part of Locust's MasterRunner and WorkerRunner that is used here. A worker has one client, its master."""

    def send_message(
        self, msg_type: str, data: dict[str, object] | None = None, client_id: str | None = None
    ) -> None: ...

    def register_message(self, msg_type: str, listener: Callable[..., None], concurrent: bool = False) -> None:
        """Call `listener(environment, msg)` for messages of a kind."""


def versions() -> dict[str, str]:
    """Versions that must be equal on both."""
    return {"loadchaos": __version__, "locust": version("locust")}


def mismatch(theirs: Mapping[str, object]) -> str | None:
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
