"""Read lines of log files: plain, gzip, bzip2, xz, UTF-16 or stdin. Lines are cut at 1 MB, so that a file without line
ends needs little memory. The start of a line identifies a failure.
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
_DECOMPRESSORS: Mapping[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_PACKED = {b"PK\3\4": "a zip archive", b"\x28\xb5\x2f\xfd": "packed by zstd", b"\x04\x22\x4d\x18": "packed by lz4"}
_HEAD_BYTES = 4096
_TEXT_CONTROLS = b"\t\n\r\f\b\x1b"
_MAX_BINARY_SHARE = 0.02


class UnreadableError(LoadchaosError):
    """A log cannot be read (exit code 2)."""


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a file (`-`: stdin) without line ends. Raises UnreadableError, also in the middle of a file."""
    try:
        if path == "-":
            stdin = sys.stdin.buffer
            yield from _decoded("stdin", stdin if hasattr(stdin, "peek") else io.BufferedReader(cast("Any", stdin)))
        else:
            with Path(path).open("rb") as raw:
                yield from _decoded(path, raw)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or "the file ends too early"
        raise UnreadableError(f"{'stdin' if path == '-' else path}: cannot be read: {reason}") from e


def _decoded(name: str, raw: Any) -> Iterator[str]:
    head = raw.peek(_HEAD_BYTES)[:_HEAD_BYTES]
    for magic, unpack in _DECOMPRESSORS.items():
        if head.startswith(magic):
            with unpack(raw, "rb") as unpacked:
                yield from _decoded(name, unpacked)
            return
    for magic, kind in _PACKED.items():
        if head.startswith(magic):
            raise UnreadableError(f"{name}: {kind}, which is not read here: unpack it")
    encoding = _encoding(head)
    if encoding == "utf-8" and _is_binary(head):
        raise UnreadableError(f"{name}: not a text file")
    text = io.TextIOWrapper(cast("IO[bytes]", raw), encoding=encoding, errors="replace", newline="\n")
    try:
        yield from _cut(text)
    finally:
        text.detach()  # the caller closes the file


def _is_binary(head: bytes) -> bool:
    """Detect a binary file by its first bytes. NULs alone do not make a file binary: a log that was truncated while it
    was written has a hole of NULs.
    """
    content = head.replace(b"\0", b"")
    odd = sum((byte < 32 and byte not in _TEXT_CONTROLS) or byte == 127 for byte in content)
    odd += content.decode("utf-8", "replace").count("\ufffd")
    return b"\0" in head and odd > _MAX_BINARY_SHARE * len(content)


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"  # Windows PowerShell writes UTF-16 for `>`
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"


def _cut(text: io.TextIOWrapper) -> Iterator[str]:
    inside = False
    for piece in iter(lambda: text.readline(LONGEST_LINE), ""):
        if not inside:
            yield piece.rstrip("\r\n").replace("\0", "")
        inside = not piece.endswith("\n")
