"""Keep the newest rows of a recording in segment files. A ring is a folder of `segment-NNNNNN.jsonl`. Each segment
begins with a header row. Old segments are deleted by age and by size. Rows are handed to the operating system at once:
a process that is killed loses none that it has written.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadchaos.core.whole_file import sync_path

RING, FROZEN = "ring", "frozen"
RECORDING = "recording"
"""Folder of a recording in the run folder of a watch."""
SEGMENTS = 8
"""Segments of a full ring: an eighth of its time or size is deleted at once."""
MOST_FROZEN = 8
_SEGMENT = re.compile(r"segment-(\d+)\.jsonl\Z")


@dataclass(frozen=True)
class RingLimits:
    """Age and size of the rows that are kept."""

    keep_s: float = 600.0
    max_bytes: int = 1 << 30


def segments_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("segment-*.jsonl") if _SEGMENT.match(p.name)) if folder.is_dir() else []


class SegmentRing:
    """Writes rows; `header` makes the first row of a segment. Methods raise OSError where the disk refuses."""

    def __init__(self, folder: Path, limits: RingLimits, header: Callable[[], bytes]) -> None:
        self._folder, self._limits, self._header = folder, limits, header
        self._file: int | None = None
        self._size = 0
        self._began_s = 0.0

    @property
    def path(self) -> Path:
        return self._folder / RING

    def append(self, rows: Sequence[bytes]) -> None:
        data = b"".join(rows)
        now = time.monotonic()
        full = self._size + len(data) > self._limits.max_bytes // SEGMENTS
        if self._file is None or full or now - self._began_s > self._limits.keep_s / SEGMENTS:
            self._next(len(data))
        self._write(data)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def freeze(self, reason: str) -> Path:
        """Keep the ring as a folder of its own. Raises FileExistsError where there are too many of them."""
        if len(list(self._folder.glob(f"{FROZEN}-*"))) >= MOST_FROZEN:
            raise FileExistsError(f"{self._folder} has {MOST_FROZEN} frozen recordings: move or delete some of them")
        self.close()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        word = re.sub(r"[^a-z0-9]+", "-", reason.partition(":")[0].lower()).strip("-")[:40]
        frozen = next(p for p in self._names(f"{FROZEN}-{stamp}-{word}") if not p.exists())
        self.path.rename(frozen)
        for segment in segments_of(frozen):
            sync_path(segment)
        return frozen

    def _names(self, name: str) -> Iterator[Path]:
        yield self._folder / name
        yield from (self._folder / f"{name}-{n}" for n in range(2, 1000))

    def _next(self, wanted: int) -> None:
        """Begin a segment, after the oldest ones have made room for it."""
        self.close()
        self.path.mkdir(parents=True, exist_ok=True)
        present = segments_of(self.path)
        found = _SEGMENT.match(present[-1].name) if present else None
        number = int(found[1]) + 1 if found else 1
        self._drop_old(present, wanted)
        self._file = os.open(
            self.path / f"segment-{number:06d}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
        )
        self._size, self._began_s = 0, time.monotonic()
        self._write(self._header())

    def _drop_old(self, present: list[Path], wanted: int) -> None:
        room = self._limits.max_bytes - max(wanted, self._limits.max_bytes // SEGMENTS)
        sizes = [p.stat().st_size for p in present]
        oldest_s = time.time() - self._limits.keep_s
        while present and (sum(sizes) > room or present[0].stat().st_mtime < oldest_s):
            present.pop(0).unlink()
            sizes.pop(0)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            count = os.write(self._file, view)
            self._size += count
            view = view[count:]
