"""Read files that a profile names: as text, and as JSON with one value a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from loadchaos.core.errors import why_unread


def read_text(file: Path) -> str:
    """Read a text of UTF-8, without a byte order mark. Raises ValueError that names the file."""
    try:
        return file.read_text(encoding="utf-8-sig")
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
