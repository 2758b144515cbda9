"""The episodes that go on and those that ended last, and which of them a sign, a log line or an answer belongs to."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from loadchaos.analysis.failure import Failure
from loadchaos.analysis.incidents.bad_answers import BadAnswer
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.request_stats import S

LATE_LOG_NS = 30 * S
"""So long after an episode, or before it, a log may still tell of it."""
SAME_DEATH_NS = 60 * S


class RecentIncidents:
    """`open` by replica ("" where nobody told which); `closed` the newest last. Failures that kill nobody are in neither."""

    def __init__(self) -> None:
        self.open: dict[str, Incident] = {}
        self.closed: deque[Incident] = deque(maxlen=50)

    def newest_first(self) -> Iterator[Incident]:
        """Those that go on, then those that are over."""
        yield from self.open.values()
        yield from reversed(self.closed)

    def close(self, incident: Incident) -> None:
        """It goes on no more."""
        if self.open.get(incident.replica) is incident:
            del self.open[incident.replica]
        if incident.kind != "failure":
            self.closed.append(incident)

    def of(self, replica: str) -> Incident | None:
        """What a replica is in, or was in last."""
        return self.open.get(replica) or next((i for i in reversed(self.closed) if i.replica == replica), None)

    def that_ended(self, replica: str, at_ns: int) -> Incident | None:
        """The episode whose end is told at a time: it may be over by then, and no lost network ends a server."""
        past = (i for i in reversed(self.closed) if i.replica == replica and at_ns - i.opened_ns < SAME_DEATH_NS)
        return self.open.get(replica) or next((i for i in past if i.kind != "unreachable"), None)

    def hang_at(self, at_ns: int) -> Incident | None:
        """The hang that was going on at a time, or that began up to two minutes later: symptoms show before states do."""
        for incident in self.newest_first():
            until_ns = incident.closed_ns or at_ns
            if incident.kind == "hang" and incident.opened_ns - 2 * SAME_DEATH_NS <= at_ns <= until_ns:
                return incident
        return None

    def that_cost(self, bad: BadAnswer) -> Incident | None:
        """The episode that a bad answer was lost to."""
        return next((i for i in self.newest_first() if i.real and i.covers(bad.sent_ns, bad.at_ns)), None)

    def adopt(self, replica: str, since_ns: int) -> Incident | None:
        """The death a log told of before the states noticed it: it goes on as this replica's."""
        for key in (replica, ""):
            incident = self.open.get(key)
            if incident is not None and not incident.by_states:
                self.open.pop(key)
                return self._goes_on(incident, replica)
        for incident in reversed(self.closed):  # its first lines came late, or answers sent before were still coming
            near = abs(since_ns - incident.opened_ns) < SAME_DEATH_NS
            if not incident.by_states and near and incident.replica in (replica, ""):
                incident.back_ns = incident.closed_ns = None
                incident.outlived = False
                return self._goes_on(incident, replica)
        return None

    def _goes_on(self, incident: Incident, replica: str) -> Incident:
        incident.replica = replica
        self.open[replica] = incident
        return incident

    def about(self, failure: Failure, replica: str | None, replicas: Collection[str]) -> Incident | None:
        """The episode that a log line of this time and place belongs to; `replicas` are those that states have told of."""
        mine = [i for i in self.closed if replica not in replicas or i.replica == replica]
        names = [replica] if replica in replicas else list(self.open)
        during = [i for i in (*mine, *(self.open[n] for n in names if n in self.open)) if i.lasted_at(failure.at_ns)]
        if during:  # where deaths follow fast a line may be read when the next one has begun
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
