"""Reads log files as people have them (plain, gzip, UTF-16, stdin) line by line, whatever their size.

A line is cut at 1 MB, so that a file without line ends costs no memory; what names a failure stands at its begin.
"""

from __future__ import annotations

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from loadchaos.errors import LoadchaosError

LONGEST_LINE = 1 << 20
_GZIP = b"\x1f\x8b"
_LOOK = 4096


class UnreadableError(LoadchaosError):
    """A log that cannot be read (exit 2): names it and says why."""


def lines(path: str) -> Iterator[str]:
    """The lines of a file (`-`: stdin) without their ends. Raises UnreadableError, also in the middle of a broken file."""
    try:
        if path == "-":
            stdin = sys.stdin.buffer
            yield from _decoded("stdin", stdin if hasattr(stdin, "peek") else io.BufferedReader(cast("Any", stdin)))
        else:
            with Path(path).open("rb") as raw:
                yield from _decoded(path, raw)
    except (OSError, EOFError, zlib.error) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or "it breaks off"
        raise UnreadableError(f"{'stdin' if path == '-' else path}: cannot be read: {reason}") from e


def _decoded(name: str, raw: Any) -> Iterator[str]:
    head = raw.peek(_LOOK)[:_LOOK]
    if head.startswith(_GZIP):
        with gzip.open(raw, "rb") as unpacked:
            yield from _decoded(name, unpacked)
        return
    encoding = _encoding(head)
    if encoding == "utf-8" and b"\0" in head:
        raise UnreadableError(f"{name}: is no text")
    text = io.TextIOWrapper(cast("IO[bytes]", raw), encoding=encoding, errors="replace", newline="\n")
    try:
        yield from _cut(text)
    finally:
        text.detach()  # the file is the caller's to close


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"  # what Windows PowerShell writes for `>`
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"


def _cut(text: io.TextIOWrapper) -> Iterator[str]:
    inside = False
    for piece in iter(lambda: text.readline(LONGEST_LINE), ""):
        if not inside:
            yield piece.rstrip("\r\n")
        inside = not piece.endswith("\n")
