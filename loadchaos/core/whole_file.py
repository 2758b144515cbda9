"""Replace a file in one step: a reader, and a kill, find the old or the new one. Read a file that may be missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson


def write_whole(path: Path, data: bytes | str, *, sync: bool = False) -> None:
    """Write a file beside `path`, then rename it. Raises OSError. With `sync`, a power cut leaves the old or the new
    file, too.
    """
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as f:
        f.write(data.encode() if isinstance(data, str) else data)
        if sync:
            f.flush()
            os.fsync(f.fileno())
    part.replace(path)
    if sync:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Call fsync on a file or folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: Path, data: Any, *, sync: bool = False) -> None:
    """Write indented JSON in one step. Raises OSError."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    try:
        text = orjson.dumps(data, option=options)
    except TypeError:  # sums of a damaged ledger may exceed 64 bits
        text = f"{json.dumps(data, indent=2)}\n".encode()
    write_whole(path, text, sync=sync)


def read_json(path: Path) -> dict[str, Any]:
    """Read a mapping; an empty one where the file cannot be read or holds something else."""
    try:
        data = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return data if isinstance(data, dict) else {}
