"""Find the open or recent incident of a sign, a log line or an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from loadchaos.analysis.failure import Failure
from loadchaos.analysis.incidents.bad_answers import BadAnswer
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.core.units import NS_PER_S

LATE_LOG_NS = 30 * NS_PER_S
"""A log line up to this long before or after an incident may belong to it."""
SAME_DEATH_NS = 60 * NS_PER_S


class RecentIncidents:
    """Open incidents by replica ("" if unknown), and recently closed ones. `closed` has the newest last. Failures that
    kill nobody are in neither.
    """

    def __init__(self) -> None:
        self.open: dict[str, Incident] = {}
        self.closed: deque[Incident] = deque(maxlen=50)

    def newest_first(self) -> Iterator[Incident]:
        yield from self.open.values()
        yield from reversed(self.closed)

    def close(self, incident: Incident) -> None:
        if self.open.get(incident.replica) is incident:
            del self.open[incident.replica]
        if incident.kind != "failure":
            self.closed.append(incident)

    def latest(self, replica: str) -> Incident | None:
        return self.open.get(replica) or next((i for i in reversed(self.closed) if i.replica == replica), None)

    def ended_near(self, replica: str, at_ns: int) -> Incident | None:
        """The incident that an exit report belongs to. It may have closed by then, and a lost network ends no server."""
        past = (i for i in reversed(self.closed) if i.replica == replica and at_ns - i.opened_ns < SAME_DEATH_NS)
        return self.open.get(replica) or next((i for i in past if i.kind != "unreachable"), None)

    def hang_at(self, at_ns: int) -> Incident | None:
        """The hang at a time, or one that began up to two minutes later. Symptoms show before states do."""
        for incident in self.newest_first():
            until_ns = incident.closed_ns or at_ns
            if incident.kind == "hang" and incident.opened_ns - 2 * SAME_DEATH_NS <= at_ns <= until_ns:
                return incident
        return None

    def cost_of(self, bad: BadAnswer) -> Incident | None:
        return next((i for i in self.newest_first() if i.real and i.covers(bad.sent_ns, bad.at_ns)), None)

    def adopt(self, replica: str, since_ns: int) -> Incident | None:
        """Reopen a death that a log showed before the states, as one of `replica`."""
        for key in (replica, ""):
            incident = self.open.get(key)
            if incident is not None and not incident.by_states:
                self.open.pop(key)
                return self._reopen(incident, replica)
        for incident in reversed(self.closed):  # its first lines came late, or earlier answers were still arriving
            near = abs(since_ns - incident.opened_ns) < SAME_DEATH_NS
            if not incident.by_states and near and incident.replica in (replica, ""):
                incident.back_ns = incident.closed_ns = None
                incident.outlived = incident.dismissed = incident.unconfirmed = False
                return self._reopen(incident, replica)
        return None

    def _reopen(self, incident: Incident, replica: str) -> Incident:
        incident.replica = replica
        self.open[replica] = incident
        return incident

    def find(self, failure: Failure, replica: str | None, replicas: Collection[str]) -> Incident | None:
        """The incident that a log line belongs to, by its time and place. `replicas` are those with state rows."""
        mine = [i for i in self.closed if replica not in replicas or i.replica == replica]
        names = [replica] if replica in replicas else list(self.open)
        during = [i for i in (*mine, *(self.open[n] for n in names if n in self.open)) if i.open_at(failure.at_ns)]
        if during:  # between fast deaths a line may be read when the next one has begun
            return max(during, key=lambda i: i.opened_ns)
        for name in names:
            incident = self.open.get(name or "")
            if incident is not None:
                return incident
        for incident in reversed(mine):
            until_ns = (incident.closed_ns or 0) + (0 if incident.back_ns else LATE_LOG_NS)
            if incident.opened_ns - LATE_LOG_NS <= failure.at_ns <= until_ns:
                return incident
        return None
