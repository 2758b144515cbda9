"""Compare a client's stream times with the server's stamps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.clients.common import END_OF_STREAM
from bench.server import NO_EVENT

Ns = NDArray[np.int64]
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Seen:
    """Times that a contender reported after a trial.

    `first` are pairs (server's ns, its own ns) of first tokens, where streams can be matched. Otherwise `ttft` are
    its TTFTs, compared as a whole. `gaps` are its ITLs. `reported` are further figures of its own.
    """

    ended: int
    failed: int
    first: Ns | None = None
    ttft: Ns = field(default_factory=lambda: _NONE)
    gaps: Ns = field(default_factory=lambda: _NONE)
    reported: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Truth:
    """Errors in ms: reported minus real TTFT, and ITL percentiles likewise."""

    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float


def of_marks(path: Path, first_ns: int, last_ns: int) -> tuple[Ns, Ns]:
    """Read first tokens (as pairs) and gaps of a .marks file.

    Only streams whose first token came within the given times count.
    """
    marks = np.fromfile(path, np.int64).reshape(-1, 2)
    ends = np.flatnonzero(marks[:, 0] == END_OF_STREAM)
    begins = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else _NONE
    kept = [(b, e) for b, e in zip(begins, ends, strict=True) if e > b and first_ns <= marks[b, 0] <= last_ns]
    pairs = np.array([marks[b] for b, _ in kept], np.int64).reshape(-1, 2)
    gaps = [np.diff(marks[b:e, 1]) for b, e in kept]
    return pairs, np.concatenate(gaps) if gaps else _NONE


def server_gaps(stamps: NDArray[np.void], first_ns: int, last_ns: int) -> Ns:
    """Gaps at which the server sent the tokens of the same streams."""
    tokens = np.sort(stamps[stamps["event"] != NO_EVENT], order=["stream", "event"])
    firsts = tokens[tokens["event"] == 0]
    kept = firsts["stream"][(firsts["sent_ns"] >= first_ns) & (firsts["sent_ns"] <= last_ns)]
    tokens = tokens[np.isin(tokens["stream"], kept)]
    gaps = np.diff(tokens["sent_ns"].astype(np.int64))
    within: Ns = gaps[tokens["event"][1:] != 0]
    return within


def server_ttft(stamps: NDArray[np.void], first_ns: int, last_ns: int) -> Ns:
    """Server's time from reading a request to its first token."""
    read = np.sort(stamps[stamps["event"] == NO_EVENT], order="stream")
    first = np.sort(stamps[stamps["event"] == 0], order="stream")
    both = np.intersect1d(read["stream"], first["stream"])
    read, first = read[np.isin(read["stream"], both)], first[np.isin(first["stream"], both)]
    within = (first["sent_ns"] >= first_ns) & (first["sent_ns"] <= last_ns)
    ttft: Ns = (first["sent_ns"][within] - read["sent_ns"][within]).astype(np.int64)
    return ttft


def compare(seen: Seen, stamps: NDArray[np.void], first_ns: int, last_ns: int) -> Truth | None:
    """Compare; None where nothing was streamed in that time."""
    sent = server_gaps(stamps, first_ns, last_ns)
    if not len(sent) or not len(seen.gaps):
        return None
    if seen.first is not None:
        late = seen.first[:, 1] - seen.first[:, 0]
        ttft_p50, ttft_p99 = _percentile(late, 50), _percentile(late, 99)
    else:
        true = server_ttft(stamps, first_ns, last_ns)
        ttft_p50 = _percentile(seen.ttft, 50) - _percentile(true, 50)
        ttft_p99 = _percentile(seen.ttft, 99) - _percentile(true, 99)
    itl = [_percentile(seen.gaps, q) - _percentile(sent, q) for q in (50, 99)]
    return Truth(ttft_p50, ttft_p99, *itl)


def _percentile(values: Ns, q: float) -> float:
    """Percentile in ms."""
    return float(np.percentile(values, q)) / 1e6 if len(values) else float("nan")
