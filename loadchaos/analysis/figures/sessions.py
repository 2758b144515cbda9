"""Sessions: conversations whose answers were sent back.

A session is finished when all of its questions have their answer. Of one that is lost, the questions without an answer are
lost turns: none is left out of the figures. One that is cut had no room in the context for a question or a tool's result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from loadchaos.analysis.verdict.model import SessionFigures, SessionStatistics, TrafficSessions
from loadchaos.core.histogram import LogHistogram
from loadchaos.core.latency import LOWER_BOUNDS, statistics_of
from loadchaos.core.ledger.rows import BeginRow, ConversationEnd, ConversationRow
from loadchaos.core.session_ids import place_of
from loadchaos.core.units import seconds_of

_COUNTS = ("turns", "turns_lost", "turns_left", "turns_cut", "requests", "tool_calls", "bad_calls")
_MUST_CALL = ("required", "named")
SESSION_ENDS: tuple[ConversationEnd, ...] = get_args(ConversationEnd)
_FIGURES = ("sessions", *SESSION_ENDS, "planned_turns", *_COUNTS)
_STOPPED = "stopped"
MOST_STOPPED = 0.05
"""Share of sessions that a stop may end without an effect on the times of the others."""
MOST_CUT = 0.05
"""Share of the planned turns of a traffic that may have no room in the context."""


class CutTurns(NamedTuple):
    """Turns of a traffic that had no room in the context. They were not sent, so they prove nothing."""

    traffic: str
    turns: int
    planned: int

    @property
    def share(self) -> float:
        return self.turns / self.planned

    @property
    def too_many(self) -> bool:
        return self.share > MOST_CUT

    @property
    def text(self) -> str:
        return (
            f"{self.turns:,} of {self.planned:,} turns of {self.traffic} ({self.share:.1%}) had no room in the context"
        )


class CallsMade(NamedTuple):
    """Tool calls of a traffic whose requests demand one. Without a call that got a result no tool loop was tested."""

    traffic: str
    calls: int
    bad: int
    answers: int

    @property
    def text(self) -> str:
        bad = f"; {self.bad:,} calls were cut or had no JSON object as arguments" if self.bad else ""
        return f"{self.calls:,} tool calls of {self.traffic} got a result, in {self.answers:,} requests{bad}"


@dataclass
class SessionTimes:
    """Times of sessions in ns, from their due time to their last answer. A session that was lost to a timeout counts as
    a lower bound. `stopped` ones still went on when the load ended: they have no time here, so that the times of the
    others are too short.
    """

    histogram: LogHistogram = field(default_factory=LogHistogram)
    lower_bounds: int = 0
    stopped: int = 0

    def merge(self, other: SessionTimes) -> None:
        self.histogram.merge(other.histogram)
        self.lower_bounds += other.lower_bounds
        self.stopped += other.stopped

    def statistics(self) -> SessionStatistics:
        return SessionStatistics(**vars(statistics_of(self.histogram)), lower_bounds=self.lower_bounds)

    @property
    def too_short(self) -> str:
        """Reason why the times prove no met limit; empty: they do. A load that ends stops the longest sessions rather
        than the short ones.
        """
        every = self.histogram.n + self.stopped
        if self.stopped <= MOST_STOPPED * every:
            return ""
        return f"{self.stopped:,} of {every:,} sessions went on when the load was stopped: the longest are missing"


class SessionCount:
    """Folds the rows of sessions."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}  # planned turns by id
        self.by_traffic: dict[str, Counter[str]] = {}
        """Counts by traffic, with the names of verdict.json."""
        self._times: dict[str, SessionTimes] = {}
        self._think_ns: Counter[str] = Counter()
        self._why: Counter[str] = Counter()
        self._tools: dict[str, str] = {}  # tool_choice of the traffic whose sessions have tools

    def on_conversation(self, row: ConversationRow, *, timed: bool) -> None:
        name, traffic = str(row.get("id")), str(row.get("traffic", ""))
        counts = self.by_traffic.setdefault(traffic, Counter())
        if row.get("what") == "begin":
            self._open[name] = int(row.get("planned_turns") or 0)
            counts["sessions"] += 1
            counts["planned_turns"] += self._open[name]
            if row.get("tools"):
                self._tools[traffic] = str(row["tools"])
            return
        if self._open.pop(name, None) is None:
            return  # its begin is not in the ledger
        end, why = str(row.get("end")), str(row.get("why") or "")
        counts[end] += 1
        counts.update({key: int(row.get(key) or 0) for key in _COUNTS})  # type: ignore[call-overload]  # keys of the row
        self._think_ns[traffic] += int(row.get("think_ns") or 0)
        if end in ("lost", "left"):
            self._why[why or end] += 1
        if timed and (end == "finished" or why in LOWER_BOUNDS):
            times = self._times.setdefault(traffic, SessionTimes())
            times.histogram.add(int(row["at_ns"]) - int(row["due_ns"]))
            times.lower_bounds += end != "finished"
        elif timed and end == "left" and why == _STOPPED:
            self._times.setdefault(traffic, SessionTimes()).stopped += 1

    def is_later(self, row: BeginRow) -> bool:
        """Tell if a request is a later one of a session; the plan has sessions."""
        return bool(self.by_traffic) and place_of(str(row.get("id"))).is_later

    def times_by_traffic(self) -> dict[str, LogHistogram]:
        return {traffic: times.histogram for traffic, times in self._times.items() if times.histogram.n}

    def times(self) -> dict[str, SessionTimes]:
        whole = SessionTimes()
        for times in self._times.values():
            whole.merge(times)
        return {**self._times, "": whole}

    def counts(self) -> dict[str, int]:
        return {"turns_lost": sum(c["turns_lost"] for c in self.by_traffic.values())}

    def unproved(self) -> dict[str, str]:
        """Counts that may be too low, with the reason."""
        if not self.by_traffic:
            return {"turns_lost": "no session began"}
        if self._open:
            return {"turns_lost": f"the end of {len(self._open):,} sessions is not recorded"}
        if (cut := self.cut()) is not None and cut.too_many:
            return {"turns_lost": cut.text}
        return {}

    def cut(self) -> CutTurns | None:
        """Turns without room in the context; None without sessions. They are those of the traffic with the largest
        share of them.
        """
        found = [
            CutTurns(t, c["turns_cut"], c["planned_turns"]) for t, c in self.by_traffic.items() if c["planned_turns"]
        ]
        return max(found, key=lambda cut: cut.share, default=None)

    def calls(self) -> CallsMade | None:
        """Tool calls of the traffic that has to call tools; None without such. It is the one with the fewest."""
        must_call = [(t, self.by_traffic[t]) for t, choice in self._tools.items() if choice in _MUST_CALL]
        found = [CallsMade(t, c["tool_calls"], c["bad_calls"], c["requests"]) for t, c in must_call if c["requests"]]
        return min(found, key=lambda made: made.calls, default=None)

    def figures(self) -> SessionFigures | None:
        if not self.by_traffic:
            return None
        total: Counter[str] = Counter()
        for counts in self.by_traffic.values():
            total.update(counts)
        times = self.times()
        traffics = {
            traffic: TrafficSessions(
                **{name: counts[name] for name in _FIGURES},
                mean_think_s=_mean_s(self._think_ns[traffic], counts["sessions"]),
                session_e2e_s=times.get(traffic, SessionTimes()).statistics(),
                tools=self._tools.get(traffic),
            )
            for traffic, counts in sorted(self.by_traffic.items())
        }
        return SessionFigures(
            **{name: total[name] for name in _FIGURES},
            mean_think_s=_mean_s(self._think_ns.total(), total["sessions"]),
            session_e2e_s=times[""].statistics(),
            unfinished=len(self._open),
            why=dict(self._why.most_common()),
            by_traffic=traffics,
        )


def _mean_s(sum_ns: int, n: int) -> float | None:
    return seconds_of(sum_ns / n, 5) if n else None
