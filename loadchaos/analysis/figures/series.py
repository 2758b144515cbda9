"""Time series of a whole run for charts, in points of equal length.

Points are seconds at first and are merged in pairs as the run grows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.analysis.figures.time_bucket import Bucket, numbers_of
from loadchaos.core.latency import sample_of
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import (
    AttackRow,
    BeginRow,
    ConfigurationRow,
    DeviceRow,
    EndRow,
    GapRow,
    HeartbeatRow,
    LaunchRow,
    MetricsRow,
    MissedRow,
    PreflightRow,
    RunRow,
    StateRow,
)
from loadchaos.core.model import Row
from loadchaos.core.units import NS_PER_S

POINTS = 4000
"""Points at most: a run of an hour keeps its seconds, a run of a day has points of 32 s."""

_UNTIMED = frozenset({"header", "log", "facts", "failure", "incident"})
"""Kinds of rows that no chart shows."""


@dataclass(frozen=True)
class Span:
    """Time span of a state, attack, load or incident. Seconds since the origin of the series."""

    lane: str
    name: str
    from_s: float
    to_s: float
    text: str = ""


class Series(RowFold):
    """Time series and spans of a run, folded from all of its rows.

    The origin (0 s) is that of the verdict: the first request, else the start of the load, else the first row. A latency
    is drawn at its end: a TTFT at the first token, an E2E and an outcome at the end of the answer.

    Args:
        at_most: most points.
        answers: figures of the same rows that are folded elsewhere; None: the series folds them.
    """

    def __init__(self, at_most: int = POINTS, *, answers: AnswerFigures | None = None) -> None:
        self.answers = answers if answers is not None else AnswerFigures()
        self._folds_answers = answers is None
        self._at_most = at_most
        self.width_s = 1
        self.begin_ns: int | None = None
        self.last_ns = 0
        self._utc_ns: int | None = None  # UTC minus the monotonic clock
        self.load_ns: int | None = None
        self.first_sent_ns: int | None = None
        self._buckets: defaultdict[int, Bucket] = defaultdict(Bucket)  # index from begin_ns, in widths
        self._open: dict[tuple[str, str], tuple[int, str, str]] = {}  # (lane, key) -> since, name, text
        self._closed: list[tuple[str, str, int, int, str]] = []
        self.configuration: ConfigurationRow | None = None
        self.remarks: list[str] = []  # about questions that this server is not asked
        self.defects: tuple[str, ...] = ()  # planted in the embedded server

    def fold(self, row: Row) -> None:
        at, kind = row.get("at_ns"), row.get("row")
        if kind == "header" and row.get("file") == "events.jsonl":
            self._utc_ns = int(row["utc_ns"]) - int(row["mono_ns"])
        if self._folds_answers:
            self.answers.fold(row)
        if not isinstance(at, int) or kind in _UNTIMED:
            return
        if self.begin_ns is None:
            self.begin_ns = at
        if at > self.last_ns:
            self.last_ns = at
        super().fold(row)

    # -- rows ----------------------------------------------------------------------------------------------------

    def on_begin(self, row: BeginRow) -> None:
        at = row["at_ns"]
        self.first_sent_ns = at if self.first_sent_ns is None else min(self.first_sent_ns, at)
        self._bucket(at).begun += 1

    def on_end(self, row: EndRow) -> None:
        at = row["at_ns"]
        self._bucket(at).outcomes[str(row.get("outcome"))] += 1
        sample = sample_of(row)
        if sample is None:
            return
        if sample.ttft_ns is not None:  # it belongs where the token came
            self._bucket(row.get("first_token_ns") or at).latency.ttft.add(sample.ttft_ns)
        self._bucket(at).latency.add(sample, ttft=False)

    def on_missed(self, row: MissedRow) -> None:
        self._bucket(row["at_ns"]).outcomes["missed"] += int(row.get("count") or 1)

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self._bucket(row["at_ns"]).on_heartbeat(row)

    def on_metrics(self, row: MetricsRow) -> None:
        key = f"{row.get('replica')}/{row.get('engine')}"
        self._bucket(row["at_ns"]).server[key] = numbers_of(row)

    def on_device(self, row: DeviceRow) -> None:
        self._bucket(row["at_ns"]).devices[f"{row.get('host')}/{row.get('device')}"] = numbers_of(row)

    def on_state(self, row: StateRow) -> None:
        at = row["at_ns"]
        replica = str(row.get("replica") or "server")
        text = "; ".join(str(s) for s in row.get("signs") or [])
        self._close("state:" + replica, replica, at)
        self._open["state:" + replica, replica] = (at, str(row.get("to")), text)

    def on_attack(self, row: AttackRow) -> None:
        at = row["at_ns"]
        lane, key = "attack:" + str(row.get("attack")), f"{row.get('n')}/{row.get('replica')}"
        what = row.get("what")
        if what == "begin":
            self._open[lane, key] = (at, str(row.get("attack")), str(row.get("text") or ""))
        elif what in {"end", "undo"}:
            self._close(lane, key, at, " failed" if row.get("ok") is False else "")

    def on_configuration(self, row: ConfigurationRow) -> None:
        self.configuration = row

    def on_preflight(self, row: PreflightRow) -> None:
        if row.get("ok") and row.get("name") == "images":
            self.remarks.append(str(row.get("text")))

    def on_launch(self, row: LaunchRow) -> None:
        words = [str(word) for word in row.get("command") or ()]
        self.defects = tuple(value for option, value in pairwise(words) if option == "--defect")

    def on_run(self, row: RunRow) -> None:
        at = row["at_ns"]
        what = row.get("what")
        if what == "load_begin":
            self.load_ns = at
            self._open["load", "load"] = (at, "load", "")
        elif what in {"load_end", "end"}:
            self._close("load", "load", at)

    def on_gap(self, row: GapRow) -> None:
        at = row["at_ns"]
        since = at - round(float(row.get("seconds") or 0) * NS_PER_S)
        self._closed.append(("gap", str(row.get("source")), since, at, str(row.get("why") or "")))

    # -- folding -------------------------------------------------------------------------------------------------

    def _close(self, lane: str, key: str, at: int, suffix: str = "") -> None:
        if (lane, key) in self._open:
            since, name, text = self._open.pop((lane, key))
            self._closed.append((lane, name, since, at, text + suffix))

    def _bucket(self, at: int) -> Bucket:
        begin = self.begin_ns if self.begin_ns is not None else at
        index = max(0, at - begin) // (self.width_s * NS_PER_S)
        while index >= self._at_most:
            self._halve()
            index //= 2
        return self._buckets[index]

    def _halve(self) -> None:
        self.width_s *= 2
        old, self._buckets = self._buckets, defaultdict(Bucket)
        for index in sorted(old):
            self._buckets[index // 2].merge(old[index])

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def origin_ns(self) -> int:
        return self.first_sent_ns or self.load_ns or self.begin_ns or 0

    @property
    def origin_utc_s(self) -> float | None:
        """Unix time of 0 s; None if the record has no header."""
        return None if self._utc_ns is None else (self.origin_ns + self._utc_ns) / NS_PER_S

    def seconds(self, at_ns: int) -> float:
        return (at_ns - self.origin_ns) / NS_PER_S

    def points(self) -> list[tuple[float, Bucket | None]]:
        """(start in seconds, bucket or None) of each point, in order."""
        if not self._buckets or self.begin_ns is None:
            return []
        start = (self.begin_ns - self.origin_ns) / NS_PER_S
        return [(start + i * self.width_s, self._buckets.get(i)) for i in range(max(self._buckets) + 1)]

    def spans(self) -> list[Span]:
        open_spans = [(lane, name, since, self.last_ns, text) for (lane, _), (since, name, text) in self._open.items()]
        spans = sorted(self._closed + open_spans, key=lambda s: s[2])
        return [Span(lane, name, self.seconds(a), self.seconds(b), text) for lane, name, a, b, text in spans]
