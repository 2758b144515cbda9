"""Registry of a run's failures: equal ones become one entry with counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from loadchaos.analysis.failure import Failure
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.core.outcome_rules import CLOSED_UNANNOUNCED

_MOST_FAILURES = 100


class FailureRegistry:
    """All failures of a run that caused no death or hang. Those that did are reported by their incidents
    (`failures_of`).
    """

    def __init__(self) -> None:
        self.failures: dict[tuple[str, str, str], Failure] = {}

    def find(self, failure: Failure) -> Failure | None:
        key = failure.key
        if key not in self.failures and (dropped := self._dropped(failure)) is not None:
            return dropped
        if key not in self.failures and len(self.failures) >= _MOST_FAILURES:
            # A server that answers with endless variety must not fill our memory: the first of that id counts the rest.
            return next((f for f in self.failures.values() if f.id == failure.id), None)
        return self.failures.get(key)

    def _dropped(self, failure: Failure) -> Failure | None:
        """The failure of requests that the server dropped, which looks like the end of an idle connection where it was a
        kept-alive one: where others were dropped for certain, it is one of them.
        """
        alike = (key for key in self.failures if (key[0], key[2]) == (failure.key[0], failure.key[2]))
        unsure = failure.evidence.text == CLOSED_UNANNOUNCED
        for key in alike if failure.outcome == "reset" else ():
            found = self.failures[key]
            if unsure:
                return found
            if found.evidence.text == CLOSED_UNANNOUNCED:
                found.alt += (found.title,)
                found.title, found.evidence = failure.title, failure.evidence
                self.failures[failure.key] = self.failures.pop(key)
                return found
        return None

    def open(self, failure: Failure, incident: Incident) -> Failure:
        opened = replace(failure, incident=incident, alt=(), in_log=0, at_clients=0, requests=Counter())
        self.failures[opened.key] = opened
        return opened


def failures_of(incidents: list[Incident]) -> list[Failure]:
    """One failure for each cause of deaths, hangs and outages. Five deaths of one cause are one failure, counted five
    times.
    """
    found: dict[tuple[object, ...], Failure] = {}
    for incident in incidents:
        if incident.kind == "failure" or not incident.real:
            continue
        named = incident.named_by()
        new = replace(named, attribution=incident.attribution, incident=incident, deaths=[])
        if incident.process_ended and new.severity != "startup":
            new.severity = "request" if incident.outlived else "startup" if incident.starting else "engine_death"
        failure = found.setdefault((*new.key, incident.outlived), new)
        failure.deaths.append(incident)
        others = dict.fromkeys(s.id for s in incident.causes if s.id != named.id)
        failure.alt += tuple(a for a in others if a not in failure.alt)
    return list(found.values())
