"""Requests of other clients during the load, by the server's counter of finished requests.

Latencies are then those of both loads: a broken limit does not show that the server is too slow for the load that was
asked.
"""

from __future__ import annotations

from collections.abc import Collection

from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import BeginRow, CanaryRow, MetricsRow, QuestionRow, RunRow
from loadchaos.core.units import counted

_FINISHED = "requests_finished_total"
_FEWEST, _LEAST_SHARE = 10, 0.1
"""Fewer than these are not told: probes of a gateway, an attack that sends some requests."""
_PER_QUESTION = 4
"""A question may have sent three requests that it ended early, beside the one of its row."""


class OtherClients(RowFold):
    """Folds begin, question, canary, run and metrics rows; `why` then tells what others sent. Several replicas are not
    judged: behind a router that splits prefill and decode, two of them count one request.
    """

    def __init__(self) -> None:
        self._sent = self._asked = 0
        self._traffics: set[str] = set()
        self._loading = self._restarted = False
        self._first: dict[tuple[str, str], float] = {}
        self._newest: dict[tuple[str, str], float] = {}

    def on_run(self, row: RunRow) -> None:
        if row.get("what") in ("load_begin", "load_end"):
            self._loading = row.get("what") == "load_begin"

    def on_begin(self, row: BeginRow) -> None:
        self._sent += 1
        self._traffics.add(str(row.get("traffic", "")))

    def on_question(self, row: QuestionRow) -> None:  # noqa: ARG002 - any question may have reached the server
        self._asked += self._loading

    def on_canary(self, row: CanaryRow) -> None:  # noqa: ARG002 - one for its prompt, one for its answer
        self._asked += self._loading

    def on_metrics(self, row: MetricsRow) -> None:
        now = (row.get("values") or {}).get(_FINISHED)
        if now is None or not self._loading:
            return
        key = str(row.get("replica")), str(row.get("engine"))
        # What was finished before the first scrape of the load may be ours, and is not counted.
        self._first.setdefault(key, now)
        self._restarted |= now < self._newest.get(key, now)
        self._newest[key] = now

    def why(self, single_answers: Collection[str]) -> str | None:
        """Say how many requests others sent; None where there were few, or where that is not known. `single_answers` is
        traffic whose requests the server counts as one each.
        """
        if (
            self._restarted
            or len({replica for replica, _ in self._first}) != 1
            or not self._traffics <= {*single_answers}
        ):
            return None
        finished = sum(self._newest[key] - self._first[key] for key in self._newest)
        others = round(finished - self._sent - _PER_QUESTION * self._asked)
        if others < max(_FEWEST, _LEAST_SHARE * self._sent):
            return None
        return (
            f"other clients sent at least {counted(others, 'request')} during the load: the server finished "
            f"{finished:,.0f}, and this run sent {self._sent:,}"
        )
