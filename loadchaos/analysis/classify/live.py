"""Classify log lines live. Matches are held back for a moment so that a cause precedes its echoes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import PurePath

from loadchaos.analysis.classify.classifier import Classifier, with_candidates
from loadchaos.analysis.classify.group import group
from loadchaos.analysis.classify.match import Match
from loadchaos.analysis.classify.unexplained import UnexplainedErrors
from loadchaos.analysis.failure import DEADLY, Failure
from loadchaos.analysis.verdict.model import CandidateLine
from loadchaos.core.ledger.rows import LogRow
from loadchaos.core.model import KERNEL_LOG
from loadchaos.core.units import NS_PER_S
from loadchaos.core.whole_lines import LineJoiner, WholeLine

_QUIET_NS = 2 * NS_PER_S
_LONGEST_NS = 10 * NS_PER_S
_MOST_MATCHES = 5_000
_CONTEXT_NS = 300 * NS_PER_S  # the longest within_s of any signature: rpc_timeout, the hint of a sleep
_MOST_CONTEXT = 1_000
_MOST_STOPS = 1_000


class LiveClassifier:
    """Feeds the classifier. `poll` gives the failures of a burst once 2 s have passed without another match. Matches of
    the 300 s before are kept as context: a late echo of a death is no second one, and an earlier line may be the cause
    of a later one.
    """

    def __init__(self) -> None:
        self._classifier = Classifier(live=True)
        self.unexplained = UnexplainedErrors()
        self._matches: list[Match] = []
        self._doubted: deque[Match] = deque(maxlen=_MOST_CONTEXT)  # given while only a warning seemed to introduce them
        self._context: deque[tuple[int, Match]] = deque(maxlen=_MOST_CONTEXT)
        self._first_ns = self._newest_ns = 0
        self._joiners: dict[str, LineJoiner] = {}  # of each log
        self.lines = 0
        self.stops: list[tuple[int, str]] = []  # (time, source) of orderly shutdowns

    def on_log(self, row: LogRow, now_ns: int) -> bool:
        """Fold a `log` row; True when a line that is whole now has a match. A part of a line that a collector cut is
        held until its line is whole, for 2 s at most.
        """
        self.lines += 1
        source = str(row.get("file") or row.get("source") or "server.log")
        joiner = self._joiners.get(source)
        if joiner is None:
            joiner = self._joiners[source] = LineJoiner()
        whole = joiner.feed(str(row.get("text", "")), int(row["line"]), row.get("at_ns"), now_ns=now_ns)
        return self._classify(whole, source, now_ns)

    def _classify(self, lines: Iterable[WholeLine], source: str, now_ns: int) -> bool:
        matched = False
        for text, line_no, at_ns, _ in lines:
            found = self._classifier.feed(text, line_no=line_no, at_ns=at_ns, source=source)
            matched = self._hold(found, now_ns) or matched
        return matched

    def poll(self, now_ns: int | None, *, died: bool = False, at_once: bool = False) -> list[Failure]:
        """Failures of the matches so far.

        Args:
            now_ns: None when the run is over and nothing is held back.
            died: the server is gone, so that a traceback at the very end of its log killed it.
            at_once: nothing is held back, because later lines belong to another life.
        """
        for source, joiner in self._joiners.items():
            whole = joiner.flush() if now_ns is None or at_once else joiner.expire(now_ns)
            self._classify(whole, source, self._newest_ns if now_ns is None else now_ns)
        if now_ns is None:
            self._hold(self._classifier.close(died=died), self._newest_ns)
            self._take_back_doubts()
        elif not self._matches or (not at_once and self._is_open(now_ns)):
            if not self._matches:
                self.unexplained.add_lines(self._classifier.take_loud())
            return []
        matches, self._matches = self._matches, []
        self._doubted.extend(match for match in matches if match.warned)
        while self._context and self._newest_ns - self._context[0][0] > _CONTEXT_NS:
            self._context.popleft()
        leftover: list[Match] = []
        found = group(matches, context=[match for _, match in self._context], leftover=leftover)
        self._context.extend((self._newest_ns, match) for match in matches)
        self.unexplained.add_exceptions(leftover)
        lines = self._classifier.take_loud()
        if not any(f.severity in DEADLY for f in found):
            self.unexplained.add_lines(lines)
        return [with_candidates(failure, self._classifier.last_words) for failure in found]

    def _take_back_doubts(self) -> None:
        """Hold the matches again whose traceback ended the process. The warning before them was unrelated, which only
        the end of the log shows.
        """
        proved = [match for match in self._doubted if not match.warned]
        self._context = deque((known for known in self._context if known[1] not in proved), maxlen=_MOST_CONTEXT)
        self._hold(proved, self._newest_ns)
        self._doubted.clear()

    def last_words(self, at_ns: int, replica: str | None) -> list[CandidateLine]:
        """Unexplained lines around a death that no log names."""
        return self._classifier.last_words.at_time(at_ns, replica, kernel=KERNEL_LOG)

    def _is_open(self, now_ns: int) -> bool:
        short = now_ns - self._first_ns < _LONGEST_NS and len(self._matches) < _MOST_MATCHES
        return short and now_ns - self._newest_ns < _QUIET_NS

    def forget(self, replica: str, *, sole: bool) -> None:
        """Drop the context of a server that was started again. Its new life has other causes. `sole`: there is one
        server only, and every log is its own.
        """
        kept = [
            (at_ns, m) for at_ns, m in self._context if not sole and PurePath(str(m.evidence.source)).stem != replica
        ]
        self._context = deque(kept, maxlen=_MOST_CONTEXT)

    def _hold(self, matches: list[Match], now_ns: int) -> bool:
        for match in matches:
            if match.role == "stop" and len(self.stops) < _MOST_STOPS:
                self.stops.append((now_ns, str(match.evidence.source)))
        if not matches:
            return False
        if not self._matches:
            self._first_ns = now_ns
        self._matches += matches
        self._newest_ns = now_ns
        return True
