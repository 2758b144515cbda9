"""What master and remote workers say to each other inside Locust's messages, and how rows are packed for the way.

Rows travel as pieces of the worker's own file: `part` and `offset` are the place of the piece in it, and so its sequence
number. The master appends a piece only where its copy ends, and says how far it has got; what comes twice or out of turn
changes nothing, and in the end both files are equal byte by byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from loadchaos.core.version import __version__

HELLO = "loadchaos_hello"
"""Worker to master, before Locust knows it: versions, host. Asked again until WELCOME, WAIT or REFUSED comes."""
WELCOME = "loadchaos_welcome"
"""Master to worker: its place, the plan, the server's facts, and the files the profile names."""
WAIT = "loadchaos_wait"
"""Master to worker: no place is free now; it may ask again."""
REFUSED = "loadchaos_refused"
"""Master to worker: it cannot take part, and why."""
ROWS = "loadchaos_rows"
"""Worker to master: a piece of its file."""
ACK = "loadchaos_ack"
"""Master to worker: how many bytes of its file are written here."""
PING = "loadchaos_ping"
PONG = "loadchaos_pong"
CONTROL = "loadchaos_control"
"""Master to workers: rows of control.jsonl."""
DONE = "loadchaos_done"
"""Worker to master: its load is over and every row is written here."""

PIECE_BYTES = 256 * 1024
"""How much of a file goes into one message at most, before it is compressed."""


def versions() -> dict[str, str]:
    """What has to be equal on both sides."""
    return {"loadchaos": __version__, "locust": version("locust")}


def mismatch(theirs: Mapping[str, Any]) -> str | None:
    """Why a worker of these versions cannot take part, None where it can. Locust's own messages change with minors."""
    ours = versions()
    if theirs.get("loadchaos") != ours["loadchaos"]:
        return _differ("loadchaos", ours["loadchaos"], theirs.get("loadchaos"))
    if str(theirs.get("locust")).split(".")[:2] != ours["locust"].split(".")[:2]:
        return _differ("Locust", ours["locust"], theirs.get("locust"))
    return None


def _differ(what: str, ours: str, theirs: object) -> str:
    return f"the master runs {what} {ours}, this worker {what} {theirs}: install the same version on both"


def packed(data: bytes) -> bytes:
    """Compressed, quickly: rows shrink to about a sixth."""
    return zlib.compress(data, 1)


def unpacked(data: bytes) -> bytes:
    """What `packed` took. Raises ValueError for anything else, or for more than a piece may hold."""
    engine = zlib.decompressobj()
    try:
        found = engine.decompress(data, 4 * PIECE_BYTES)
    except zlib.error as e:
        raise ValueError(f"a piece of rows cannot be unpacked: {e}") from e
    if engine.unconsumed_tail:
        raise ValueError("a piece of rows is larger than any worker sends")
    return found
