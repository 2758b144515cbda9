"""RowFold: base of everything that folds ledger rows, with one method for each kind of row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MethodType
from typing import Any, cast

from loadchaos.core.ledger import rows
from loadchaos.core.model import Row

Receiver = Callable[[Any], None]
"""Method that folds one kind of row."""


class RowFold:
    """Folds rows in the order in which the ledger gives them. A subclass overrides `on_<kind>` for each kind that it
    needs, so that a search for `def on_end(` finds every class that receives `end` rows. Rows of other kinds change
    nothing. A kind that no class folds has no method here. A function that reads a file once compares the kind in place:
    `grep -rE '"row"[])] == "end"'` finds those.
    """

    def fold(self, row: Row) -> None:
        receiver = self.receivers.get(str(row.get("row")))
        if receiver is not None:
            receiver(row)

    @cached_property
    def receivers(self) -> Mapping[str, Receiver]:
        """Methods that this class overrides, by kind of row."""
        every: dict[str, Receiver] = {
            "header": self.on_header,
            "begin": self.on_begin,
            "end": self.on_end,
            "missed": self.on_missed,
            "conversation": self.on_conversation,
            "heartbeat": self.on_heartbeat,
            "phase": self.on_phase,
            "load": self.on_load,
            "worker": self.on_worker,
            "disk": self.on_disk,
            "host": self.on_host,
            "run": self.on_run,
            "probe": self.on_probe,
            "state": self.on_state,
            "attack": self.on_attack,
            "facts": self.on_facts,
            "configuration": self.on_configuration,
            "launch": self.on_launch,
            "process": self.on_process,
            "gap": self.on_gap,
            "preflight": self.on_preflight,
            "locust": self.on_locust,
            "gate": self.on_gate,
            "heard": self.on_heard,
            "supervisor": self.on_supervisor,
            "baseline": self.on_baseline,
            "canary": self.on_canary,
            "last_question": self.on_last_question,
            "identity": self.on_identity,
            "question": self.on_question,
            "learned": self.on_learned,
            "offers": self.on_offers,
            "command": self.on_command,
            "metrics": self.on_metrics,
            "device": self.on_device,
            "log": self.on_log,
            "failure": self.on_failure,
            "incident": self.on_incident,
        }
        return {
            kind: receiver for kind, receiver in every.items() if cast("MethodType", receiver).__func__ not in _EMPTY
        }

    def on_header(self, row: rows.HeaderRow, /) -> None: ...
    def on_begin(self, row: rows.BeginRow, /) -> None: ...
    def on_end(self, row: rows.EndRow, /) -> None: ...
    def on_missed(self, row: rows.MissedRow, /) -> None: ...
    def on_conversation(self, row: rows.ConversationRow, /) -> None: ...
    def on_heartbeat(self, row: rows.HeartbeatRow, /) -> None: ...
    def on_phase(self, row: rows.PhaseRow, /) -> None: ...
    def on_load(self, row: rows.LoadRow, /) -> None: ...
    def on_worker(self, row: rows.WorkerRow, /) -> None: ...
    def on_disk(self, row: rows.DiskRow, /) -> None: ...
    def on_host(self, row: rows.HostRow, /) -> None: ...
    def on_run(self, row: rows.RunRow, /) -> None: ...
    def on_probe(self, row: rows.ProbeRow, /) -> None: ...
    def on_state(self, row: rows.StateRow, /) -> None: ...
    def on_attack(self, row: rows.AttackRow, /) -> None: ...
    def on_facts(self, row: rows.FactsRow, /) -> None: ...
    def on_configuration(self, row: rows.ConfigurationRow, /) -> None: ...
    def on_launch(self, row: rows.LaunchRow, /) -> None: ...
    def on_process(self, row: rows.ProcessRow, /) -> None: ...
    def on_gap(self, row: rows.GapRow, /) -> None: ...
    def on_preflight(self, row: rows.PreflightRow, /) -> None: ...
    def on_locust(self, row: rows.LocustRow, /) -> None: ...
    def on_gate(self, row: rows.GateRow, /) -> None: ...
    def on_heard(self, row: rows.HeardRow, /) -> None: ...
    def on_supervisor(self, row: rows.SupervisorRow, /) -> None: ...
    def on_baseline(self, row: rows.BaselineRow, /) -> None: ...
    def on_canary(self, row: rows.CanaryRow, /) -> None: ...
    def on_last_question(self, row: rows.LastQuestionRow, /) -> None: ...
    def on_identity(self, row: rows.IdentityRow, /) -> None: ...
    def on_question(self, row: rows.QuestionRow, /) -> None: ...
    def on_learned(self, row: rows.LearnedRow, /) -> None: ...
    def on_offers(self, row: rows.OffersRow, /) -> None: ...
    def on_command(self, row: rows.CommandRow, /) -> None: ...
    def on_metrics(self, row: rows.MetricsRow, /) -> None: ...
    def on_device(self, row: rows.DeviceRow, /) -> None: ...
    def on_log(self, row: rows.LogRow, /) -> None: ...
    def on_failure(self, row: rows.FailureRow, /) -> None: ...
    def on_incident(self, row: rows.IncidentRow, /) -> None: ...


_EMPTY = frozenset(value for name, value in vars(RowFold).items() if name.startswith("on_"))


class RowRouter:
    """Gives each row to those of several folds that need its kind, in the order of the folds."""

    def __init__(self, folds: Iterable[RowFold]) -> None:
        self._by_kind: dict[str, list[Receiver]] = {}
        for fold in folds:
            for kind, receiver in fold.receivers.items():
                self._by_kind.setdefault(kind, []).append(receiver)

    def fold(self, row: Row) -> None:
        for receiver in self._by_kind.get(str(row.get("row")), ()):
            receiver(row)
