"""Reads log files as people have them (plain, gzip, bzip2, xz, UTF-16, stdin) line by line, whatever their size.

A line is cut at 1 MB, so that a file without line ends costs no memory; what names a failure stands at its begin.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from loadchaos.core.errors import LoadchaosError

LONGEST_LINE = 1 << 20
_PACKED: Mapping[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_LOOK = 4096
_IN_TEXT = b"\t\n\r\f\b\x1b"
_ODD_SHARE = 0.02


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
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or "it breaks off"
        raise UnreadableError(f"{'stdin' if path == '-' else path}: cannot be read: {reason}") from e


def _decoded(name: str, raw: Any) -> Iterator[str]:
    head = raw.peek(_LOOK)[:_LOOK]
    for magic, unpack in _PACKED.items():
        if head.startswith(magic):
            with unpack(raw, "rb") as unpacked:
                yield from _decoded(name, unpacked)
            return
    encoding = _encoding(head)
    if encoding == "utf-8" and _is_binary(head):
        raise UnreadableError(f"{name}: is no text")
    text = io.TextIOWrapper(cast("IO[bytes]", raw), encoding=encoding, errors="replace", newline="\n")
    try:
        yield from _cut(text)
    finally:
        text.detach()  # the file is the caller's to close


def _is_binary(head: bytes) -> bool:
    """NULs alone are no sign: a log that was truncated under its writer has a hole of them."""
    said = head.replace(b"\0", b"")
    odd = sum((byte < 32 and byte not in _IN_TEXT) or byte == 127 for byte in said)
    odd += said.decode("utf-8", "replace").count("\ufffd")
    return b"\0" in head and odd > _ODD_SHARE * len(said)


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"  # what Windows PowerShell writes for `>`
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"


def _cut(text: io.TextIOWrapper) -> Iterator[str]:
    inside = False
    for piece in iter(lambda: text.readline(LONGEST_LINE), ""):
        if not inside:
            yield piece.rstrip("\r\n").replace("\0", "")
        inside = not piece.endswith("\n")
