"""RunFigures: the one fold of the requests of a run."""

from __future__ import annotations

from loadchaos.analysis.figures.answer_labels import LabelCounts
from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.analysis.figures.efficiency import Efficiency
from loadchaos.analysis.figures.goodput import GoodputCount
from loadchaos.analysis.figures.refusals import RefusalFigures
from loadchaos.analysis.figures.requests import RequestStats, Sent
from loadchaos.analysis.figures.sessions import SessionCount
from loadchaos.analysis.figures.stalls import StallFigures
from loadchaos.analysis.figures.steady import SteadyState
from loadchaos.analysis.figures.throughput import Throughput
from loadchaos.analysis.figures.warm_up import WarmUp
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import (
    BeginRow,
    ConversationRow,
    DeviceRow,
    EndRow,
    HeartbeatRow,
    MetricsRow,
    MissedRow,
    RunRow,
    StateRow,
)
from loadchaos.core.model import Terms
from loadchaos.core.typed_json import from_json


class RunFigures(RowFold):
    """Counts requests, answers, goodput, throughput, efficiency, sessions and stalls of a run.

    Args:
        terms: terms of the run; None: those of its first row.
        answers: False: latencies and lengths are folded elsewhere, and given to `answers` before they are read.
    """

    def __init__(self, terms: Terms | None = None, *, answers: bool = True) -> None:
        self.requests, self.sessions = RequestStats(), SessionCount()
        self.goodput, self.throughput, self.efficiency = GoodputCount(), Throughput(), Efficiency()
        self.labels, self.stalls = LabelCounts(), StallFigures()
        self.refusals, self.steady = RefusalFigures(), SteadyState()
        self.seed: int | None = None
        self.ended: Sent | None = None
        """Request of the newest `end` row; None if it was missed or its begin is not known."""
        self._known = terms is not None
        rule = terms.warm_up if terms is not None else None
        self.warm_up = WarmUp(rule)
        self.answers, self._folds_answers = AnswerFigures(rule), answers
        self.slo_s = dict(terms.slo) if terms is not None else {}
        self.endpoints = dict(terms.endpoints) if terms is not None else {}

    def on_run(self, row: RunRow) -> None:
        if row.get("what") == "begin":
            self.seed = row.get("seed")
            if not self._known:
                terms = from_json(Terms, row.get("terms"))
                self.warm_up, self.slo_s, self.endpoints = WarmUp(terms.warm_up), dict(terms.slo), dict(terms.endpoints)
        if self._folds_answers:
            self.answers.on_run(row)

    def on_begin(self, row: BeginRow) -> None:
        self.requests.on_begin(row)
        self.stalls.on_begin(row)
        self.requests.later += "tries" in row or self.sessions.is_later(row)
        if not self.warm_up.covers(row):
            self.throughput.on_begin(row)
            self.steady.on_begin(row)
            self.efficiency.on_begin(row)
        if self._folds_answers:
            self.answers.on_begin(row)

    def on_conversation(self, row: ConversationRow) -> None:
        self.requests.traffic[str(row.get("traffic", ""))]  # its place among the others never changes
        self.sessions.on_conversation(row, timed=not self.warm_up.covers(row))
        if self._folds_answers:
            self.answers.on_conversation(row)

    def on_missed(self, row: MissedRow) -> None:
        self.requests.on_missed(row)
        if not self.warm_up.covers(row) and self.slo_s:
            self.goodput.on_missed(row)
        if self._folds_answers:
            self.answers.on_missed(row)

    def on_end(self, row: EndRow) -> None:
        self.ended = self.requests.on_end(row)
        self.labels.on_end(row)
        self.stalls.on_end(row)
        self.refusals.on_end(row)
        if self.warm_up.covers(row):
            self.warm_up.left_out += 1
        else:
            self.throughput.on_end(row)
            self.steady.on_end(row)
            self.efficiency.on_end(row)
            if self.slo_s:
                self.goodput.on_end(row, self.slo_s)
        if self._folds_answers:
            self.answers.on_end(row)

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self.stalls.on_heartbeat(row)

    def on_state(self, row: StateRow) -> None:
        self.stalls.on_state(row)

    def on_metrics(self, row: MetricsRow) -> None:
        self.efficiency.on_metrics(row)

    def on_device(self, row: DeviceRow) -> None:
        self.efficiency.on_device(row)
