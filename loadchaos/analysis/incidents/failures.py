"""The book of failures: one entry an id, with its count, its first evidence, whose doing it was, and its incidents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.incidents.attribution import owned
from loadchaos.analysis.incidents.incident import Incident, Seen
from loadchaos.core.model import Attribution

_BY_TITLE = ("unexplained_", "unknown_", "unexpected_")
_MOST_TITLES = 100


@dataclass
class FailureRecord:
    """One failure of the verdict. What the log says and what clients were told is the same thing: the larger counts."""

    seen: Seen
    attribution: Attribution
    incident: Incident
    in_log: int = 0
    at_clients: int = 0
    deaths: list[Incident] = field(default_factory=list)
    alt: list[str] = field(default_factory=list)
    remedy: str | None = None
    title: str | None = None

    @property
    def count(self) -> int:
        """How often it was met: deaths are counted as such, anything else by lines or by answers."""
        return len(self.deaths) or max(self.in_log, self.at_clients)

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two sightings one entry."""
        return key_of(self.seen, self.attribution)

    def to_json(self) -> dict[str, Any]:
        """A failure as in verdict.json, but for times in words and acceptance, which the verdict adds."""
        known, remedy = owned(
            self.attribution, self.seen.known, self.seen.remedy if self.remedy is None else self.remedy
        )
        found: dict[str, Any] = {
            "id": self.seen.id, "severity": self.seen.severity, "title": self.title or self.seen.title,
            "count": self.count, "first_seen_ns": self.deaths[0].opened_ns if self.deaths else self.seen.at_ns,
            "evidence": {k: self.seen.evidence.get(k) for k in ("source", "line", "text")},
            "attribution": self.attribution, "known": known,
            "remedy": remedy, "incident": self.incident.folder,
            "alt": list(self.alt), "frames": list(self.seen.frames), "process": self.seen.process,
        }  # fmt: skip
        if self.deaths:
            first = self.deaths[0]
            found |= {
                "incidents": [d.folder for d in self.deaths],
                "lost_requests": sum(d.lost.total() for d in self.deaths),
                "in_flight_at_death": len(first.in_flight),
                "recovered_after_s": _worst([d.recovered_after_s() for d in self.deaths]),
                "noticed_after_s": _noticed(first),
                "signs": list(first.signs),
            }
        return found


def _worst(recoveries: list[float | None]) -> float | None:
    known = [r for r in recoveries if r is not None]
    return max(known) if known and len(known) == len(recoveries) else None


def _noticed(incident: Incident) -> float | None:
    if incident.noticed_ns is None:
        return None
    return round((incident.noticed_ns - (incident.died_ns or incident.opened_ns)) / 1e9, 3)


def key_of(seen: Seen, attribution: Attribution) -> tuple[str, str, str]:
    """Named failures are one an id; those nobody knows are one a text."""
    by_title = seen.id.startswith(_BY_TITLE)
    return seen.id, normalise(seen.title) if by_title else "", attribution


class FailureRegistry:
    """All failures of a run that killed nobody. Deaths and hangs are told by their incidents (`entries_of`)."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str, str], FailureRecord] = {}

    def find(self, seen: Seen, attribution: Attribution) -> FailureRecord | None:
        """The entry a sighting belongs to, None when it is the first of its kind."""
        key = key_of(seen, attribution)
        if key not in self.entries and len(self.entries) >= _MOST_TITLES:
            # A server that answers with endless variety must not fill our memory: the first of that id takes the rest.
            return next((e for e in self.entries.values() if e.seen.id == seen.id), None)
        return self.entries.get(key)

    def open(self, seen: Seen, attribution: Attribution, incident: Incident) -> FailureRecord:
        """A failure met for the first time."""
        entry = FailureRecord(seen, attribution, incident)
        self.entries[entry.key] = entry
        return entry


def entries_of(incidents: list[Incident], attribution_of: dict[int, Attribution]) -> list[FailureRecord]:
    """One entry for each cause of deaths, hangs and losses: five deaths of one cause are one entry, counted five times."""
    found: dict[tuple[str, str, str], FailureRecord] = {}
    for incident in incidents:
        if incident.kind == "failure" or not incident.real:
            continue
        seen = incident.named_by()
        if incident.kind in ("death", "restart") and seen.severity != "startup":
            seen = replace(seen, severity="startup" if incident.starting else "engine_death")
        attribution = attribution_of.get(incident.n, "server")
        entry = found.get(key_of(seen, attribution))
        if entry is None:
            entry = found[key_of(seen, attribution)] = FailureRecord(seen, attribution, incident, alt=list(seen.alt))
        entry.deaths.append(incident)
        others = [s.id for s in incident.causes if s.id != seen.id]
        entry.alt += [a for a in dict.fromkeys(others) if a not in entry.alt]
    return list(found.values())
