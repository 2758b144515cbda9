"""Fold TTFT, TTFO, ITL, TPOT and E2E of requests from `end` rows. Verdict and reports use this same fold. TTFT, TTFO
and E2E count from the time a request was due, so that a server that delays the load itself does not look fast. A
request that got no answer in time counts as a lower bound: it took at least until it was given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from loadchaos.core.histogram import LogHistogram, bucket
from loadchaos.core.latency_percentiles import REPORTED_STATISTICS
from loadchaos.core.model import Row
from loadchaos.core.typed_json import IF_SET, Keywords
from loadchaos.core.units import seconds_of

_FEWEST_TOKENS = 2
LATE_NS = 5_000_000
"""A delay of our own client from which on a request was sent late."""
LOWER_BOUNDS = frozenset({"timeout", "stalled"})
"""Outcomes whose time is a lower bound: the answer would have come later, or never."""
AT_ONCE_NS = 300_000
"""Gap between chunks that arrived together: no server makes tokens of one answer that fast."""
_FEWEST_CHUNKS = 8
_FEWEST_TOGETHER = 3.0
_SHORTEST_NS = 100_000_000  # of an answer whose chunks may be told to have waited
_SHORTEST_BURST_NS = 20_000_000  # between two bursts: chunks of a very fast server share a packet, too
INTERRUPTED = LOWER_BOUNDS | {"reset", "truncated", "stream_error", "aborted"}
"""Outcomes of answers that may end between two tokens: that gap is a lower bound."""


class LatencySample(NamedTuple):
    """Latencies of one request in nanoseconds; None: there was no such event. With `lower_bound` the request had no
    answer in time, and TTFT and E2E are what it took at least.
    """

    ttft_ns: int | None
    ttfo_ns: int | None
    e2e_ns: int | None
    gaps: LogHistogram
    lower_bound: bool = False
    tpot_ns: float | None = None


_newest: list[tuple[Row, LatencySample | None]] = [({}, None)]
"""The newest row and its sample: verdict and charts ask for it in turn."""


def sample_of(end: Row) -> LatencySample | None:
    """Measure the request of an `end` row. Returns None where its times say nothing about the server: those of a client
    that is slow on purpose, and of most failures. Of an answer that was interrupted the gaps between tokens count.
    """
    newest, sample = _newest[0]
    if newest is not end:
        sample = _measure(end)
        _newest[0] = end, sample
    return sample


def _measure(end: Row) -> LatencySample | None:
    due_ns, outcome = _due_ns(end), end.get("outcome")
    if due_ns is None:
        return None
    if outcome == "ok":
        if unread_text(end):
            answer_ns = _since(due_ns, end.get("first_answer_ns"))
            return LatencySample(
                None, answer_ns, _since(due_ns, end.get("last_byte_ns") or end["at_ns"]), LogHistogram()
            )
        gaps = LogHistogram(end.get("itl_hist"))
        return LatencySample(
            _since(due_ns, end.get("first_token_ns")),
            _since(due_ns, end.get("first_answer_ns")),
            _since(due_ns, end.get("last_byte_ns") or end["at_ns"]),
            gaps,
            False,  # by place: this is the work of every row
            _tpot_ns(end, gaps),
        )
    if outcome in LOWER_BOUNDS:
        ended_ns = end["at_ns"]
        ttft_ns = _since(due_ns, end.get("first_token_ns") or ended_ns)
        return LatencySample(
            ttft_ns, None, _since(due_ns, ended_ns), LogHistogram(end.get("itl_hist")), lower_bound=True
        )
    if outcome in INTERRUPTED and end.get("itl_hist"):
        return LatencySample(None, None, None, LogHistogram(end["itl_hist"]))
    return None


def unread_text(end: Row) -> str:
    """Field of the chunks of an `end` row whose text nobody reads; "" without. When its first token came is not known."""
    return str((end.get("detail") or {}).get("unread_text") or "")


def ttft_ns(end: Row) -> int | None:
    """Time to first token of an `end` row; None where no token came, or it is not known when."""
    due_ns = _due_ns(end)
    return None if due_ns is None or unread_text(end) else _since(due_ns, end.get("first_token_ns"))


def e2e_ns(end: Row) -> int | None:
    """Time to the last byte, or to its end, of an `end` row with any outcome."""
    due_ns = _due_ns(end)
    return None if due_ns is None else _since(due_ns, end.get("last_byte_ns") or end.get("at_ns"))


def tpot_ns(end: Row) -> float | None:
    """Time per output token of an `end` row; None of fewer than two. It is the time from the first token to the last,
    divided by the tokens after the first (vLLM's definition). The server counts the tokens; without usage it is the
    number of chunks.
    """
    return None if unread_text(end) else _tpot_ns(end, LogHistogram(end.get("itl_hist")))


def _tpot_ns(end: Row, gaps: LogHistogram) -> float | None:
    tokens = int(end.get("completion_tokens") or end.get("chunks") or 0)
    whole_ns = end.get("gaps_ns") or 0 if end.get("folded") else gaps.total
    return whole_ns / (tokens - 1) if whole_ns and tokens >= _FEWEST_TOKENS else None


def send_delay_ns(end: Row) -> int | None:
    """Time from due to sent without connecting, which takes long where the server is slow to accept. None: not sent."""
    due_ns, sent_ns = end.get("due_ns"), end.get("sent_ns")
    if due_ns is None or sent_ns is None:
        return None
    return max(0, int(sent_ns) - int(due_ns) - int((end.get("detail") or {}).get("connect_ns") or 0))


def own_delay_ns(end: Row) -> int:
    """Time by which our own client sent a request late; 0 where it is short."""
    delay_ns = send_delay_ns(end) or 0
    return delay_ns if delay_ns >= LATE_NS else 0


def _due_ns(end: Row) -> int | None:
    if (detail := end.get("detail")) and detail.get("slowed"):  # a client slow on purpose measures itself
        return None
    due_ns = end.get("due_ns")
    return end.get("sent_ns") if due_ns is None else due_ns


def _since(due_ns: int, at_ns: int | None) -> int | None:
    return max(0, at_ns - due_ns) if at_ns else None


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of times in seconds; null without samples."""

    mean: float | None = None
    p50: float | None
    p90: float | None
    p95: float | None = None
    p99: float | None
    max: float | None = None
    n: Annotated[int, Keywords(minimum=0)]

    def of(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value


@dataclass(frozen=True, kw_only=True)
class LatencyFigures:
    """Statistics of the latencies of requests, as in verdict.json."""

    ttft_s: Statistics
    ttfo_s: Statistics | None = None
    itl_s: Statistics
    tpot_s: Statistics | None = None
    e2e_s: Statistics
    lower_bounds: Annotated[
        int, Keywords(minimum=0), "requests that timed out: they are in the figures with what they took at least"
    ] = 0
    void: Annotated[Mapping[str, str], "latencies that mean nothing, or are not known, with the reason"] = field(
        default_factory=dict, metadata=IF_SET
    )

    def of(self, name: str) -> Statistics | None:
        found: Statistics | None = getattr(self, f"{name}_s")
        return found


def statistics_of(histogram: LogHistogram) -> Statistics:
    found = {name: seconds_of(histogram.statistic(name), 5) for name in REPORTED_STATISTICS}
    return Statistics(**found, n=histogram.n)


class LatencyHistograms:
    """Histograms of TTFT, TTFO, ITL, TPOT and E2E in nanoseconds. `late` has those of requests that our own client sent
    late: as they are, and without its delay.
    """

    __slots__ = (
        "_by_name", "chunks", "e2e", "itl", "late", "lower_bounds", "streams", "tpot", "ttfo", "ttft", "unread",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ttft, self.ttfo, self.itl, self.e2e = LogHistogram(), LogHistogram(), LogHistogram(), LogHistogram()
        self.tpot = LogHistogram()
        self._by_name = {"ttft": self.ttft, "ttfo": self.ttfo, "itl": self.itl, "tpot": self.tpot, "e2e": self.e2e}
        self.late: dict[str, tuple[LogHistogram, LogHistogram]] = {}
        self.lower_bounds = 0
        self.chunks = self.streams = 0  # of answers whose gaps count
        self.unread: Counter[str] = Counter()  # answers by the field whose text nobody reads

    def on_end(self, end: Row) -> LatencySample | None:
        """Fold an `end` row; returns what was counted, None where nothing was."""
        sample = sample_of(end)
        if sample is not None:
            self.add(sample)
            self.add_delay(end, sample)
            self.add_chunks(end)
        return sample

    def add_chunks(self, end: Row) -> None:
        """Count the chunks of a request that was added."""
        if field_name := unread_text(end):
            self.unread[field_name] += 1
        elif chunks := int(end.get("chunks") or 0):
            self.chunks += chunks
            self.streams += 1

    def void(self) -> dict[str, str]:
        """Latencies that mean nothing or are not known, with the reason.

        A server may put several tokens into a chunk (speculative decoding, an interval of streaming): its chunks arrive one
        by one. Chunks that arrive together waited for each other on the path, so that times between them are those of a
        buffer.
        """
        found: dict[str, str] = {}
        if self.unread:
            n, name = self.unread.total(), self.unread.most_common(1)[0][0]
            why = f"chunks of {n:,} answers carry text in the field `{name}`, which is not read"
            found = dict.fromkeys(("ttft", "itl", "tpot"), why)
        if self.chunks < _FEWEST_CHUNKS * max(1, self.streams) or (self.e2e.mean() or 0) < _SHORTEST_NS:
            return found
        apart = LogHistogram({i: n for i, n in self.itl.counts.items() if i > bucket(AT_ONCE_NS)})
        arrivals = self.streams + apart.n
        together = self.chunks / arrivals
        if together < _FEWEST_TOGETHER or (apart.quantile(0.5) or _SHORTEST_BURST_NS) < _SHORTEST_BURST_NS:
            return found
        if arrivals < 1.5 * self.streams:
            why = f"{together:.3g} chunks arrive at once, at the end of the answer, as from a proxy that buffers"
        else:
            why = f"chunks arrive in bursts of {together:.3g}, as from a proxy that buffers"
        return {**dict.fromkeys(("itl", "tpot"), why), **found}

    def add_delay(self, end: Row, sample: LatencySample) -> None:
        """Note how late our own client sent a request that was added."""
        delay_ns = 0 if sample.lower_bound else own_delay_ns(end)
        if not delay_ns:
            return
        for name, value in (("ttft", sample.ttft_ns), ("ttfo", sample.ttfo_ns), ("e2e", sample.e2e_ns)):
            if value is not None:
                whole, without = self.late.setdefault(name, (LogHistogram(), LogHistogram()))
                whole.add(value)
                without.add(max(0, value - delay_ns))

    def without_own_delay(self, name: str) -> LogHistogram | None:
        """Histogram if all requests had been sent in time; None: they were."""
        if name not in self.late:
            return None
        found = LogHistogram()
        found.merge(self[name])
        found.remove(self.late[name][0])
        found.merge(self.late[name][1])
        return found

    def add(self, sample: LatencySample, *, ttft: bool = True) -> None:
        """Count the latencies of one request, its TTFT only with `ttft`."""
        if ttft and sample.ttft_ns is not None:
            self.ttft.add(sample.ttft_ns)
        if sample.ttfo_ns is not None:
            self.ttfo.add(sample.ttfo_ns)
        if sample.e2e_ns is not None:
            self.e2e.add(sample.e2e_ns)
        if sample.tpot_ns is not None:
            self.tpot.add(sample.tpot_ns)
        self.itl.merge(sample.gaps)
        self.lower_bounds += sample.lower_bound

    def merge(self, other: LatencyHistograms) -> None:
        for name, histogram in other.items():
            self[name].merge(histogram)
        self.lower_bounds += other.lower_bounds
        self.chunks += other.chunks
        self.streams += other.streams
        self.unread.update(other.unread)
        for name, (whole, without) in other.late.items():
            mine = self.late.setdefault(name, (LogHistogram(), LogHistogram()))
            mine[0].merge(whole)
            mine[1].merge(without)

    def __getitem__(self, name: str) -> LogHistogram:
        return self._by_name[name]

    def items(self) -> Iterable[tuple[str, LogHistogram]]:
        return self._by_name.items()

    def figures(self) -> LatencyFigures:
        found = {f"{name}_s": statistics_of(histogram) for name, histogram in self.items()}
        void = {f"{name}_s": why for name, why in self.void().items()}
        return LatencyFigures(**found, lower_bounds=self.lower_bounds, void=void)
