"""Turns states, exits and deadly log lines into incidents: one an episode of a replica, whatever told of it first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from loadchaos.analysis.failure import Failure
from loadchaos.analysis.incidents.attribution import AttackLog
from loadchaos.analysis.incidents.bad_answers import BadAnswer
from loadchaos.analysis.incidents.context import IncidentContext, goes_on, reading
from loadchaos.analysis.incidents.incident import Incident, Kind, finding, kind_of, worse
from loadchaos.analysis.incidents.recent import LATE_LOG_NS, RecentIncidents
from loadchaos.analysis.request_stats import RequestStats, S
from loadchaos.core.ledger.rows import DeviceRow, IncidentRow, LaunchRow, MetricsRow, StateRow, SupervisorRow
from loadchaos.core.model import Attribution, Row, State

_LOG_ALONE_BACK_NS = 5 * S
_EXIT_NEAR_NS = 10 * S
_STOPPING_NS = 20 * S
_MOST_SNAPSHOTS = 100
_ONE_OF_SEVERAL = "one of several servers behind the address died"
_ANOTHER_ANSWERS = (
    "the log says that the engine is gone, but the address still answers: another server, or a restarted one"
)
_UP: tuple[State, ...] = ("healthy",)


class IncidentTracker:
    """All incidents of a run, in order. Rows about incidents gather in `findings` until somebody takes them."""

    def __init__(self, tally: RequestStats, attacks: AttackLog) -> None:
        self.incidents: list[Incident] = []
        self.findings: list[IncidentRow] = []
        self.named: list[Incident] = []  # those that a log has given a name since somebody last looked
        self.environment: Mapping[str, Any] = {}
        self.load_begin_ns: int | None = None
        self.has_log = False
        self.load_end_ns: int | None = None
        self.attribution: dict[int, Attribution] = {}
        self._tally, self._attacks, self._around, self._recent = tally, attacks, IncidentContext(), RecentIncidents()
        self._exits: dict[str, Row] = {}
        self._supervised: dict[str, Row] = {}  # the newest end that a supervisor told
        self._stops: deque[int] = deque(maxlen=1000)
        self._asked: dict[str, int] = {}  # when a server was gone that we ended
        self._replicas: set[str] = set()
        self._launched = False  # we started it: its end would be known
        self._balanced = False  # an address has shown itself to be several servers

    def measured(self, row: MetricsRow | DeviceRow) -> None:
        """Fold a `metrics` or `device` row: figures around an incident are part of it."""
        found = reading(row)
        if found is not None:
            self._around.feed(found)
            for incident in self._recent.open.values():
                goes_on(incident.figures, found, incident.replica)

    def state(self, row: StateRow) -> None:
        """Fold a `state` row."""
        replica, to, was = str(row.get("replica")), row["to"], row["from"]
        if row.get("engine") is not None:
            replica = f"{replica} engine {row['engine']}"
        else:
            self._replicas.add(replica)
            self._close_engines(replica, to, int(row["at_ns"]))
        at_ns = int(row["at_ns"])
        signs = [str(s) for s in row.get("signs") or ()]
        incident = self._recent.open.get(replica)
        if to == was:
            if row.get("balanced"):
                self._behind_a_balancer()
            about = self._recent.of(replica)
            if about is not None:
                about.tell(at_ns, "; ".join(signs))
            return
        kind = kind_of(to, was)
        if incident is None:
            over = self.load_end_ns is not None or self._while_stopping(at_ns)
            if kind is None or (to == "terminated" and over):
                return
            since_ns = int(row.get("since_ns") or at_ns)
            incident = self._recent.adopt(replica, since_ns) or self._begin(kind, replica, since_ns, at_ns)
            incident.starting = was == "starting"
        incident.tell(at_ns, f"{to}: {'; '.join(signs)}" if signs else to)
        if kind is not None:
            self._go_on(incident, kind, to, row, signs)
        if to in _UP or (to == "degraded" and incident.kind == "unreachable"):
            incident.back_ns = at_ns
            self._end(incident, at_ns)

    def exit(self, row: LaunchRow) -> None:
        """Fold the exit of a server we launched."""
        replica = str(row.get("replica"))
        if row.get("asked"):
            self._ended_by_us(replica, int(row["at_ns"]))
            return  # it must not hide an exit before it
        self._exits[replica] = row
        incident = self._recent.open.get(replica)
        if incident is not None:
            self._attach_exit(incident, row)

    def supervised(self, row: SupervisorRow) -> None:
        """Fold an end that a supervisor tells (docker, Kubernetes, systemd): how a server ended that we did not launch.

        It is asked every other second, so that the server may be back by now: then it explains the episode before.
        """
        at_ns, replica, source = int(row["at_ns"]), str(row.get("replica")), row.get("source")
        exit_row = {
            "at_ns": at_ns,
            "code": row.get("exit_code"),
            "signal": None,
            "reason": f"{row['reason']} ({source})",
        }
        self._supervised[replica] = exit_row
        incident = self._recent.that_ended(replica, at_ns)
        if incident is not None:
            self._attach_exit(incident, exit_row)

    def deadly(self, failure: Failure, replica: str | None) -> None:
        """A log line, or an answer, that tells of a death or names its cause."""
        incident = self._recent.about(failure, replica, self._replicas)
        if incident is None and failure.role == "echo" and self._while_stopping(failure.at_ns):
            return  # what a server says that is told to end
        if incident is None:
            incident = self._begin("death", replica or self._sole(), failure.at_ns, failure.at_ns)
            incident.by_states = False
        group = incident.causes if failure.role == "cause" else incident.echoes
        if all(s.id != failure.id for s in group):
            if failure.role == "cause" and not incident.causes:
                self.named.append(incident)
            group.append(failure)
            incident.tell(failure.at_ns, f"{failure.evidence.get('source')}: {failure.title}")
        if isinstance(line := failure.evidence.get("line"), int):
            incident.saw_line(str(failure.evidence.get("source")), line)
        self._attribute(incident)

    def hang_at(self, at_ns: int) -> Incident | None:
        """The hang that a symptom of this time belongs to."""
        return self._recent.hang_at(at_ns)

    def explain(self, incident: Incident, failure: Failure) -> None:
        """A symptom that says more of an incident than its states do; a cause that a log named stands over it."""
        if not incident.causes:
            incident.causes.append(failure)
            incident.tell(failure.at_ns, failure.title)
            self._attribute(incident)

    def beside(self, failure: Failure, replica: str | None) -> Incident | None:
        """A failure that kills nobody, but is told while an episode lasts: that incident, None if there is none."""
        incident = self._recent.about(failure, replica, self._replicas)
        if incident is not None and failure.id not in incident.beside:
            incident.beside.append(failure.id)
            incident.tell(failure.at_ns, f"{failure.evidence.get('source')}: {failure.title}")
        return incident

    def failure(self, failure: Failure, attribution: Attribution) -> Incident:
        """The incident of a failure that kills nobody, met for the first time outside of any episode."""
        incident = self._new("failure", self._sole(), failure.at_ns)
        incident.causes.append(failure)
        incident.attribution = self.attribution[incident.n] = attribution
        if isinstance(line := failure.evidence.get("line"), int):
            incident.saw_line(str(failure.evidence.get("source")), line)
        incident.tell(failure.at_ns, f"{failure.evidence.get('source')}: {failure.title}")
        self._end(incident, failure.at_ns)
        return incident

    def lost_to(self, bad: BadAnswer) -> Incident | None:
        """The episode that a bad answer belongs to, with the answer counted as lost there; None if it has none."""
        incident = self._recent.that_cost(bad)
        if incident is not None:
            incident.lost[bad.outcome] += bad.count
        return incident

    def answered(self, sent_ns: int, at_ns: int) -> None:
        """A request was answered: a death that only a log told of is over when it was sent well after."""
        for incident in list(self._recent.open.values()):
            if not incident.by_states and sent_ns > incident.opened_ns + _LOG_ALONE_BACK_NS:
                incident.back_ns = at_ns
                self._outlive(incident)
                self._end(incident, at_ns)

    def _outlive(self, incident: Incident) -> None:
        """The address of a death that only a log told of goes on answering: no death, or another server that answers now.

        A server may survive what its log calls deadly (LMDeploy fails one request). None writes that its engine is gone
        and goes on, though one that we started would have ended; and of several behind an address one may well be gone.
        """
        if not self.sole or incident.exit is not None:
            return
        gone = not self._launched and any(s.gone for s in (*incident.causes, *incident.echoes))
        incident.outlived = not gone and not self._balanced
        if gone and not self._balanced:
            incident.add_signs([_ANOTHER_ANSWERS])

    def _behind_a_balancer(self) -> None:
        """What only a log told of while the address went on answering was the death of one of several servers."""
        self._balanced = True
        for incident in self.incidents:
            if incident.outlived:
                incident.outlived = False
                incident.add_signs([_ONE_OF_SEVERAL])

    def finish(self, at_ns: int) -> None:
        """The run is over: exits that no state told of are deaths, and everything open is closed."""
        for replica, row in self._exits.items():
            self._exit_untold(replica, row)
        for incident in list(self._recent.open.values()):
            self._end(incident, at_ns)

    def started(self, replica: str) -> None:
        """A new life of a server we launched: the exit that ended the old one explains nothing in it."""
        self._launched = True
        row = self._exits.pop(replica, None)
        if row is not None:
            self._exit_untold(replica, row)

    def _exit_untold(self, replica: str, row: Row) -> None:
        if any(i.replica == replica and i.exit is row for i in self.incidents):
            return
        kind: Kind = "terminated" if row.get("signal") == 15 else "death"
        incident = self._recent.open.get(replica) or self._begin(kind, replica, int(row["at_ns"]), int(row["at_ns"]))
        incident.starting |= self.load_begin_ns is None or int(row["at_ns"]) < self.load_begin_ns
        incident.ever_dead = kind == "death"
        incident.worst = "dead" if kind == "death" else "terminated"
        self._attach_exit(incident, row)

    def stopped_in_order(self, at_ns: int) -> None:
        """A log says that its server ends in order; after a failure it says so, too."""
        self._stops.append(at_ns)

    def _was_told_to_end(self, incident: Incident) -> bool:
        """Whether a death was none: a routine SIGTERM gives clients the same answers and the same exit code.

        Only the log tells them apart: it has the end in order, and none of the words that every failure leaves.
        """
        if incident.kind != "death" or not self.has_log or incident.causes:
            return False
        if any(s.evidence.get("source") != "client" for s in incident.echoes):
            return False
        if incident.exit is not None and incident.exit.get("signal") not in (None, 15):
            return False
        others = [i.closed_ns or 0 for i in self._recent.closed if i.replica == incident.replica]
        since_ns = max(incident.opened_ns - _EXIT_NEAR_NS, *others, 0)  # a stop before belongs to the life before
        return any(since_ns < at_ns <= incident.opened_ns + 2 * _EXIT_NEAR_NS for at_ns in self._stops)

    @property
    def sole(self) -> bool:
        """Whether there is one replica only, as far as anybody has told."""
        return len(self._replicas) <= 1

    def any_down(self) -> bool:
        """Whether some server is gone now: an episode of a death is open, or a process ended that we did not end."""
        return bool(self._exits) or any(i.ever_dead and i.back_ns is None for i in self.incidents)

    def real(self) -> list[Incident]:
        """Episodes that came to something; scares (a dying that was none) are left out."""
        return [i for i in self.incidents if i.kind != "failure" and i.real]

    def _close_engines(self, replica: str, to: State, at_ns: int) -> None:
        """What one engine of a server was in ends with the server itself."""
        if to in ("dead", "terminated", "restarting"):
            for incident in [i for name, i in self._recent.open.items() if name.startswith(f"{replica} engine ")]:
                self._end(incident, at_ns)

    def _ended_by_us(self, replica: str, at_ns: int) -> None:
        """While we end a server after the load it refuses and loses its engine, as a dead one does: that is no death.

        It was alive when we told it to end, or its exit would not be one we asked for; a cause in the log still counts.
        """
        self._asked[replica] = at_ns
        for incident in self._recent.newest_first():
            if incident.replica in (replica, "") and self._while_stopping(incident.opened_ns):
                incident.dismissed = True

    def _while_stopping(self, at_ns: int) -> bool:
        """Whether we were ending the server then: after the load (or without one), and up to 20 s before it was gone."""
        outside = self.load_end_ns is None if self.load_begin_ns is None else at_ns >= (self.load_end_ns or at_ns + 1)
        return outside and any(asked_ns - at_ns < _STOPPING_NS for asked_ns in self._asked.values())

    def _go_on(self, incident: Incident, kind: Kind, to: State, row: StateRow, signs: list[str]) -> None:
        at_ns = int(row["at_ns"])
        late = incident.noticed_ns is not None and at_ns - incident.noticed_ns > _EXIT_NEAR_NS
        if kind == "terminated" and (self.load_end_ns is not None or late) and incident.kind != "terminated":
            return  # we end what is left of a dead server ourselves: that takes nothing back
        incident.kind = worse(incident.kind, kind)
        incident.by_states = True
        incident.opened_ns = min(incident.opened_ns, int(row.get("since_ns") or at_ns))
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
        exited = self._exits.get(replica) or self._supervised.get(replica)
        if exited is not None and abs(int(exited["at_ns"]) - opened_ns) < _EXIT_NEAR_NS:
            self._attach_exit(incident, exited)
        self.findings.append(finding(incident, "open", now_ns))
        return incident

    def _new(self, kind: Kind, replica: str, opened_ns: int) -> Incident:
        incident = Incident(len(self.incidents) + 1, kind, replica, opened_ns)
        incident.environment, incident.load_begin_ns = self.environment, self.load_begin_ns
        incident.has_log = self.has_log
        incident.attacks = self._attacks.in_force(opened_ns, within_ns=LATE_LOG_NS)
        if len(self.incidents) < _MOST_SNAPSHOTS:
            incident.in_flight = self._tally.out_at(opened_ns)
            incident.admitted = list(self._tally.admitted)
            incident.sent_before = self._tally.so_far()
            incident.figures = self._around.so_far(replica)
        self.incidents.append(incident)
        return incident

    def _end(self, incident: Incident, at_ns: int) -> None:
        incident.closed_ns = at_ns
        if self._was_told_to_end(incident):
            incident.kind, incident.worst, incident.ever_dead = "terminated", "terminated", False
            incident.tell(at_ns, "terminated: the log shows an orderly shutdown and no failure")
        self._recent.close(incident)
        if self._balanced and self.sole and incident.kind == "death" and not incident.dismissed:
            incident.add_signs([_ONE_OF_SEVERAL])
        if incident.kind != "failure":
            self._attribute(incident)
        self.findings.append(finding(incident, "close", at_ns))

    def _sole(self) -> str:
        return next(iter(self._replicas)) if len(self._replicas) == 1 else ""

    def _attach_exit(self, incident: Incident, row: Row) -> None:
        if incident.exit is None:
            incident.exit = row
            if incident.kind == "death" and row.get("code") == 0 and not row.get("signal"):
                incident.beside.append("exit_zero_after_death")
            incident.tell(int(row["at_ns"]), f"process ended: {row.get('reason')}")

    def _attribute(self, incident: Incident) -> None:
        incident.has_log = self.has_log
        names = {incident.named_by().id, incident.kind}
        if not incident.causes:  # an echo, or nothing but signs: what we did to it may be the whole story
            names |= {incident.kind, str(incident.worst), f"server_{incident.worst}", *(s.id for s in incident.echoes)}
            if incident.kind == "death":
                names |= {"engine_death", "engine_death_unexplained", "engine_core_proc_died", "worker_proc_died"}
        incident.attribution = self.attribution[incident.n] = self._attacks.attribute(
            names, incident.opened_ns, incident.ended
        )
