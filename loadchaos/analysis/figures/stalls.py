"""StallFigures: the longest time in which requests were in flight and nothing arrived from the server.

It needs only the rows of the load, so it is the same with and without a gateway in front of the server. Tokens are known to
half a heartbeat, ends of answers exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadchaos.analysis.state.limits import STREAMED_S, beyond_gaps_ns
from loadchaos.analysis.state.prefill_time import PrefillTime, Prompts
from loadchaos.core.latency import LOWER_BOUNDS
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import BeginRow, EndRow, HeartbeatRow, StateRow
from loadchaos.core.limits import HEARTBEAT_S, SILENT_STREAMS, TOLD_STALL_S
from loadchaos.core.model import READS_AT_ONCE
from loadchaos.core.units import NS_PER_S

_LATE_NS = NS_PER_S  # after the heartbeat before: we did not run ourselves, and saw no tokens
_FRESH_NS = 2 * NS_PER_S
_HALF_BEAT_NS = round(HEARTBEAT_S * NS_PER_S / 2)
_STREAMED_BEATS = round(STREAMED_S / HEARTBEAT_S)
_STALL_NS = round(TOLD_STALL_S * NS_PER_S)
_UP = frozenset({"healthy", "starting"})
_CHAINED_NS = NS_PER_S  # a client that was given up sends its next request within it
_JOINED_NS = NS_PER_S
"""A prompt that comes so long after the last token may be computed in the silent step. A later one waits for the end of that
step. It explains no silence; else prompts of a load that goes on would explain any.
"""


@dataclass(frozen=True)
class Stall:
    """A time without tokens and answers. `requests` waited for all of it or joined in it; `streams` of them stream (at
    most three a worker are known), and `prompts` is True while prompts waited, too. `replica`: the only one that it was
    at, "" where it is not known. `limit_ns`: from there on it was longer than waiting prompts and the gaps before explain.
    `settled`: the server's gaps were known.
    """

    begin_ns: int
    end_ns: int
    requests: int
    streams: int = 0
    prompts: bool = False
    replica: str = ""
    limit_ns: int = _STALL_NS
    settled: bool = False

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def seconds(self) -> float:
        return self.ns / NS_PER_S

    @property
    def long(self) -> bool:
        """True where it is to be told: a few requests that wait for their first token may wait in a queue."""
        return self.ns > self.limit_ns and (self.streams >= SILENT_STREAMS or (self.streams > 0 and not self.prompts))

    @property
    def unexplained(self) -> bool:
        """True where everybody waited for longer than prompts, gaps and first steps of the server explain."""
        return self.long and self.streams >= SILENT_STREAMS and self.settled


@dataclass(frozen=True)
class _Beat:
    at_ns: int
    in_flight: int
    silences_ns: tuple[int, ...]
    prompts: Prompts


class StallFigures(RowFold):
    """Folds begins, ends, heartbeats and states. `longest` is None while no request was in flight."""

    def __init__(self) -> None:
        self.longest: Stall | None = None
        self.told: Stall | None = None
        """The longest one beyond its limit. One that nothing explains comes before any other."""
        self._sent: dict[str, tuple[int, str]] = {}  # requests in flight whose client reads at once: when, worker
        self._slow: dict[str, str] = {}  # the others
        self._unanswered_ns: int | None = None  # the oldest request given up since the newest progress
        self._progress_ns = self._ended_ns = 0
        self._gap_ns = 0  # the longest stall that is over
        self._beats: dict[str, _Beat] = {}  # by worker
        self._streamed = 0  # heartbeats with tokens
        self._streamed_ns = 0
        self._prefill = PrefillTime()
        self._states: dict[str, tuple[bool, int]] = {}  # by replica: up, since when

    # --- rows in --------------------------------------------------------------------------------------------------------

    def on_begin(self, row: BeginRow) -> None:
        self._prefill.on_begin(row)
        id_, worker, at_ns = str(row["id"]), str(row.get("file", "")), int(row["at_ns"])
        if row.get("behaviour", "plain") not in READS_AT_ONCE:
            self._slow[id_] = worker
            return
        if not self._sent and at_ns - self._ended_ns > _CHAINED_NS:
            self._unanswered_ns = None
        self._sent[id_] = at_ns, worker

    def on_end(self, row: EndRow) -> None:
        self._prefill.on_end(row)
        at_ns, outcome = int(row["at_ns"]), row.get("outcome")
        if outcome == "ok":
            if first_ns := row.get("first_token_ns"):
                self._progressed(min(first_ns, at_ns))
            self._progressed(row.get("last_byte_ns") or at_ns)
        id_ = str(row.get("id"))
        self._slow.pop(id_, None)
        if (sent := self._sent.get(id_)) is None:
            return
        self._note(at_ns)
        del self._sent[id_]
        self._ended_ns = max(self._ended_ns, at_ns)
        if outcome in LOWER_BOUNDS:
            self._unanswered_ns = min(sent[0], self._unanswered_ns or sent[0])

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        at_ns, worker = int(row.get("at_ns") or 0), str(row.get("file", row.get("worker", "")))
        before, tokens = self._beats.get(worker), int(row.get("tokens") or 0) > 0
        prompts = self._prefill.on_heartbeat(row, worker)
        since = [ns for ns, _ in self._sent.values()]
        if before is not None and since and at_ns - self._begin_ns(since) > max(_JOINED_NS, self._gap_ns):
            prompts = min(before.prompts, prompts, key=sum)
        silences = tuple(int(ns) for ns in row.get("stream_silences_ns") or ())
        self._beats[worker] = _Beat(at_ns, int(row.get("in_flight") or 0), silences, prompts)
        if before is not None and at_ns - before.at_ns > _LATE_NS:
            self._forget(at_ns)
        elif tokens:
            self._progressed(at_ns - _HALF_BEAT_NS)
            if at_ns - self._streamed_ns > _HALF_BEAT_NS:
                self._streamed, self._streamed_ns = self._streamed + 1, at_ns
        else:
            self._note(at_ns)

    def on_state(self, row: StateRow) -> None:
        if row.get("engine") is None:
            self._states[str(row.get("replica") or "")] = row.get("to") in _UP, int(row.get("at_ns") or 0)

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _progressed(self, at_ns: int) -> None:
        if at_ns <= self._progress_ns:
            return
        over = self._note(at_ns)
        self._gap_ns = max(self._gap_ns, over)
        self._progress_ns, self._unanswered_ns = at_ns, None

    def _forget(self, at_ns: int) -> None:
        """Begin anew: what arrived until `at_ns` is not known."""
        self._progress_ns, self._unanswered_ns = max(self._progress_ns, at_ns), None

    def _note(self, at_ns: int) -> int:
        """Note the stall that goes on at `at_ns`. Returns its length, 0 where it is none worth to be noted."""
        least_ns = 0 if self.longest is None else min(self.longest.ns, _STALL_NS)
        if not self._sent or at_ns - self._progress_ns <= least_ns:
            return 0
        since = [ns for ns, worker in self._sent.values() if self._fresh(worker, at_ns)]
        if not since or at_ns <= min(since):
            return 0
        begin_ns = self._begin_ns(since)
        if at_ns - begin_ns < least_ns:
            return 0
        stall = self._stall(begin_ns, at_ns, sum(ns < at_ns for ns in since))
        if self.longest is None or stall.ns > self.longest.ns:
            self.longest = stall
        if stall.long and (self.told is None or (stall.unexplained, stall.ns) > (self.told.unexplained, self.told.ns)):
            self.told = stall
        elif self.told is not None and self.told.begin_ns == stall.begin_ns and stall.ns > self.told.ns:
            self.told = replace(self.told, end_ns=stall.end_ns, requests=max(self.told.requests, stall.requests))
        return stall.ns

    def _begin_ns(self, since: list[int]) -> int:
        """Begin of the silence, while requests wait that were sent at these times."""
        oldest_ns = min(since) if self._unanswered_ns is None else min(self._unanswered_ns, *since)
        return max(self._progress_ns, oldest_ns)

    def _stall(self, begin_ns: int, end_ns: int, begun: int) -> Stall:
        beats = [(worker, beat) for worker, beat in self._beats.items() if self._fresh(worker, end_ns)]
        slow = list(self._slow.values())
        in_flight = sum(max(0, beat.in_flight - slow.count(worker)) for worker, beat in beats)
        waited_ns = (end_ns - begin_ns) // 2
        streams = sum(ns + end_ns - beat.at_ns >= waited_ns for _, beat in beats for ns in beat.silences_ns)
        waiting = [beat.prompts for _, beat in beats]
        limit_ns = beyond_gaps_ns(_STALL_NS, self._gap_ns) + self._prefill.allowed_ns(waiting)
        return Stall(
            begin_ns=begin_ns,
            end_ns=end_ns,
            requests=max(begun, in_flight),
            streams=streams,
            prompts=any(map(any, waiting)),
            replica=self._only_replica(begin_ns),
            limit_ns=limit_ns,
            settled=self._streamed >= _STREAMED_BEATS,
        )

    def _fresh(self, worker: str, at_ns: int) -> bool:
        beat = self._beats.get(worker)
        return beat is None or at_ns - beat.at_ns <= _FRESH_NS

    def _only_replica(self, begin_ns: int) -> str:
        """The replica that has all traffic, or the only one of several that was not well meanwhile."""
        bad = [name for name, (up, since_ns) in self._states.items() if not up or since_ns > begin_ns]
        found = list(self._states) if len(self._states) == 1 else bad
        return found[0] if len(found) == 1 else ""
