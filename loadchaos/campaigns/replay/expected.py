"""The failure that a replay looks for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadchaos.core.errors import OptionError

_LINE_NUMBER = re.compile(r":\d+")
_DEADLY = ("engine_death", "startup", "hang")


@dataclass(frozen=True)
class ExpectedFailure:
    """Failure by its id and its guilty frame.

    Line numbers of frames are left out, as they change between versions. Without a frame the id alone counts.
    """

    id: str
    frame: str = ""
    severity: str = ""
    title: str = ""
    line: str = ""
    any_death: bool = False
    remedy: str = ""

    @property
    def deadly(self) -> bool:
        """True if the server dies of it, and does not only fail a request."""
        return self.any_death or self.severity != "request"

    def matches(self, failure: Mapping[str, Any]) -> bool:
        """Tell if a failure of a verdict is this one."""
        if self.any_death:
            return failure.get("severity") in _DEADLY
        found = guilty_frame(failure)
        return failure.get("id") == self.id and (not self.frame or not found or found == self.frame)

    def to_json(self) -> dict[str, Any]:
        """Convert to the failure of a verdict; `choose` reads it back."""
        return {
            "id": self.id, "frame": self.frame, "severity": self.severity, "title": self.title,
            "evidence": {"text": self.line}, "attribution": "server", "remedy": self.remedy,
        }  # fmt: skip

    def describe(self) -> str:
        """Describe the failure in a few words."""
        if self.any_death:
            return "any death or hang"
        return f"{self.id} in {self.frame}" if self.frame else self.id


def guilty_frame(failure: Mapping[str, Any]) -> str:
    """Guilty frame of a failure without its line number; "" without a stack.

    Older verdicts name no guilty frame: it is the innermost one.
    """
    frame = failure.get("frame") or ""
    if not frame and failure.get("frames") and "frame" not in failure:
        frame = failure["frames"][-1]
    return _LINE_NUMBER.sub("", str(frame), count=1)


def choose(verdict: Mapping[str, Any], wanted: str | None, source: str, *, any_death: bool = False) -> ExpectedFailure:
    """Choose the failure of a verdict that has to occur again.

    Raises OptionError without a failure, or where several could be meant; the message lists them.
    """
    failures = [f for f in verdict.get("failures") or () if not f.get("before_load")]
    if wanted is not None:
        found = [f for f in failures if f.get("id") == wanted]
        if not found:
            raise OptionError(f"--failure {wanted}: {source} has {_listed(failures) or 'no failure'}")
        return _expected(found[0], any_death)
    if any_death:
        deaths = [f for f in failures if f.get("severity") in _DEADLY]
        return _expected(deaths[0] if deaths else {}, any_death)
    if not failures:
        raise OptionError(
            f"{source}: the run has no failure, so nothing can come again; choose a run that failed, or look for any death "
            "with --any-death"
        )
    of_server = [f for f in failures if f.get("attribution") == "server" and not f.get("accepted")] or failures
    if len(of_server) > 1:
        raise OptionError(f"{source} has {len(of_server)} failures: choose one with --failure ID: {_listed(of_server)}")
    return _expected(of_server[0], any_death)


def _expected(failure: Mapping[str, Any], any_death: bool) -> ExpectedFailure:
    evidence = failure.get("evidence") or {}
    return ExpectedFailure(
        str(failure.get("id") or ""),
        guilty_frame(failure),
        str(failure.get("severity") or ""),
        str(failure.get("title") or ""),
        str(evidence.get("text") or ""),
        any_death,
        str(failure.get("remedy") or ""),
    )


def _listed(failures: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{f.get('id')} ({f.get('severity')}: {f.get('title')})" for f in failures)
