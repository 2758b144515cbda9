"""Track incidents from states, exits and deadly log lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loadchaos.analysis.failure import Failure, evidence, of_signature
from loadchaos.analysis.figures.requests import RequestStats
from loadchaos.analysis.incidents.attribution import AttackLog
from loadchaos.analysis.incidents.bad_answers import BadAnswer
from loadchaos.analysis.incidents.context import IncidentContext, add_later_reading, reading
from loadchaos.analysis.incidents.incident import COVERED_NS, Incident, finding_row, kind_of, merged_kind
from loadchaos.analysis.incidents.recent import LATE_LOG_NS, RecentIncidents
from loadchaos.analysis.state.client_evidence import TLS_LABEL
from loadchaos.analysis.state.limits import FEWEST_FAILED
from loadchaos.analysis.verdict.model import Kind
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import (
    DeviceRow,
    IncidentRow,
    LastQuestionRow,
    LaunchRow,
    MetricsRow,
    ProbeRow,
    ProcessRow,
    RunRow,
    StateRow,
    SupervisorRow,
)
from loadchaos.core.model import Attribution, Row, State
from loadchaos.core.units import NS_PER_S

_BACK_AFTER_LOG_NS = 5 * NS_PER_S
_EXIT_NEAR_NS = 10 * NS_PER_S
_STOPPING_NS = 20 * NS_PER_S
_MOST_SNAPSHOTS = 100
_ONE_OF_SEVERAL = "one of several servers behind the address died"
_ANOTHER_ANSWERS = (
    "the log says that the engine is gone, but the address still answers: another server, or a restarted one"
)
_NO_LOSS = "no request was lost, no process ended, and the server answered later"
_CUT = frozenset({"reset", "connect_error", "truncated"})
_QUOTED = 160
_MOST_NOTES = 3
_ENDS_ENGINES: tuple[State, ...] = ("dead", "terminated", "restarting")


class IncidentTracker(RowFold):
    """All incidents of a run, in order. Rows about incidents gather in `findings` until they are read."""

    def __init__(self, stats: RequestStats, attacks: AttackLog) -> None:
        self.incidents: list[Incident] = []
        self.findings: list[IncidentRow] = []
        self.named: list[Incident] = []  # named by a log since the last read
        self.environment: Mapping[str, Any] = {}
        self.load_begin_ns: int | None = None
        self.has_log = False
        self.load_end_ns: int | None = None
        self.last_question_waits = False
        self._stats, self._attacks, self._context, self._recent = stats, attacks, IncidentContext(), RecentIncidents()
        self._answered_ns = 0  # sending time of the newest good answer
        self._told_ns: int | None = None  # of the first answer whose text tells a death
        self._failed: deque[int] = deque(maxlen=FEWEST_FAILED)  # sending times of the newest failed requests
        self._healthy_ns = 0  # of the newest healthy probe
        self._exits: dict[str, Row] = {}
        self._gone: deque[ProcessRow] = deque(maxlen=100)  # the newest ends of processes
        self._orchestrator_ends: dict[str, Row] = {}  # the newest exit that an orchestrator reported
        self.shutdowns: deque[int] = deque(maxlen=1000)  # in the log; a failed server logs one, too
        self._stopped_by_us: dict[str, int] = {}  # when a server was gone that we stopped
        self._replicas: set[str] = set()
        self._launched = False  # we launched it: its exit would be known
        self._balanced = False  # several servers share the address

    def on_run(self, row: RunRow) -> None:
        if row["what"] == "load_begin":
            self.load_begin_ns = int(row["at_ns"])
        elif row["what"] == "load_end":
            self.load_end_ns = int(row["at_ns"])

    def on_last_question(self, row: LastQuestionRow) -> None:
        self.last_question_waits = row["what"] == "ask"

    def on_metrics(self, row: MetricsRow | DeviceRow) -> None:
        found = reading(row)
        if found is not None:
            self._context.feed(found)
            for incident in self._recent.open.values():
                add_later_reading(incident.figures, found, incident.replica)

    on_device = on_metrics

    def on_state(self, row: StateRow) -> None:
        replica, to, was, at_ns = str(row.get("replica")), row["to"], row["from"], int(row["at_ns"])
        if row.get("engine") is not None:
            replica = f"{replica} engine {row['engine']}"
        else:
            self._replicas.add(replica)
            for name, of_engine in list(self._recent.open.items()) if to in _ENDS_ENGINES else ():
                if name.startswith(f"{replica} engine "):
                    self._end(of_engine, at_ns)
        signs = [str(s) for s in row.get("signs") or ()]
        incident = self._recent.open.get(replica)
        if to == was:
            if row.get("balanced"):
                self._found_balancer()
            about = self._recent.latest(replica)
            if about is not None:
                about.note(at_ns, "; ".join(signs))
            return
        kind: Kind | None = "outage" if row.get("outage") else kind_of(to, was)
        if incident is None:
            after_load = self.load_end_ns is not None or self._while_stopping(at_ns)
            if kind is None or (to == "terminated" and after_load) or row.get("said"):
                return
            since_ns = int(row.get("since_ns") or at_ns)
            incident = self._recent.adopt(replica, since_ns) or self._begin(kind, replica, since_ns, at_ns)
            incident.starting = was == "starting"
        incident.note(at_ns, f"{to}: {'; '.join(signs)}" if signs else to)
        if kind == "outage" and (told := next((sign for sign in signs if TLS_LABEL in sign), None)) is not None:
            why = told.partition(TLS_LABEL)[2].rpartition(": ")[0]  # without the count of requests
            found = of_signature("tls_connections_fail", evidence("signs", told), at_ns)
            self.explain(incident, replace(found, title=f"{found.title}: {why}"))
        if kind is not None:
            self._continue(incident, kind, to, row, signs)
        if to == "healthy" or (to == "degraded" and incident.kind in ("unreachable", "outage")):
            incident.back_ns = at_ns
            self._end(incident, at_ns)

    def on_process(self, row: ProcessRow) -> None:
        """Fold the end of a process. Processes that die together are reported one after the other, in any order, before
        or after the server is known to be dead.
        """
        if row["what"] != "gone":
            return
        self._gone.append(row)
        incident = self._recent.open.get(str(row.get("replica")))
        if incident is not None and incident.process_ended:
            incident.add_gone(row)

    def on_launch(self, row: LaunchRow) -> None:
        replica = str(row.get("replica"))
        if row["what"] == "start":
            self._launched = True
            if (old := self._exits.pop(replica, None)) is not None:
                self._report_exit(replica, old)
        elif row["what"] == "exit" and row.get("asked"):
            self._stop_by_us(replica, int(row["at_ns"]))  # it must not hide an earlier exit
        elif row["what"] == "exit":
            self._exits[replica] = row
            if (incident := self._recent.open.get(replica)) is not None:
                self._attach_exit(incident, row)

    def on_supervisor(self, row: SupervisorRow) -> None:
        """Fold a server exit that docker, Kubernetes or systemd reports. It is polled every other second, so that the
        server may be back by now: then it explains the incident before.
        """
        if row["what"] != "ended":
            return
        at_ns, replica = int(row["at_ns"]), str(row.get("replica"))
        reason = f"{row['reason']} ({row.get('source')})"
        exit_row = {"at_ns": at_ns, "code": row.get("exit_code"), "signal": None, "reason": reason}
        self._orchestrator_ends[replica] = exit_row
        incident = self._recent.ended_near(replica, at_ns)
        if incident is not None:
            self._attach_exit(incident, exit_row)

    def add_deadly(self, failure: Failure, replica: str | None) -> None:
        incident = self._recent.find(failure, replica, self._replicas)
        if incident is None and failure.role == "echo" and self._while_stopping(failure.at_ns):
            return  # the shutdown messages of a server that was told to end
        if incident is None:
            incident = self._begin("death", replica or self._only_replica(), failure.at_ns, failure.at_ns)
            incident.by_states = False
        group = incident.causes if failure.role == "cause" else incident.echoes
        if all(s.id != failure.id for s in group):
            if failure.role == "cause" and not incident.causes:
                self.named.append(incident)
            group.append(failure)
            incident.note(failure.at_ns, f"{failure.evidence.source}: {failure.title}")
        if isinstance(line := failure.evidence.line, int):
            incident.add_log_line(str(failure.evidence.source), line)
        self._attribute(incident)

    def hang_at(self, at_ns: int) -> Incident | None:
        return self._recent.hang_at(at_ns)

    def explain(self, incident: Incident, failure: Failure) -> None:
        if not incident.causes:
            incident.causes.append(failure)
            incident.note(failure.at_ns, failure.title)
            self._attribute(incident)

    def find_beside(self, failure: Failure, replica: str | None) -> Incident | None:
        """The incident during which a failure happened, None without one. The failure is noted there."""
        incident = self._recent.find(failure, replica, self._replicas)
        if incident is not None and failure.id not in incident.beside:
            incident.beside.append(failure.id)
            incident.note(failure.at_ns, f"{failure.evidence.source}: {failure.title}")
        return incident

    def open_failure(self, failure: Failure, attribution: Attribution) -> Incident:
        incident = self._new("failure", self._only_replica(), failure.at_ns)
        incident.causes.append(failure)
        incident.attribution = attribution
        if isinstance(line := failure.evidence.line, int):
            incident.add_log_line(str(failure.evidence.source), line)
        incident.note(failure.at_ns, f"{failure.evidence.source}: {failure.title}")
        self._end(incident, failure.at_ns)
        return incident

    def count_lost(self, bad: BadAnswer, *, cut: bool = False) -> Incident | None:
        """Count a bad answer in the incident that explains it. `cut`: its text tells a death."""
        incident = self._recent.cost_of(bad)
        if incident is not None:
            incident.lost[bad.outcome] += bad.count
            incident.cut += bad.count if cut or bad.outcome in _CUT else 0
        return incident

    def note_told(self, at_ns: int) -> None:
        self._told_ns = at_ns if self._told_ns is None else min(self._told_ns, at_ns)

    def proves_death(self, bad: BadAnswer) -> bool:
        """True for an answer that tells a death if every request sent after it failed, too, or if it may come from another
        server behind the address.
        """
        failed = sum(sent_ns > bad.at_ns for sent_ns in self._failed)
        return self._balanced or (failed >= FEWEST_FAILED and self._answered_ns <= bad.at_ns)

    def feed_failed(self, sent_ns: int) -> None:
        self._failed.append(sent_ns)

    def feed_answer(self, sent_ns: int, at_ns: int) -> None:
        """Fold a good answer. A death that only a log showed is over when the request was sent well after it."""
        self._answered_ns = max(self._answered_ns, sent_ns)
        for incident in list(self._recent.open.values()):
            if not incident.by_states and sent_ns > incident.opened_ns + _BACK_AFTER_LOG_NS:
                incident.back_ns = at_ns
                self._end(incident, at_ns)

    def on_probe(self, row: ProbeRow) -> None:
        if row.get("ok") and row.get("what") == "health":
            self._healthy_ns = max(self._healthy_ns, row["at_ns"])

    def _judge_survival(self, incident: Incident, *, final: bool = False) -> None:
        """Judge a death that only a log line or an answer reported; both may quote a prompt. A server that answers later has
        survived; without lost requests a later healthy probe is enough. So has, at the end, one of which nothing else shows
        an end. No lost request: the report is a note. Lost ones: failed requests. Several of them cut or told that the
        engine is dead, and the report says so, too: another server answers, or one of several died; but not where answers
        told that well before the log did.
        """
        words = not incident.by_states or (incident.worst == "dying" and not incident.ever_hung)
        if incident.kind != "death" or not words or incident.ever_dead or incident.dismissed:
            return
        if incident.exit is not None or not self.sole or self._balanced:
            return
        lost = sum(incident.lost.values())
        # A health page may answer 200 long after the engine is gone: where requests were lost, only answers are life.
        lived_ns = self._answered_ns if lost else max(self._answered_ns, self._healthy_ns)
        if lived_ns < incident.opened_ns + NS_PER_S and not (final and self._lives_on(incident)):
            return
        says_gone = not self._launched and any(s.gone for s in (*incident.causes, *incident.echoes))
        told_before = self._told_ns is not None and self._told_ns < incident.opened_ns - COVERED_NS
        incident.outlived = not says_gone or incident.cut <= 1 or told_before
        if not incident.outlived:
            incident.add_signs([_ANOTHER_ANSWERS])
        elif final and not lost:  # before the end, its answers may still wait to be explained
            incident.dismissed = incident.unconfirmed = True

    def _lives_on(self, incident: Incident) -> bool:
        """True for a server whose states show no end, unless every request that was sent after the words failed, or several
        broke off.
        """
        failed = sum(sent_ns > incident.opened_ns for sent_ns in self._failed)
        all_fail = self._answered_ns <= incident.opened_ns and (failed >= FEWEST_FAILED or incident.cut > 1)
        return bool(self._replicas) and not all_fail

    def notes(self) -> list[str]:
        """Notes about deaths that a log or an answer reports and no other signal confirms."""
        found = (incident.named_by().evidence for incident in self.incidents if incident.unconfirmed)
        return [
            f"{e.source}{f' line {e.line}' if e.line else ''} says: {(e.text or '')[:_QUOTED]}; "
            f"nothing else confirms a death: {_NO_LOSS}"
            for e in found
        ][:_MOST_NOTES]

    def _found_balancer(self) -> None:
        """Several servers share the address: deaths only in logs were one of them."""
        self._balanced = True
        for incident in self.incidents:
            if incident.outlived:
                incident.outlived = False
                if incident.unconfirmed:
                    incident.unconfirmed = incident.dismissed = False
                incident.add_signs([_ONE_OF_SEVERAL])

    def finish(self, at_ns: int) -> None:
        for replica, row in self._exits.items():
            self._report_exit(replica, row)
        for incident in list(self._recent.open.values()):
            self._end(incident, at_ns, final=True)
        for incident in self.incidents:
            self._judge_survival(incident, final=True)

    def _report_exit(self, replica: str, row: Row) -> None:
        if any(i.replica == replica and i.exit is row for i in self.incidents):
            return
        kind: Kind = "terminated" if row.get("signal") == 15 else "death"
        incident = self._recent.open.get(replica) or self._begin(kind, replica, int(row["at_ns"]), int(row["at_ns"]))
        incident.starting |= self.load_begin_ns is None or int(row["at_ns"]) < self.load_begin_ns
        incident.ever_dead = kind == "death"
        incident.worst = "dead" if kind == "death" else "terminated"
        self._attach_exit(incident, row)

    def _was_shut_down(self, incident: Incident) -> bool:
        """True for a death that was an orderly shutdown. A routine SIGTERM gives clients the same answers and the same
        exit code. Only the log distinguishes them: it shows an orderly shutdown, and no line of a failure.
        """
        if incident.kind != "death" or not self.has_log or incident.causes:
            return False
        if any(s.evidence.source != "client" for s in incident.echoes):
            return False
        if incident.exit is not None and incident.exit.get("signal") not in (None, 15):
            return False
        since_ns = self._near_since_ns(incident)
        return any(since_ns < at_ns <= incident.opened_ns + 2 * _EXIT_NEAR_NS for at_ns in self.shutdowns)

    def _near_since_ns(self, incident: Incident) -> int:
        """Since when an event may belong to an incident: one before belongs to an earlier life of the server."""
        others = [i.closed_ns or 0 for i in self._recent.closed if i.replica == incident.replica]
        return max(incident.opened_ns - _EXIT_NEAR_NS, *others, 0)

    @property
    def sole(self) -> bool:
        return len(self._replicas) <= 1

    def any_down(self) -> bool:
        """True while some server is down that we did not stop."""
        return bool(self._exits) or any(i.ever_dead and i.back_ns is None for i in self.incidents)

    def real(self) -> list[Incident]:
        return [i for i in self.incidents if i.kind != "failure" and i.real]

    def _stop_by_us(self, replica: str, at_ns: int) -> None:
        """Dismiss incidents of a server that we stopped after the load. It was alive when we stopped it, as its exit
        was requested. A cause in the log still counts, and so does a hang that the question after the load shows.
        """
        self._stopped_by_us[replica] = at_ns
        for incident in self._recent.newest_first():
            hung = incident.ever_hung and self.last_question_waits
            if incident.replica in (replica, "") and not hung and self._while_stopping(incident.opened_ns):
                incident.dismissed = True

    def _while_stopping(self, at_ns: int) -> bool:
        """True while we were stopping a server. That is after the load (or without one), up to 20 s before it was gone."""
        outside = self.load_end_ns is None if self.load_begin_ns is None else at_ns >= (self.load_end_ns or at_ns + 1)
        return outside and any(asked_ns - at_ns < _STOPPING_NS for asked_ns in self._stopped_by_us.values())

    def _continue(self, incident: Incident, kind: Kind, to: State, row: StateRow, signs: list[str]) -> None:
        at_ns = int(row["at_ns"])
        late = incident.noticed_ns is not None and at_ns - incident.noticed_ns > _EXIT_NEAR_NS
        if kind == "terminated" and (self.load_end_ns is not None or late) and incident.kind != "terminated":
            return  # we end what is left of a dead server ourselves: that takes nothing back
        incident.kind = merged_kind(incident.kind, kind)
        incident.by_states = True
        since_ns = int(row.get("since_ns") or at_ns)
        if since_ns < incident.opened_ns:
            incident.opened_ns = since_ns
            if incident.n <= _MOST_SNAPSHOTS:
                self._take_requests(incident)
        if to != "dying" or incident.worst is None:
            incident.worst = to
        incident.ever_dead |= to == "dead"
        incident.ever_hung |= to == "hung"
        incident.add_signs(signs)
        if incident.noticed_ns is None or (to in ("dead", "hung") and incident.died_ns is None):
            incident.noticed_ns = at_ns
        if to in ("dead", "hung", "unreachable", "terminated"):
            incident.died_ns = incident.died_ns or int(row.get("since_ns") or at_ns)
        self._attribute(incident)

    def _begin(self, kind: Kind, replica: str, opened_ns: int, now_ns: int) -> Incident:
        incident = self._new(kind, replica, opened_ns)
        self._recent.open[replica] = incident
        exited = self._exits.get(replica) or self._orchestrator_ends.get(replica)
        if exited is not None and abs(int(exited["at_ns"]) - opened_ns) < _EXIT_NEAR_NS:
            self._attach_exit(incident, exited)
        since_ns = self._near_since_ns(incident)
        for row in self._gone if incident.process_ended else ():
            if row.get("replica") == replica and row["at_ns"] > since_ns:
                incident.add_gone(row)
        self.findings.append(finding_row(incident, "open", now_ns))
        return incident

    def _new(self, kind: Kind, replica: str, opened_ns: int) -> Incident:
        incident = Incident(len(self.incidents) + 1, kind, replica, opened_ns)
        incident.environment = self.environment
        incident.load_begin_ns = self._stats.first_sent_ns or self.load_begin_ns
        incident.has_log = self.has_log
        incident.attacks = self._attacks.in_force(opened_ns, within_ns=LATE_LOG_NS)
        if len(self.incidents) < _MOST_SNAPSHOTS:
            self._take_requests(incident)
            incident.sent_before = self._stats.counts_so_far()
            incident.figures = self._context.last_minute(replica)
        self.incidents.append(incident)
        return incident

    def _take_requests(self, incident: Incident) -> None:
        incident.in_flight = self._stats.in_flight_at(incident.opened_ns)
        incident.admitted = self._stats.admitted_until(incident.opened_ns)

    def _end(self, incident: Incident, at_ns: int, *, final: bool = False) -> None:
        incident.closed_ns = at_ns
        incident.add_gone_engines()
        self._judge_survival(incident, final=final)
        if self._was_shut_down(incident):
            incident.kind, incident.worst, incident.ever_dead = "terminated", "terminated", False
            incident.note(at_ns, "terminated: the log shows an orderly shutdown and no failure")
        self._recent.close(incident)
        if self._balanced and self.sole and incident.kind == "death" and not incident.dismissed:
            incident.add_signs([_ONE_OF_SEVERAL])
        if incident.kind != "failure":
            self._attribute(incident)
        self.findings.append(finding_row(incident, "close", at_ns))

    def _only_replica(self) -> str:
        return next(iter(self._replicas)) if len(self._replicas) == 1 else ""

    def _attach_exit(self, incident: Incident, row: Row) -> None:
        if incident.exit is None:
            incident.exit = row
            if incident.kind == "death" and row.get("code") == 0 and not row.get("signal"):
                incident.beside.append("exit_zero_after_death")
            incident.note(int(row["at_ns"]), f"process ended: {row.get('reason')}")

    def _attribute(self, incident: Incident) -> None:
        incident.has_log = self.has_log
        names = {incident.named_by().id, incident.kind}
        if not incident.causes:  # an echo or signs only: our attack may be the cause
            names |= {incident.kind, str(incident.worst), f"server_{incident.worst}", *(s.id for s in incident.echoes)}
            if incident.process_ended:
                names |= {"engine_death", f"{incident.kind}_unexplained", "engine_death_unexplained"}
                names |= {"engine_core_proc_died", "worker_proc_died"}
        incident.attribution = self._attacks.attribute(names, incident.opened_ns, incident.ended)
