"""Compare the usage of answers with each other and with counters.

The same body has the same prompt tokens. All answers together have no more tokens than the server says to have processed:
aborted requests and requests of others only add to its counters.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import BeginRow, EndRow, MetricsRow
from loadchaos.core.limits import SCRAPE_EVERY_S
from loadchaos.core.units import NS_PER_S
from loadchaos.server.dialects import SLOWEST_GAUGES_S

_MOST_BODIES = 5_000
_LATE_NS = int((SLOWEST_GAUGES_S + 2 * SCRAPE_EVERY_S) * NS_PER_S)
"""Counters may be this old when they are read: only answers that ended before are compared."""
_SLACK, _SLACK_TOKENS = 0.005, 256
_FOREIGN = 0.1
"""More missing than this means that the counters are those of a part of the servers, unless another counter agrees."""
_COUNTERS = {"prompt_tokens": "prompt_tokens_total", "completion_tokens": "generation_tokens_total"}
_ANSWERS = "requests_finished_total"


class AnswerUsage(Detector):
    """Folds begin, end and metrics rows."""

    def __init__(self) -> None:
        super().__init__()
        self._bodies: dict[str, str] = {}  # in flight: id -> hash of the body
        self._prompts: OrderedDict[str, tuple[str, int]] = OrderedDict()  # hash -> first request, its prompt tokens
        self._sums = dict.fromkeys((*_COUNTERS, _ANSWERS), 0)
        self._recent: deque[tuple[int, tuple[int, int, int]]] = deque()
        self._before: dict[tuple[str, str], dict[str, float]] = {}
        self._now: dict[tuple[str, str], dict[str, float]] = {}
        self._begun = self._void = False
        self._worst: dict[str, tuple[int, float, int]] = {}

    def on_begin(self, row: BeginRow) -> None:
        self._begun = True
        body = row.get("hash")
        if body is not None:
            self._bodies[str(row["id"])] = body

    def on_end(self, row: EndRow) -> None:
        body, tokens = self._bodies.pop(str(row.get("id")), None), row.get("prompt_tokens")
        if body is not None and tokens is not None:
            self._compare(row, body, tokens)
        if self._before and not self._void:  # else there is nothing to compare with
            prompt, completion = int(row.get("prompt_tokens") or 0), int(row.get("completion_tokens") or 0)
            self._recent.append((int(row["at_ns"]), (prompt, completion, int(completion > 0))))

    def _compare(self, row: EndRow, body: str, tokens: int) -> None:
        first, known = self._prompts.setdefault(body, (str(row.get("id")), tokens))
        self._prompts.move_to_end(body)
        if len(self._prompts) > _MOST_BODIES:
            self._prompts.popitem(last=False)
        if known != tokens:
            text = f"the same body had {known} prompt tokens in {first} and has {tokens} now"
            wrong = WrongAnswer(
                "prompt_tokens_differ", str(row.get("id")), int(row["at_ns"]), "answer usage", text,
                expected=str(known), got=str(tokens), traffic=str(row.get("traffic", "")), facts={"other_request": first},
            )  # fmt: skip
            self._pending.append(wrong_failure(wrong))

    def on_metrics(self, row: MetricsRow) -> None:
        key, values = (str(row.get("replica")), str(row.get("engine"))), row.get("values") or {}
        read = {name: float(values[counter]) for name, counter in _COUNTERS.items() if counter in values}
        if len(read) < len(_COUNTERS):
            return
        read[_ANSWERS] = float(values.get(_ANSWERS, 0))
        if not self._begun:
            self._before[key] = read
            return
        last = self._now.get(key, self._before.get(key))
        # A restart loses what was counted since the last scrape; an engine that appears late has counted before.
        self._void |= last is None or any(read[name] < last[name] for name in _COUNTERS)
        self._now[key] = read
        self._add_ended(int(row["at_ns"]) - _LATE_NS)
        for number, name in enumerate(self._sums):
            grown = sum(now[name] - self._before[k][name] for k, now in self._now.items() if k in self._before)
            self._worst[name] = (self._sums[name], grown, sum(counted[number] for _, counted in self._recent))

    def _add_ended(self, until_ns: int) -> None:
        while self._recent and self._recent[0][0] <= until_ns:
            for name, n in zip(self._sums, self._recent.popleft()[1], strict=True):
                self._sums[name] += n

    def finish(self) -> list[Finding]:
        found: list[Finding] = []
        agree = {name for name, figures in self._worst.items() if _agree(*figures, 0 if name == _ANSWERS else 1)}
        for name, (answers, grown, _) in self._worst.items():
            if name == _ANSWERS or name in agree:
                continue
            missing = answers - grown
            if self._void or missing <= _slack(answers) or (missing > _FOREIGN * answers and not agree):
                continue
            what = name.replace("_", " ")
            text = f"the answers have {answers:,} {what}, the server counts {grown:,.0f}"
            found.append(wrong_failure(WrongAnswer("usage_exceeds_counters", "", 0, "answer usage", text)))
        return found


def _slack(tokens: int) -> float:
    return _SLACK_TOKENS + _SLACK * tokens


def _agree(answers: int, grown: float, late: int, tolerance: int) -> bool:
    """True if a counter has grown by what the answers have, the `late` ones or not: it is that of the whole server."""
    slack = tolerance * _slack(answers)
    return answers > 4 * slack and answers - slack <= grown <= (answers + late) * (1 + _FOREIGN) + slack
