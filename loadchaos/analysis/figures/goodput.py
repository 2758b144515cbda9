"""Goodput: requests that succeed within the latency limits of `slo`.

vLLM's benchmark has the same definition. Here TTFT and E2E count from the time a request was due, and requests that were
not sent because `max_in_flight` was reached had to succeed, too: a server that is too slow must not look good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loadchaos.analysis.figures.requests import Part, sum_of
from loadchaos.analysis.figures.throughput import per_s
from loadchaos.analysis.verdict.model import GoodputFigures, GoodputPart
from loadchaos.core.goodput import counts_for_goodput, expected_of, figures_of
from loadchaos.core.latency import own_delay_ns
from loadchaos.core.ledger.rows import EndRow, MissedRow
from loadchaos.core.units import NS_PER_S, significant

_FROM_DUE = ("ttft", "e2e")
"""Figures that count from the time a request was due: a delay of our own client is in them."""


class GoodputCount:
    """Counts of good requests by traffic, of those that had to be."""

    def __init__(self) -> None:
        self._due: Counter[str] = Counter()
        self._good: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._over: Counter[str] = Counter()
        self._without_gaps = 0
        self._measured: Counter[str] = Counter()
        self._limits: tuple[str, ...] = ()

    def on_end(self, row: EndRow, limits_s: Mapping[str, float]) -> None:
        if not counts_for_goodput(row):
            return
        traffic = str(row.get("traffic", ""))
        self._due[traffic] += 1
        if str(row.get("outcome")) not in expected_of(row):
            self._over["failed"] += 1
            return
        self._without_gaps += bool(row.get("folded")) and any(name.startswith("itl_") for name in limits_s)
        self._limits = tuple(limits_s)
        figures = figures_of(row, limits_s)
        self._measured.update(figures)
        over = [name for name, seconds in figures.items() if seconds > limits_s[name]]
        self._over.update(over)
        self._good[traffic] += not over
        if over and (delay_s := own_delay_ns(row) / NS_PER_S):
            self._late[traffic] += all(name in _FROM_DUE and figures[name] - delay_s <= limits_s[name] for name in over)

    def on_missed(self, row: MissedRow) -> None:
        if row.get("why") == "no_slot":
            n = int(row.get("count") or 0)
            self._due[str(row.get("traffic", ""))] += n
            self._over["not_sent"] += n

    def unproved(self) -> str | None:
        """Reason why the goodput may be too high, None without one."""
        if n := self._without_gaps:
            return f"{n:,} answers were recorded without their gaps, as disk space was low"
        missing = [name for name in self._limits if not self._measured[name]]
        if missing and self._good.total():
            return f"no answer had {' or '.join(missing)}: was it streamed?"
        return None

    def parts(self, *, in_time: bool = False) -> dict[str, Part]:
        """Good requests of those that had to be, by traffic ("": all). `in_time`: as if our own client had sent each one
        in time.
        """
        parts = {
            traffic: Part(self._good[traffic] + in_time * self._late[traffic], n) for traffic, n in self._due.items()
        }
        return {**parts, "": sum_of(parts.values())}

    def figures(self, limits_s: Mapping[str, float], seconds: float | None) -> GoodputFigures:
        parts = self.parts()
        whole = parts.pop("")
        return GoodputFigures(
            slo_s=dict(limits_s),
            good=whole.n,
            due=whole.whole,
            share=significant(whole.share, 6),
            good_per_s=per_s(whole.n, seconds),
            over=dict(self._over.most_common()),
            by_traffic={
                t: GoodputPart(good=p.n, due=p.whole, share=significant(p.share, 6)) for t, p in sorted(parts.items())
            },
        )
