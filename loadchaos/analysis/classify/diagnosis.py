"""Diagnose one whole log: failures, version, lines to send upstream.

Memory does not grow with the log: matches become failures as soon as 300 s (or 15,000 lines) pass without another, equal
request failures are counted, and of a crash loop the first deaths are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from loadchaos.analysis.classify.classifier import Classifier, with_candidates
from loadchaos.analysis.classify.group import group
from loadchaos.analysis.classify.last_words import EXCERPT
from loadchaos.analysis.classify.match import Match, near
from loadchaos.analysis.classify.prefixes import format_clock
from loadchaos.analysis.classify.unexplained import UnexplainedErrors
from loadchaos.analysis.classify.versions import with_standing
from loadchaos.analysis.failure import DEADLY, Failure
from loadchaos.analysis.verdict.model import KnownIssue
from loadchaos.core.model import Severity, severity_rank
from loadchaos.core.whole_lines import WholeLine
from loadchaos.server.dialects import DIALECTS

_APART_S = 300.0
_MOST_HELD = 4_000
_MOST_CONTEXT = 500
_MOST_DEATHS = 300
_MOST_KINDS = 2_000
_MOST_MARKS = 200

_LANDMARKS: Mapping[str, tuple[str, ...]] = {
    "flags": ("non-default args", "args: Namespace", "server_args=ServerArgs", "EngineConfig("),
    "batch": ("Dumping input data", "Dumping scheduler output"),
}


@cache
def _versions() -> re.Pattern[str]:
    texts = (f"(?P<{dialect.name}>{dialect.log_version})" for dialect in DIALECTS.values() if dialect.log_version)
    return re.compile("|".join(texts), re.IGNORECASE)


@dataclass
class Landmarks:
    """Line numbers of what upstream asks for, of the newest life. `version` is (dialect, version, line)."""

    version: tuple[str, str, int] | None = None
    lines: dict[str, list[int]] = field(default_factory=dict)

    def feed(self, line: str, n: int) -> None:
        # Spelled out, because it runs for every line: a generator would cost as much as the classifier.
        if "(v" not in line and "ersion" not in line and "mdeploy" not in line and "glang" not in line:
            if "args" not in line and "Config(" not in line and "Dumping" not in line:
                return
        elif (hit := _versions().search(line)) is not None:
            dialect = str(hit.lastgroup)
            version = hit[_versions().groupindex[dialect] + 1]
            if self.version is None or self.version[:2] != (dialect, version):  # a dying engine says it again
                self.version = (dialect, version, n)
        for name, hints in _LANDMARKS.items():
            if any(hint in line for hint in hints):
                found = self.lines.setdefault(name, [])
                found.append(n)
                del found[:-_MOST_MARKS]


@dataclass(frozen=True, kw_only=True)
class DiagnosisLine:
    """A line of a log."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class WrittenLine:
    """A line of a log and the process that wrote it."""

    line: int
    process: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class LogFailure:
    """A failure found in a log, as `classify --json` prints it. `at` is the log's own clock."""

    id: str
    severity: Severity
    title: str
    role: Literal["cause", "echo"]
    evidence: DiagnosisLine
    process: str | None
    at: str | None
    frames: tuple[str, ...]
    known: tuple[KnownIssue, ...]
    remedy: str
    alt: tuple[str, ...]
    candidates: tuple[WrittenLine, ...]
    frame: str | None
    repeats: int
    also: tuple[str, ...]
    why: str

    @classmethod
    def of(cls, failure: Failure, landmarks: Landmarks) -> LogFailure:
        """Make one of a failure, whose known issues are compared with the version in the log."""
        dialect, version, _ = landmarks.version or (None, None, 0)
        return cls(
            id=failure.id,
            severity=failure.severity,
            title=failure.title,
            role=failure.role,
            evidence=DiagnosisLine(line=failure.evidence.line or 0, text=failure.evidence.text or ""),
            process=failure.process,
            at=format_clock(failure.clock_s) if failure.clock_s is not None else None,
            frames=failure.frames,
            known=with_standing(failure.known, dialect, version),
            remedy=failure.remedy,
            alt=failure.alt,
            candidates=tuple(
                WrittenLine(line=c.line or 0, process=c.process, text=c.text or "") for c in failure.candidates
            ),
            frame=failure.frame or None,
            repeats=failure.repeats,
            also=failure.also,
            why=failure.why,
        )


class Diagnosis:
    """Diagnosis of one log: `feed` its lines in order, then `finish`."""

    def __init__(self, source: str = "") -> None:
        self.lines = 0
        self.landmarks = Landmarks()
        self._source = source
        self._classifier = Classifier()
        self._held: list[Match] = []
        self._context: list[Match] = []
        self._deaths: list[Failure] = []
        self._others: dict[tuple[str, str], Failure] = {}
        self._errors = UnexplainedErrors()
        self._excerpt: list[str] = []  # the lines, while they are few

    def feed(self, line: WholeLine) -> None:
        self.lines += line.raw_lines
        if self.lines <= EXCERPT + 1:
            self._excerpt += [line.text, *[""] * (line.raw_lines - 1)]
        self.landmarks.feed(line.text, line.line_no)
        for match in self._classifier.feed(line.text, line_no=line.line_no, source=self._source):
            self._hold(match)
        if len(self._classifier.loud) > _MOST_HELD:
            self._errors.add_lines(self._classifier.take_loud())

    def finish(self) -> list[Failure]:
        """End the log and give its failures, deaths first. Each kind is in the order of its evidence."""
        for match in self._classifier.close(died=True):
            self._hold(match)
        self._group()
        self._errors.add_lines(self._classifier.take_loud())
        found = [*self._deaths, *self._others.values()]
        if not found and not self._errors.kinds:
            self._errors.add_lines(self._classifier.warnings())
        if not found and not self._errors.kinds:
            self._errors.add_lines(self._classifier.last_words.raised(self._source, self.lines))
            if not self._errors.kinds and self.lines <= EXCERPT:
                self._errors.add_lines(self._classifier.error_of_excerpt(self._excerpt, self._source))
        found = self._classifier.as_failed_start(found + self._errors.beside(found), self._source)
        found.sort(key=lambda f: (severity_rank(f.severity), f.evidence.line))
        return found

    def _hold(self, match: Match) -> None:
        if self._held and not near(self._held[-1], match, _APART_S):
            self._group()
            if match.when_s is not None or match.at_ns is not None:  # else the time between them is not known
                self._context = []
        elif len(self._held) >= _MOST_HELD:
            self._group()
        self._held.append(match)

    def _group(self) -> None:
        held, self._held = self._held, []
        leftover: list[Match] = []
        for failure in group(held, context=self._context, leftover=leftover):
            self._add(with_candidates(failure, self._classifier.last_words))
        self._errors.add_exceptions(leftover)
        self._context = (self._context + held)[-_MOST_CONTEXT:]

    def _add(self, failure: Failure) -> None:
        if failure.severity in DEADLY and len(self._deaths) < _MOST_DEATHS:
            self._deaths.append(failure)
            return
        key = (failure.id, failure.title)
        if key not in self._others and len(self._others) >= _MOST_KINDS:
            key = next((k for k in self._others if k[0] == failure.id), next(iter(self._others)))
        if (first := self._others.setdefault(key, failure)) is not failure:
            first.repeats += failure.repeats + 1
