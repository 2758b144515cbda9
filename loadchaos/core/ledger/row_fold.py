"""RowFold: base of everything that folds ledger rows, with one method for each kind of row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any, cast

from loadchaos.core.ledger.rows import (
    AnswerRow,
    AttackRow,
    BaselineRow,
    BeginRow,
    CanaryRow,
    ClockRow,
    CommandRow,
    ConfigurationRow,
    ControlRow,
    ConversationRow,
    DeviceRow,
    DiscoveryRow,
    DiskRow,
    EndRow,
    ExporterRow,
    FactsRow,
    FailureRow,
    GapRow,
    GateRow,
    HeaderRow,
    HeardRow,
    HeartbeatRow,
    IncidentRow,
    LastQuestionRow,
    LaunchRow,
    LearnedRow,
    LinesRow,
    LoadRow,
    LocustRow,
    LogRow,
    MetricsRow,
    MissedRow,
    OffersRow,
    PageRow,
    PhaseRow,
    PreflightRow,
    ProbeRow,
    ProcessRow,
    QuestionRow,
    RunRow,
    SessionRow,
    StateRow,
    SupervisorRow,
    WellRow,
    WorkerRow,
)
from loadchaos.core.model import Row

Receiver = Callable[[Any], None]
"""Method that folds one kind of row."""


class RowFold:
    """Folds rows in the order in which the ledger gives them. A subclass overrides `on_<kind>` for each kind that it
    needs, so that a search for `def on_end(` finds everything that reads `end` rows. Rows of other kinds change
    nothing.
    """

    def fold(self, row: Row) -> None:
        receivers = self.__dict__.get("_receivers")
        if receivers is None:
            receivers = self.__dict__["_receivers"] = self.receivers()
        receiver = receivers.get(str(row.get("row")))
        if receiver is not None:
            receiver(row)

    def receivers(self) -> Mapping[str, Receiver]:
        every: dict[str, Receiver] = {
            "header": self.on_header,
            "begin": self.on_begin,
            "end": self.on_end,
            "missed": self.on_missed,
            "well": self.on_well,
            "answer": self.on_answer,
            "conversation": self.on_conversation,
            "heartbeat": self.on_heartbeat,
            "phase": self.on_phase,
            "load": self.on_load,
            "worker": self.on_worker,
            "clock": self.on_clock,
            "disk": self.on_disk,
            "run": self.on_run,
            "probe": self.on_probe,
            "state": self.on_state,
            "attack": self.on_attack,
            "facts": self.on_facts,
            "discovery": self.on_discovery,
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
            "question": self.on_question,
            "learned": self.on_learned,
            "offers": self.on_offers,
            "command": self.on_command,
            "metrics": self.on_metrics,
            "page": self.on_page,
            "device": self.on_device,
            "control": self.on_control,
            "lines": self.on_lines,
            "log": self.on_log,
            "failure": self.on_failure,
            "incident": self.on_incident,
            "exporter": self.on_exporter,
            "session": self.on_session,
        }
        return {
            kind: receiver for kind, receiver in every.items() if cast("MethodType", receiver).__func__ not in _EMPTY
        }

    def on_header(self, row: HeaderRow, /) -> None: ...

    def on_begin(self, row: BeginRow, /) -> None: ...

    def on_end(self, row: EndRow, /) -> None: ...

    def on_missed(self, row: MissedRow, /) -> None: ...

    def on_well(self, row: WellRow, /) -> None: ...

    def on_answer(self, row: AnswerRow, /) -> None: ...

    def on_conversation(self, row: ConversationRow, /) -> None: ...

    def on_heartbeat(self, row: HeartbeatRow, /) -> None: ...

    def on_phase(self, row: PhaseRow, /) -> None: ...

    def on_load(self, row: LoadRow, /) -> None: ...

    def on_worker(self, row: WorkerRow, /) -> None: ...

    def on_clock(self, row: ClockRow, /) -> None: ...

    def on_disk(self, row: DiskRow, /) -> None: ...

    def on_run(self, row: RunRow, /) -> None: ...

    def on_probe(self, row: ProbeRow, /) -> None: ...

    def on_state(self, row: StateRow, /) -> None: ...

    def on_attack(self, row: AttackRow, /) -> None: ...

    def on_facts(self, row: FactsRow, /) -> None: ...

    def on_discovery(self, row: DiscoveryRow, /) -> None: ...

    def on_configuration(self, row: ConfigurationRow, /) -> None: ...

    def on_launch(self, row: LaunchRow, /) -> None: ...

    def on_process(self, row: ProcessRow, /) -> None: ...

    def on_gap(self, row: GapRow, /) -> None: ...

    def on_preflight(self, row: PreflightRow, /) -> None: ...

    def on_locust(self, row: LocustRow, /) -> None: ...

    def on_gate(self, row: GateRow, /) -> None: ...

    def on_heard(self, row: HeardRow, /) -> None: ...

    def on_supervisor(self, row: SupervisorRow, /) -> None: ...

    def on_baseline(self, row: BaselineRow, /) -> None: ...

    def on_canary(self, row: CanaryRow, /) -> None: ...

    def on_last_question(self, row: LastQuestionRow, /) -> None: ...

    def on_question(self, row: QuestionRow, /) -> None: ...

    def on_learned(self, row: LearnedRow, /) -> None: ...

    def on_offers(self, row: OffersRow, /) -> None: ...

    def on_command(self, row: CommandRow, /) -> None: ...

    def on_metrics(self, row: MetricsRow, /) -> None: ...

    def on_page(self, row: PageRow, /) -> None: ...

    def on_device(self, row: DeviceRow, /) -> None: ...

    def on_control(self, row: ControlRow, /) -> None: ...

    def on_lines(self, row: LinesRow, /) -> None: ...

    def on_log(self, row: LogRow, /) -> None: ...

    def on_failure(self, row: FailureRow, /) -> None: ...

    def on_incident(self, row: IncidentRow, /) -> None: ...

    def on_exporter(self, row: ExporterRow, /) -> None: ...

    def on_session(self, row: SessionRow, /) -> None: ...


_EMPTY = frozenset(value for name, value in vars(RowFold).items() if name.startswith("on_"))


class RowRouter:
    """Gives each row to those of several folds that need its kind, in the order of the folds."""

    def __init__(self, folds: Iterable[RowFold]) -> None:
        self._by_kind: dict[str, list[Receiver]] = {}
        for fold in folds:
            for kind, receiver in fold.receivers().items():
                self._by_kind.setdefault(kind, []).append(receiver)

    def fold(self, row: Row) -> None:
        for receiver in self._by_kind.get(str(row.get("row")), ()):
            receiver(row)
