"""Compare image cache hits of the server with repeats in the ledger.

vLLM's `mm_cache` counts each image and video of a request as one query, and as a hit where it has it. The ledger
names images by their bytes, so the hits are known beforehand: certain once the first use was answered, open while it is
in flight, none before.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import AttackRow, BeginRow, EndRow, LaunchRow, MetricsRow, QuestionRow
from loadchaos.core.model import Decision
from loadchaos.core.units import figure

_KEPT = 50_000
_TOLERANCE = 0.02
_FEWEST = 50
_QUERIES, _HITS = "mm_cache_queries_total", "mm_cache_hits_total"


@dataclass
class _Sent:
    """Images and videos of one request: surely or perhaps known by then."""

    names: list[int]
    images: int
    sure: int
    perhaps: int


class ImageCacheHits(RowFold):
    """Expected and actual image cache hits: `feed` every row, then `check`. Memory: the names of the last 50,000
    images, and what is in flight. `note`: why the last `check` that was required compared nothing.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, bool] = OrderedDict()  # True once a use of it was answered
        self._in_flight: dict[str, _Sent] = {}
        self._answered = _Sent([], 0, 0, 0)
        self._asked = _Sent([], 0, 0, 0)  # images of our own questions since `_base`
        self._unsure = 0  # images of failed requests, looked up or not
        self._why_not = self.note = ""
        self._repeats = False
        self._sides: set[tuple[str, str]] = set()
        self._base: tuple[float, float] | None = None
        self._newest: tuple[float, float] | None = None
        self._expected: tuple[int, int, int, int] = (0, 0, 0, 0)

    def on_attack(self, row: AttackRow) -> None:
        if row.get("what") == "begin":
            self._why_not = "attacks ran during the load"

    def on_launch(self, row: LaunchRow) -> None:
        if row.get("what") == "exit" and not row.get("asked"):
            self._why_not = "the server went down"

    def on_begin(self, row: BeginRow) -> None:
        if not _looked_up(row):
            return
        names = row.get("image_names")
        if names is None:
            self._why_not = f"images of traffic {row.get('traffic')} have no names in the ledger"
            return
        sent = _Sent(list(names), _looked_up(row), 0, 0)
        for name in sent.names:
            answered = self._known.get(name)
            sent.sure += answered is True
            sent.perhaps += answered is False
            self._known[name] = bool(answered)
            self._known.move_to_end(name)
        self._repeats = self._repeats or bool(sent.names)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        self._in_flight[str(row["id"])] = sent

    def on_end(self, row: EndRow) -> None:
        sent = self._in_flight.pop(str(row.get("id")), None)
        if sent is None:
            return
        if row.get("outcome") != "ok":
            self._unsure += sent.images
            return
        self._answered.images += sent.images
        self._answered.sure += sent.sure
        self._answered.perhaps += sent.perhaps
        for name in sent.names:
            self._known[name] = True

    def on_question(self, row: QuestionRow) -> None:
        names = row.get("image_names") or ()
        self._asked.images += len(names)
        self._asked.perhaps += sum(name in self._known for name in names)
        self._known.update(dict.fromkeys(names, True))

    def on_metrics(self, row: MetricsRow) -> None:
        values = row.get("values") or {}
        if _QUERIES not in values or _HITS not in values:
            return
        self._sides.add((str(row.get("replica")), str(row.get("engine"))))
        now = float(values[_QUERIES]), float(values[_HITS])
        if not self._answered.images and not self._in_flight:
            self._base, self._asked = now, _Sent([], 0, 0, 0)
            return
        if self._newest is not None and now[0] < self._newest[0]:
            self._why_not = "the server's counters were reset"
        self._newest = now
        a, open_ = self._answered, self._unsure + sum(s.images for s in self._in_flight.values())
        sent = a.images + self._asked.images
        self._expected = (sent, sent + open_, a.sure, a.sure + a.perhaps + self._asked.perhaps + open_)

    def check(self, *, required: bool) -> CheckResult | None:
        """The check; None without repeats or counters, and where these cannot be compared.

        More hits than repeats fail: the server took an image for another. They are unknown where the server has looked up as
        many images before the load: another run with this seed has sent the same ones. Fewer hits pass: the cache may be
        off or small; where the profile requires the cache, they are unknown.
        """
        if not self._repeats or self._base is None or self._newest is None:
            return None
        expected = "mm_cache hits = repeats sent, within 2% of the queries"
        queries, hits = (now - before for now, before in zip(self._newest, self._base, strict=True))
        fewest, most, sure, possible = self._expected
        why = self._why_not or self._not_ours(queries, fewest, most)
        self.note = f"image cache hits were not compared with repeats: {why}" if why and required else ""
        if why:
            return None
        slack = _TOLERANCE * queries
        repeats = f"{sure:,}" if sure == possible else f"{sure:,} to {possible:,}"
        actual = f"{hits:,.0f} hits in {queries:,.0f} queries, {repeats} repeats sent"
        before = self._base[0]
        verdict: Decision = "pass"
        if possible + slack < hits <= possible + before + slack:
            actual += f": the server had looked up {before:,.0f} images before the load, perhaps the same ones"
            actual, verdict = f"{actual} (restart it, or give another --seed)", "unknown"
        elif hits > possible + slack:
            actual, verdict = f"{actual}: images never sent before were cache hits", "fail"
        elif hits < sure - slack:
            actual += ": the cache evicts earlier (a small cache, or another distance than reuse_distance)"
            verdict = "unknown" if required else "pass"
        return CheckResult("image_dial", expected, actual, verdict)

    def _not_ours(self, queries: float, fewest: int, most: int) -> str:
        if len(self._sides) > 1:
            return f"{len(self._sides)} engines have a cache each"
        if queries < _FEWEST:
            return f"{figure(queries)} cache lookups, {_FEWEST} needed"
        if not fewest * (1 - _TOLERANCE) <= queries <= most * (1 + _TOLERANCE):
            return f"{figure(queries)} cache lookups, {fewest} to {most} of them ours"
        return ""


def _looked_up(row: BeginRow) -> int:
    return int(row.get("images") or 0) + int(row.get("videos") or 0) + int(row.get("audio") or 0)
