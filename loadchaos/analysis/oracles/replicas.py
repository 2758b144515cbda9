"""Compare identical greedy requests that were sent at once."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from loadchaos.analysis.oracles.base import MARGIN_RULE, Oracle
from loadchaos.analysis.oracles.margin import wrong_and_right
from loadchaos.core.ledger.rows import QuestionRow

_MOST_GROUPS = 16


class ReplicasOracle(Oracle):
    """Compares all answers of a group with its first one. It reports a group once."""

    name: ClassVar[str] = "replicas"
    detects: ClassVar[str] = "N identical greedy requests at once with different answers"
    false_alarms: ClassVar[str] = MARGIN_RULE
    asked_by: ClassVar[str] = "replicas"
    check: ClassVar[str] = "identical_requests"

    def __init__(self) -> None:
        super().__init__()
        self._groups: OrderedDict[int, list[QuestionRow]] = OrderedDict()
        self._reported: set[int] = set()

    def judge(self, row: QuestionRow) -> None:
        self.answers += 1
        group = self._groups.setdefault(row["group"], [])
        if len(self._groups) > _MOST_GROUPS:
            self._groups.popitem(last=False)
        group.append(row)
        difference = self.margin.compare(group[0], row)
        if difference is None or row["group"] in self._reported:
            return
        if self.proved(difference):
            self._reported.add(row["group"])
            wrong, right = wrong_and_right(group[0], row)
            about = f"question {right['n']} was the same; {difference.describe()}"
            self.report("identical_requests_differ", wrong, right["text"], about)

    def differing(self) -> str:
        return f"{self.wrong} groups"
