"""Read files that a profile names: as text, which may be packed with gzip, and as JSON with one value a line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from loadchaos.core.errors import why_unread

_GZIP = b"\x1f\x8b"


def read_bytes(file: Path, most: int = -1) -> bytes:
    """Read a file, unpacked where it is gzip; with `most` only its begin. Raises OSError, also for broken gzip."""
    with file.open("rb") as raw:
        if raw.peek(2)[:2] != _GZIP:
            return raw.read(most)
        try:
            with gzip.GzipFile(fileobj=raw) as packed:
                return packed.read(most)
        except (EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise OSError(0, f"the gzip data is broken ({e})") from e


def suffix_of(file: Path) -> str:
    """Suffix of what the file holds: `.jsonl` of `requests.jsonl.gz`."""
    return (file.with_suffix("") if file.suffix == ".gz" else file).suffix


def read_text(file: Path) -> str:
    """Read a text of UTF-8, without a byte order mark. Raises ValueError that names the file."""
    try:
        return read_bytes(file).decode("utf-8-sig")
    except OSError as e:
        raise ValueError(f"{file}: {why_unread(e)}") from e
    except UnicodeDecodeError as e:
        raise ValueError(f"{file}: the file is not UTF-8 text") from e


def json_lines(file: Path, text: str) -> Iterator[tuple[str, object]]:
    """Yield (location, value) of each line that is not blank. Raises ValueError with file, line and column. Files put
    together may have a byte order mark at the begin of any line.
    """
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.removeprefix("\ufeff")
        if line.strip():
            try:
                value = json.loads(line)
            except json.JSONDecodeError as e:
                raise ValueError(f"{file}:{number}:{e.colno}: not JSON: {e.msg}") from e
            yield f"{file}:{number}", value
