"""Outages and stalls that the answers to our own requests prove.

They need no view of the server: a gateway or a network may stand in between. An outage is every request failing. A
stall is no token on any request; how long it has to last depends on how the server has streamed before.
"""

from __future__ import annotations

import re
from collections import Counter

from loadchaos.analysis.state.limits import (
    FAST_GAP_NS,
    FAST_S,
    FEWEST_FAILED,
    FIRST_GAPS,
    HUNG_AT_LATEST_NS,
    HUNG_FAST_STREAMS_NS,
    HUNG_SILENT_STREAMS_NS,
    OUTAGE_NS,
    STREAMED_S,
    beyond_gaps_ns,
)
from loadchaos.analysis.state.prefill_time import PrefillTime, Prompts
from loadchaos.core.goodput import expected_of
from loadchaos.core.latency import LOWER_BOUNDS
from loadchaos.core.ledger.rows import BeginRow, EndRow, HeartbeatRow
from loadchaos.core.limits import HEARTBEAT_S
from loadchaos.core.units import NS_PER_S

_BEAT_NS = int(0.8 * HEARTBEAT_S * NS_PER_S)  # heartbeats of several workers within it count once
_STREAMED_BEATS, _FAST_BEATS = round(STREAMED_S / HEARTBEAT_S), round(FAST_S / HEARTBEAT_S)
_FRESH_NS = 2 * NS_PER_S
_NO_EVIDENCE = frozenset({"stalled", "timeout", "aborted", "missed", "unfinished"})
_BROKEN = frozenset({"reset", "connect_error", "truncated", "stream_error"})
_GATEWAY = frozenset({502, 503, 504})
_TLS_ERROR = re.compile(r"^SSL\w*: (?:\[[^\]]*\] )?(.*?)(?: \(_ssl\.c:\d+\))?$")
TLS_LABEL = "TLS connections fail: "
"""Begin of the label of such failures; what follows is the reason."""
_OUR_FAULT = ("assign requested address", "open files")

Stall = tuple[int, str]  # since when, and its sign


class ClientEvidence:
    """Folds heartbeats and ends of our requests."""

    def __init__(self) -> None:
        self._failed: tuple[int, int] | None = None  # first and newest failure without a good answer since
        self._labels: Counter[str] = Counter()
        self._own_errors = 0  # failures among them that a living server may give, too
        self._beats = 0
        self._beat_ns = 0
        self._first_gap_ns = 0  # longest gap before it was known to stream
        self._gap_ns = 0  # longest one since
        self._silences: dict[str, tuple[int, list[int], Prompts]] = {}  # by worker: at_ns, longest silences, prompts
        self._progress_ns = 0
        self._prefill = PrefillTime()
        self._limit_since_ns: int | None = None  # first silence that a time limit ended, without a token since
        self._limit_end_ns = 0

    # --- rows in --------------------------------------------------------------------------------------------------------

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        at_ns, worker = row["at_ns"], str(row.get("file", row.get("worker", "")))
        prompts = self._prefill.on_heartbeat(row, worker)
        self._silences[worker] = (at_ns, [int(ns) for ns in row.get("stream_silences_ns") or ()], prompts)
        if int(row.get("tokens") or 0) > 0 and at_ns - self._beat_ns >= _BEAT_NS:
            self._beat_ns = at_ns
            self._beats += 1

    def on_begin(self, row: BeginRow) -> None:
        self._prefill.on_begin(row)

    def on_end(self, row: EndRow) -> None:
        self._prefill.on_end(row)
        outcome, at_ns = str(row.get("outcome")), row["at_ns"]
        expect = expected_of(row)
        if outcome in LOWER_BOUNDS and outcome not in expect:
            self._limit_ended(row)
        error = str(row.get("error") or "")
        if outcome in _NO_EVIDENCE or any(text in error for text in _OUR_FAULT):
            return
        label, own = _failure(row, outcome)
        if label is None:
            self._answered()
        elif "ok" in expect:
            self._failed = (self._failed[0] if self._failed is not None else at_ns, at_ns)
            self._labels[label] += 1
            self._own_errors += own

    def progressed(self, at_ns: int, gap_ns: int) -> None:
        """Fold progress, `gap_ns` after the progress before. It is a token, a complete answer or a counter that moved."""
        self._answered()
        self._progress_ns = max(self._progress_ns, at_ns)
        self._limit_since_ns = None
        if self._beats < _STREAMED_BEATS:
            self._first_gap_ns = max(self._first_gap_ns, gap_ns)
        else:
            self._gap_ns = max(self._gap_ns, gap_ns)

    def thawed(self) -> None:
        """Learn no times from requests that were in flight in a hang."""
        self._prefill.forget_waiting()

    def forget(self) -> None:
        """Forget failures and stalls: a new process answers."""
        self.thawed()
        self._answered()
        self._limit_since_ns = None

    def _answered(self) -> None:
        self._failed, self._own_errors = None, 0
        self._labels.clear()

    def _limit_ended(self, row: EndRow) -> None:
        at_ns = row["at_ns"]
        alive = "without_token" in row  # its last byte was a comment or an empty delta: no progress
        last_ns = row.get("last_token_ns") if alive else row.get("last_byte_ns")
        since_ns = int(last_ns or row.get("sent_ns") or at_ns)
        longest = max((ns[0] for _, ns, _ in self._silences.values() if ns), default=0)
        if longest < 0.8 * (at_ns - since_ns):
            return  # a behaviour that does not read, or an answer that does not stream
        if since_ns < self._progress_ns - NS_PER_S:
            return  # others had tokens meanwhile
        self._limit_end_ns = at_ns
        if self._limit_since_ns is None or since_ns < self._limit_since_ns:
            self._limit_since_ns = since_ns

    # --- questions ------------------------------------------------------------------------------------------------------

    def outage(self, now_ns: int, *, answers: bool) -> Stall | None:
        """Begin and sign of an outage. `answers`: the server itself, not a gateway, says that it is healthy. Then 500
        is an error of the requests.
        """
        if self._failed is None:
            return None
        first, newest = self._failed
        n = self._labels.total() - (self._own_errors if answers else 0)
        if newest - first < OUTAGE_NS or n < FEWEST_FAILED or (answers and self._own_errors):
            return None
        pending = [
            silences[0] for at_ns, silences, _ in self._fresh(now_ns) if silences and at_ns - silences[0] < first
        ]
        if pending:
            return None  # sent before the first failure, and still waiting
        causes = ", ".join(f"{label}: {count}" for label, count in self._labels.most_common(3))
        return first, f"every request fails for {(newest - first) / NS_PER_S:.1f} s ({causes})"

    def failed_since(self, ns: int) -> bool:
        return self._failed is not None and self._failed[1] > ns

    def stall_limit_ns(self, now_ns: int) -> int:
        return self._base_limit_ns() + self.prefill_ns(now_ns)

    def _base_limit_ns(self) -> int:
        if self._beats < _STREAMED_BEATS:
            return HUNG_AT_LATEST_NS
        fast = self._beats >= _FAST_BEATS and self._gap_ns <= FAST_GAP_NS
        least_ns = max(HUNG_FAST_STREAMS_NS if fast else HUNG_SILENT_STREAMS_NS, round(FIRST_GAPS * self._first_gap_ns))
        return beyond_gaps_ns(least_ns, self._gap_ns)

    def stalled(self, limit_ns: int, now_ns: int) -> int:
        """Number of streams silent for `limit_ns`, counted up to three a worker."""
        return sum(ns + now_ns - at_ns >= limit_ns for at_ns, found, _ in self._fresh(now_ns) for ns in found)

    def limit_stall(self, now_ns: int, *, busy: bool) -> int | None:
        """Begin of a stall of everything in flight that a time limit ended. `busy`: requests are in flight, so that the
        stall continues.
        """
        if self._limit_since_ns is None:
            return None
        since_ns = max(self._limit_since_ns, self._progress_ns)
        prefill_ns = self.prefill_ns(now_ns)
        limit_ns = (self._base_limit_ns() if self._beats >= _STREAMED_BEATS else HUNG_SILENT_STREAMS_NS) + prefill_ns
        until_ns = now_ns if busy else self._limit_end_ns
        return since_ns if until_ns - since_ns >= min(limit_ns, HUNG_AT_LATEST_NS) else None

    def prefill_ns(self, now_ns: int) -> int:
        """Time that prompts in flight without a first token may need."""
        return self._prefill.allowed_ns(prompts for _, _, prompts in self._fresh(now_ns))

    def _fresh(self, now_ns: int) -> list[tuple[int, list[int], Prompts]]:
        return [found for found in self._silences.values() if now_ns - found[0] <= _FRESH_NS]


def _failure(row: EndRow, outcome: str) -> tuple[str | None, bool]:
    """Label of a failure that may be an outage, None for another answer. With True where a living server may give it."""
    status = row.get("status")
    if outcome in _BROKEN:
        if (tls := _TLS_ERROR.match(str(row.get("error") or ""))) is not None:
            return TLS_LABEL + tls[1], False
        names = {"connect_error": "no connection", "stream_error": "error in stream"}
        return names.get(outcome, outcome), outcome == "stream_error"
    if status is None or status < 500 or outcome not in ("http_error", "shed"):
        return None, False
    return f"status {status}", status not in _GATEWAY
