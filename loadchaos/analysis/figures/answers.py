"""Latencies, prompt lengths and session times of all answers of a run, by traffic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from loadchaos.analysis.figures.warm_up import WarmUp
from loadchaos.core.endpoint_groups import merged_latency
from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import BeginRow, ConversationRow, EndRow, MissedRow, RunRow


class EventTokens:
    """Mean number of tokens in an event of an answer. It is that of the answers whose tokens the server counted.
    Heartbeats count events, because the tokens of a stream are known only at its end. With speculative decoding an
    event of a stream has several tokens; a whole answer is one event, whatever its length.
    """

    __slots__ = ("_events", "_tokens")

    def __init__(self) -> None:
        self._events = self._tokens = 0

    def on_end(self, row: EndRow) -> None:
        tokens = row.get("completion_tokens")
        if not isinstance(tokens, int):
            return
        self._tokens += tokens
        self._events += int(row.get("chunks") or 0) or int(row.get("outcome") == "ok")

    @property
    def mean(self) -> float:
        """Tokens per event; 1 while no answer was counted."""
        return self._tokens / self._events if self._events else 1.0


@dataclass
class LengthDistribution:
    """Planned prompt lengths against those in the answers' usage, and images."""

    counted: int = 0  # answers with usage
    exact: int = 0
    shorter: int = 0  # most tokens below the plan
    longer: int = 0  # most tokens above the plan
    shortest: int | None = None
    longest: int | None = None
    images: int = 0
    image_tokens: int = 0

    def add(self, end: EndRow) -> None:
        images = int(end.get("images") or 0)
        self.images += images
        self.image_tokens += int(end.get("image_tokens") or 0)
        planned, usage = end.get("planned_tokens"), end.get("prompt_tokens")
        if not isinstance(planned, int) or not isinstance(usage, int):
            return
        self.counted += 1
        if planned == usage:
            self.exact += 1
        else:
            self.shorter = max(self.shorter, planned - usage)
            self.longer = max(self.longer, usage - planned)
        if self.shortest is None or usage < self.shortest:
            self.shortest = usage
        if self.longest is None or usage > self.longest:
            self.longest = usage


class AnswerFigures(RowFold):
    """Latencies and lengths of answers by traffic.

    Answers count, and timeouts as lower bounds. The latencies of a warm-up are left out. These figures can be folded in a
    process of their own and be given to `RunFigures`.

    Args:
        warm_up: rule of the warm-up (`Terms.warm_up`); None: that of the run's first row.
    """

    def __init__(self, warm_up: Mapping[str, object] | None = None) -> None:
        self.latency: defaultdict[str, LatencyHistograms] = defaultdict(LatencyHistograms)
        self.lengths: defaultdict[str, LengthDistribution] = defaultdict(LengthDistribution)
        self.event_tokens = EventTokens()
        self._warm_up, self._rule_is_given = WarmUp(warm_up), warm_up is not None

    def on_run(self, row: RunRow) -> None:
        if row.get("what") == "begin" and not self._rule_is_given:
            self._warm_up = WarmUp((row.get("terms") or {}).get("warm_up"))

    def on_begin(self, row: BeginRow) -> None:
        self._warm_up.covers(row)  # it begins with the first request that is due

    def on_conversation(self, row: ConversationRow) -> None:
        self._warm_up.covers(row)

    def on_missed(self, row: MissedRow) -> None:
        self._warm_up.covers(row)

    def on_end(self, row: EndRow) -> None:
        traffic, in_warm_up = str(row.get("traffic", "")), self._warm_up.covers(row)
        self.event_tokens.on_end(row)
        self.lengths[traffic].add(row)
        if row.get("outcome") == "missed":
            return
        latency = self.latency[traffic]
        if not in_warm_up:
            latency.on_end(row)

    def all_latency(self) -> LatencyHistograms:
        return merged_latency(self.latency.values())
