import os
import time
from pathlib import Path

import pytest

from loadchaos.campaigns.recorder.ring import MOST_FROZEN, RingLimits, SegmentRing, segments_of


def ring(folder: Path, limits: RingLimits) -> SegmentRing:
    return SegmentRing(folder, limits, lambda: b'{"row":"recording"}\n')


def test_ring_never_exceeds_its_size_and_keeps_the_newest_rows(tmp_path: Path) -> None:
    kept = ring(tmp_path, RingLimits(600, 80_000))
    largest = 0
    for n in range(3000):
        kept.append([b'{"n":%05d,"more":"%s"}\n' % (n, b"x" * 80)])
        if n % 50 == 0:
            largest = max(largest, sum(p.stat().st_size for p in segments_of(kept.path)))
    data = b"".join(p.read_bytes() for p in segments_of(kept.path))
    assert largest <= 80_000
    assert b'"n":02999' in data
    assert b'"n":00000' not in data
    assert len(data) > 40_000
    kept.close()


def test_ring_drops_segments_by_age(tmp_path: Path) -> None:
    kept = ring(tmp_path, RingLimits(0.4, 1 << 20))
    kept.append([b'{"n":1}\n'])
    old = segments_of(kept.path)[0]
    os.utime(old, (time.time() - 10,) * 2)
    time.sleep(0.06)
    kept.append([b'{"n":2}\n'])
    assert old not in segments_of(kept.path)
    assert b'"n":2' in segments_of(kept.path)[-1].read_bytes()
    kept.close()


def test_every_segment_begins_with_its_header(tmp_path: Path) -> None:
    kept = ring(tmp_path, RingLimits(600, 8000))
    for _ in range(100):
        kept.append([b"x" * 90 + b"\n"])
    assert len(segments_of(kept.path)) > 3
    assert all(p.read_bytes().startswith(b'{"row":"recording"}\n') for p in segments_of(kept.path))
    kept.close()


def test_new_ring_goes_on_after_the_segments_of_the_one_before(tmp_path: Path) -> None:
    first = ring(tmp_path, RingLimits())
    first.append([b'{"n":1}\n'])
    second = ring(tmp_path, RingLimits())
    second.append([b'{"n":2}\n'])
    assert [p.name for p in segments_of(second.path)] == ["segment-000001.jsonl", "segment-000002.jsonl"]


def test_freeze_keeps_the_rows_and_begins_a_new_ring(tmp_path: Path) -> None:
    kept = ring(tmp_path, RingLimits())
    kept.append([b'{"n":1}\n'])
    frozen = kept.freeze("engine died: refuses")
    kept.append([b'{"n":2}\n'])
    assert frozen.name.endswith("-engine-died")
    assert b'"n":1' in segments_of(frozen)[0].read_bytes()
    assert b'"n":1' not in segments_of(kept.path)[0].read_bytes()
    assert segments_of(frozen)[0].stat().st_mode & 0o077 == 0


def test_freeze_does_not_fill_the_disk(tmp_path: Path) -> None:
    kept = ring(tmp_path, RingLimits())
    for _ in range(MOST_FROZEN):
        kept.append([b"{}\n"])
        kept.freeze("signal")
    kept.append([b"{}\n"])
    with pytest.raises(FileExistsError, match="move or delete"):
        kept.freeze("signal")
    assert segments_of(kept.path)
