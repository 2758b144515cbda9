"""Count errors that no rule names and that no death followed.

They are exceptions with a traceback, and single lines at ERROR level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loadchaos.analysis.classify.last_words import Candidate
from loadchaos.analysis.classify.match import TITLE_CHARS, Match
from loadchaos.analysis.classify.normalise import normalise, without_numbers
from loadchaos.analysis.classify.prefixes import format_clock
from loadchaos.analysis.classify.signature_file import UNKNOWN
from loadchaos.analysis.failure import SERVER_LOST, Failure, evidence

_MOST_KINDS = 500
_MOST_FINDINGS = 3  # of one log, with those that have a name
_ANSWERS = "unexplained_answers_5xx"
_BEFORE, _AFTER = 400, 400  # lines around a death whose errors belong to it
_OF_GATEWAY = (
    "502: the server behind the gateway refused or closed the connection. 503: the gateway has no server that it takes for "
    "healthy. 504: the server was too slow. Ask the server's /health, and read the error log of the gateway and the "
    "log of the server at these times."
)
_REMEDY = "no signature matches this error: compare its time with the failed requests, and report it upstream"


@dataclass
class UnexplainedErrors:
    """Unexplained errors of a log or a run, equal ones counted."""

    kinds: dict[tuple[str, str, str], Failure] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)  # normalised, by their text without numbers

    def add_exceptions(self, matches: Iterable[Match]) -> None:
        """Count exceptions of tracebacks that group() explains with nothing."""
        for m in matches:
            if m.loud:
                name = "unexplained_exception" if m.id == UNKNOWN.id else m.id
                self._count(
                    Failure(
                        name,
                        "startup" if m.loading else "request",
                        m.title,
                        m.evidence,
                        m.at_ns or 0,
                        process=m.process,
                        remedy=m.remedy or _REMEDY,
                        repeats=m.repeats,
                        frames=m.frames,
                        frame=m.frame,
                        clock_s=m.when_s,
                    )
                )

    def add_lines(self, lines: Iterable[Candidate]) -> None:
        for line in lines:
            if line.loud:
                place = line.place
                name, what = (place.id, place.title) if place is not None else ("unexplained_error", "Error in the log")
                if line.warned and place is None:
                    name, what = "unexplained_warning", "Warning in the log"
                title = f"{what}: {self._normalised(line.text)}"
                if line.answer:
                    name, title = _ANSWERS, f"Requests were answered with {line.answer}"
                of_gateway = line.answer and not line.answer.startswith("500")
                remedy = _OF_GATEWAY if of_gateway else (place.remedy if place is not None else "") or _REMEDY
                shown, process = evidence(line.source, line.text, line.line), line.process or None
                failure = Failure(name, line.severity, title, shown, line.at_ns or 0, process=process, remedy=remedy)
                failure.clock_s, failure.repeats = line.clock_s, line.repeats
                self._count(failure)

    def _normalised(self, text: str) -> str:
        key = without_numbers(text)
        if key not in self._texts:
            if len(self._texts) >= _MOST_KINDS:
                self._texts.clear()
            self._texts[key] = normalise(text)[:TITLE_CHARS]
        return self._texts[key]

    def _count(self, failure: Failure) -> None:
        key = (str(failure.evidence.source), failure.id, failure.title)
        if (first := self.kinds.get(key)) is not None:
            first.repeats += failure.repeats + 1
            since, until = first.clock_s, failure.clock_s
            if first.id == _ANSWERS and since is not None and until is not None and since != until:
                first.why = f"From {format_clock(since)} to {format_clock(until)}"
        elif len(self.kinds) < _MOST_KINDS:
            self.kinds[key] = failure

    def beside(self, found: Sequence[Failure]) -> list[Failure]:
        """Unexplained errors to report with the failures `found`. Those around a death belong to it. Most frequent
        first, and three findings for each log at most.
        """
        deaths = [f for f in found if f.severity in SERVER_LOST]
        room = max(0, _MOST_FINDINGS - len({(f.id, f.title) for f in found}))
        rest = [f for f in self.kinds.values() if not any(_near(f, death) for death in deaths)]
        if found or any(f.id != _ANSWERS for f in rest):  # they only follow
            rest = [f for f in rest if f.id != _ANSWERS]
        rest.sort(key=lambda f: (not f.frames, -f.repeats, f.evidence.line))
        return rest[:room]

    def notes(self) -> list[str]:
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
