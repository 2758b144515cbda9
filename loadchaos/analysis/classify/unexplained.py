"""Count errors that no rule names and that no death followed.

They are exceptions with a traceback, and single lines at ERROR level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from loadchaos.analysis.classify.last_words import Candidate
from loadchaos.analysis.classify.match import Match
from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.classify.signature_file import UNKNOWN
from loadchaos.analysis.failure import DEADLY, Failure, evidence

_MOST_KINDS = 500
_MOST_FINDINGS = 3  # of one log, with those that have a name
_BEFORE, _AFTER = 400, 400  # lines around a death whose errors belong to it
_TITLE = 240
_REMEDY = "no signature matches this error: compare its time with the failed requests, and report it upstream"


@dataclass
class UnexplainedErrors:
    """Unexplained errors of a log or a run, equal ones counted."""

    kinds: dict[tuple[str, str, str], Failure] = field(default_factory=dict)

    def add_exceptions(self, matches: Iterable[Match]) -> None:
        """Count exceptions of tracebacks that group() explains with nothing."""
        for match in matches:
            if match.loud:
                name = "unexplained_exception" if match.id == UNKNOWN.id else match.id
                self._add(name, match.title, match.evidence, match.process, match, match.repeats)

    def add_line(self, candidate: Candidate) -> None:
        """Count a line logged at ERROR or higher, without a traceback."""
        text = normalise(candidate.text)[:_TITLE]
        shown = evidence(candidate.source, candidate.text, candidate.line)
        place = candidate.place
        name, what = (place.id, place.title) if place is not None else ("unexplained_error", "Error in the log")
        self._add(name, f"{what}: {text}", shown, candidate.process or None, candidate, 0)

    def _add(
        self, name: str, title: str, shown: object, process: str | None, seen: Match | Candidate, repeats: int
    ) -> None:
        source = str(seen.evidence.source) if isinstance(seen, Match) else seen.source
        key = (source, name, title)
        first = self.kinds.get(key)
        if first is not None:
            self.kinds[key] = replace(first, repeats=first.repeats + repeats + 1)
        elif len(self.kinds) < _MOST_KINDS:
            self.kinds[key] = Failure(
                id=name,
                severity="request",
                title=title,
                evidence=shown,  # type: ignore[arg-type]
                process=process,
                at_ns=seen.at_ns or 0,
                remedy=(seen.remedy if isinstance(seen, Match) else seen.place.remedy if seen.place else "") or _REMEDY,
                repeats=repeats,
                frames=seen.frames if isinstance(seen, Match) else (),
                frame=seen.frame if isinstance(seen, Match) else "",
                clock_s=seen.clock_s if isinstance(seen, Match) else None,
            )

    def beside(self, found: Sequence[Failure]) -> list[Failure]:
        """Unexplained errors to report with the failures `found`.

        Those around a death belong to it. Most frequent first, and three findings for each log at most.
        """
        deaths = [f for f in found if f.severity in (*DEADLY, "hang", "node")]
        room = max(0, _MOST_FINDINGS - len({(f.id, f.title) for f in found}))
        rest = [f for f in self.kinds.values() if not any(_near(f, death) for death in deaths)]
        rest.sort(key=lambda f: (not f.frames, -f.repeats, f.evidence.line))
        return rest[:room]

    def notes(self) -> list[str]:
        """Notes for a verdict, most frequent first."""
        found = sorted(self.kinds.values(), key=lambda f: (not f.frames, -f.repeats))
        notes = []
        for failure in found[:_MOST_FINDINGS]:
            what = "exception" if failure.frames else "error"
            where = f"{failure.evidence.source or 'log'} line {failure.evidence.line}"
            notes.append(f"unexplained {what} in the server's log, {failure.repeats + 1} x: {failure.title} ({where})")
        return notes


def _near(failure: Failure, death: Failure) -> bool:
    if failure.evidence.source != death.evidence.source:
        return False
    apart = (failure.evidence.line or 0) - (death.evidence.line or 0)
    return -_BEFORE <= apart <= _AFTER
