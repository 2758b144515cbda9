"""The failure that a replay looks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from loadchaos.analysis.failure import DEADLY_OR_HUNG
from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.core.errors import OptionError

_LINE_NUMBER = re.compile(r":\d+")


@dataclass(frozen=True)
class ExpectedFailure:
    """Failure by id and guilty frame without line numbers, which change; without a frame the id alone counts."""

    id: str
    frame: str = ""
    severity: str = ""
    title: str = ""
    line: str = ""
    any_death: bool = False
    remedy: str = ""

    @property
    def deadly(self) -> bool:
        return self.any_death or self.severity != "request"

    def matches(self, failure: FailureResult) -> bool:
        if self.any_death:
            return failure.severity in DEADLY_OR_HUNG
        found = guilty_frame(failure)
        return failure.id == self.id and (not self.frame or not found or found == self.frame)

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id, "frame": self.frame, "severity": self.severity, "title": self.title,
            "evidence": {"text": self.line}, "attribution": "server", "remedy": self.remedy,
        }  # fmt: skip

    def describe(self) -> str:
        if self.any_death:
            return "any death or hang"
        return f"{self.id} in {self.frame}" if self.frame else self.id


def guilty_frame(failure: FailureResult) -> str:
    """Guilty frame without its line number; "" without a stack. Older verdicts have it as the innermost one."""
    frame = failure.frame
    if frame is None:
        frame = failure.frames[-1] if failure.frames else ""
    return _LINE_NUMBER.sub("", frame, count=1)


def choose(
    found: Iterable[FailureResult], wanted: str | None, source: str, *, any_death: bool = False
) -> ExpectedFailure:
    """Choose the failure that has to occur again. Raises OptionError without one, or for several, with a list."""
    failures = [f for f in found if not f.before_load]
    if wanted is not None:
        named = [f for f in failures if f.id == wanted]
        if not named:
            raise OptionError(f"--failure {wanted}: {source} has {_listed(failures) or 'no failure'}")
        return _expected(named[0], any_death)
    if any_death:
        deaths = [f for f in failures if f.severity in DEADLY_OR_HUNG]
        return _expected(deaths[0], any_death) if deaths else ExpectedFailure("", any_death=True)
    if not failures:
        raise OptionError(
            f"{source}: the run has no failure, so nothing can come again; choose a run that failed, or look for any death "
            "with --any-death"
        )
    of_server = [f for f in failures if f.attribution == "server" and not f.accepted] or failures
    if len(of_server) > 1:
        raise OptionError(f"{source} has {len(of_server)} failures: choose one with --failure ID: {_listed(of_server)}")
    return _expected(of_server[0], any_death)


def _expected(failure: FailureResult, any_death: bool) -> ExpectedFailure:
    return ExpectedFailure(
        failure.id,
        guilty_frame(failure),
        failure.severity,
        failure.title,
        failure.evidence.text or "",
        any_death,
        failure.remedy,
    )


def _listed(failures: Iterable[FailureResult]) -> str:
    return ", ".join(f"{f.id} ({f.severity}: {f.title})" for f in failures)
